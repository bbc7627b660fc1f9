//! Two servers that share a PostgreSQL database, and a management controller that counts requests. While the database
//! thread of a server is blocked, the server behaves as if it were paused or could not reach the database.

use super::reinstall::with_images;
use super::*;
use crate::store_options::StoreOptions;
use testing::http::{Request, ResponseBehavior, Server as Controller};
use testing::postgres;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

/// Maximum time from the end of a lease until another server has taken over.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Redfish service of a machine. For each method, a gate can delay the responses.
pub(super) struct GatedController {
    http: Controller,
    gates: Arc<[AsyncMutex<()>; 3]>,
}

/// Returns the index of the gate for requests with this method.
fn gate_of(method: &str) -> usize {
    match method {
        "GET" => 0,
        "POST" => 1,
        _ => 2,
    }
}

impl GatedController {
    pub(super) fn start(uuid: String) -> GatedController {
        let gates: Arc<[AsyncMutex<()>; 3]> = Arc::default();
        let (passed, boot) = (gates.clone(), Mutex::new(json!({})));
        let http = Controller::start(Vec::new(), move |request: &Request| match request.method.as_str() {
            "GET" => {
                drop(passed[gate_of("GET")].blocking_lock());
                let boot = boot.lock().unwrap().clone();
                let system = json!({"PowerState": "On", "UUID": uuid, "Boot": boot,
                    "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}});
                ResponseBehavior::respond(200, &system.to_string())
            }
            method => {
                drop(passed[gate_of(method)].blocking_lock());
                if method == "PATCH" {
                    *boot.lock().unwrap() = serde_json::from_str::<Value>(&request.body).unwrap()["Boot"].clone();
                }
                ResponseBehavior::respond(204, "")
            }
        });
        GatedController { http, gates }
    }

    pub(super) fn bmc(&self) -> String {
        format!("bmc: {{url: '{}', username: admin, password: hunter2}}\n", self.http.url("redfish/v1/Systems/1"))
    }

    /// Delays the responses to this method until the returned guard is dropped.
    pub(super) async fn close_gate(&self, method: &str) -> MutexGuard<'_, ()> {
        self.gates[gate_of(method)].lock().await
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.http.requests().iter().filter(|request| request.method == method).count()
    }
}

pub(super) async fn start(dir: TempDir, url: &str) -> Running {
    start_around(dir, url, &silent()).await
}

async fn start_around(dir: TempDir, url: &str, around: &HostEnvironment) -> Running {
    let store = StoreOptions { store: Some(url.to_owned()), store_file: None };
    let options = ServerConfig { store, ..options(dir.path()) };
    Running::start_with(dir, &options, around, 10_000).await
}

pub(super) fn new_database() -> Option<String> {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    postgres::shared().map(|server| server.create_database(&format!("servers{number}")))
}

/// Creates a directory whose machine ONE has this controller.
fn with_controller(controller: &GatedController) -> TempDir {
    let dir = with_images();
    let path = dir.path().join("machines/one.yaml");
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    std::fs::write(&path, format!("{}{file}", controller.bmc())).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    dir
}

/// Starts a server with the files and the token of another server, and with the same database.
async fn start_second(first: &Running, controller: &GatedController, url: &str) -> Running {
    let dir = with_controller(controller);
    std::fs::copy(first.dir.path().join("operator.token"), dir.path().join("operator.token")).unwrap();
    start(dir, url).await
}

/// Installs machine ONE, and orders a rollout that power-cycles it.
async fn order_power_cycle(server: &Running) {
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    let members = json!([{ "id": ONE, "imageid": "debian-13" }]);
    let body = json!({ "at_most": 1, "power_cycle": true, "members": members });
    let began = std::time::Instant::now();
    while server.v1("POST", "/v1/rollouts", &body).await.status != 201 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_power_action_at_another_server_is_refused() {
    let Some(url) = new_database() else { return };
    let controller = GatedController::start(ONE.to_owned());
    let a = start(with_controller(&controller), &url).await;
    let b = start_second(&a, &controller, &url).await;
    let path = format!("/v1/machine/{ONE}/power");
    let gate = controller.close_gate("POST").await;
    let cycle = json!({ "action": "cycle" });
    let first = a.v1("POST", &path, &cycle);
    let second = async {
        a.wait_until(|| controller.count("POST") == 1, "the first request").await;
        let refused = b.v1("POST", &path, &json!({ "action": "off" })).await;
        assert!(refused.status == 409 && refused.json()["code"] == "controller-busy", "{}", refused.text());
        let words = "machine one: cannot perform off: another action is in progress: cycle, requested by ";
        assert!(refused.text().contains(words) && refused.text().contains("at server "), "{}", refused.text());
        drop(gate);
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!((first.status, controller.count("POST")), (200, 1), "{}", first.text());
    assert_eq!(b.v1("POST", &path, &cycle).await.status, 200);
    assert_eq!(controller.count("POST"), 2);
    assert!(!a.heard.text().contains("hunter2") && !b.heard.text().contains("hunter2"));
}

/// The first server loses the database after it has set the boot device. The second server then performs the whole
/// power cycle. When the first server continues, it sends no further request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unsent_power_cycle_is_taken_over_and_sent_once() {
    let Some(url) = new_database() else { return };
    let controller = GatedController::start(ONE.to_owned());
    let a = start(with_controller(&controller), &url).await;
    let gate = controller.close_gate("PATCH").await;
    order_power_cycle(&a).await;
    a.wait_until(|| controller.count("PATCH") == 1, "the boot device").await;
    let b = start_second(&a, &controller, &url).await;
    let (until, blocked) = mpsc::channel();
    let began = std::time::Instant::now();
    a.state.block_thread(blocked);
    drop(gate);
    b.wait_until(|| controller.count("POST") == 1, "the power cycle").await;
    assert!(began.elapsed() < store::server_leases::LEASE + TAKEOVER, "{:?}", began.elapsed());
    assert!(began.elapsed() > store::server_leases::LEASE / 2, "the lease was in force: {:?}", began.elapsed());
    b.heard("one: switched off and on, as requested by rollout 1").await;
    assert!(b.heard.text().contains("this server continues the power cycle that server"));
    drop(until);
    a.heard("no request was sent to the management controller").await;
    assert_eq!((controller.count("POST"), controller.count("PATCH")), (1, 2));
}

/// The first server loses the database while the controller handles the restart. The second server must not restart
/// the machine again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unconfirmed_power_cycle_is_reported_and_not_repeated() {
    let Some(url) = new_database() else { return };
    let controller = GatedController::start(ONE.to_owned());
    let a = start(with_controller(&controller), &url).await;
    let gate = controller.close_gate("POST").await;
    order_power_cycle(&a).await;
    a.wait_until(|| controller.count("POST") == 1, "the power cycle").await;
    let b = start_second(&a, &controller, &url).await;
    let (until, blocked) = mpsc::channel();
    a.state.block_thread(blocked);
    b.heard("may have power-cycled the machine, and has not confirmed it").await;
    drop(gate);
    drop(until);
    a.heard("one: switched off and on, as requested by rollout 1").await;
    let rollout = b.v1("GET", "/v1/rollouts/1", &Value::Null).await.json();
    assert!(rollout["members"][0]["reason"].as_str().unwrap().contains("power-cycle it"), "{rollout}");
    // The machine boots, and the rollout continues with this member.
    b.token(ONE).await;
    b.until_states("/v1/rollouts/1", &["installing"]).await;
    assert_eq!(controller.count("POST"), 1);
}

/// With both types of databases, the cancellation of a rollout is acknowledged only after all requests that were
/// permitted before the cancellation have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn canceled_rollout_power_cycles_no_machine() {
    let Some(url) = new_database() else { return };
    for is_shared in [false, true] {
        let controller = GatedController::start(ONE.to_owned());
        let dir = with_controller(&controller);
        let server = if is_shared { start(dir, &url).await } else { Running::start_in(dir).await };
        let gate = controller.close_gate("PATCH").await;
        order_power_cycle(&server).await;
        server.wait_until(|| controller.count("PATCH") == 1, "the boot device").await;
        let cancel = server.v1("DELETE", "/v1/rollouts/1", &Value::Null);
        let release = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(gate);
        };
        let (canceled, ()) = tokio::join!(cancel, release);
        assert_eq!(
            (canceled.status, canceled.json()["state"].clone()),
            (200, json!("canceled")),
            "{}",
            canceled.text()
        );
        server.heard("one: the machine is not power-cycled").await;
        assert_eq!(controller.count("POST"), 0);
    }
}

/// The server that performs an action of an operator exits. The operator receives no result, so another server
/// reports the action, but does not repeat it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn operator_action_is_never_repeated_by_another_server() {
    use store::server_leases::{ActionOrigin, LeaseClaim, LeasedAction};
    let Some(url) = new_database() else { return };
    let controller = GatedController::start(ONE.to_owned());
    let a = start(with_controller(&controller), &url).await;
    let address = store::store_address::PostgresAddress::parse(&url).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = {
        let dir = dir.path().to_owned();
        move || ServerState::open_postgres(&address, &dir, Duration::ZERO).unwrap()
    };
    let ended = tokio::task::spawn_blocking(open).await.unwrap();
    for (permits, words) in
        [(false, "the action did not change the power state"), (true, "the outcome of the action is unknown")]
    {
        let action = LeasedAction::new(ActionOrigin::Operator, "cycle", "ann");
        let LeaseClaim::Claimed(lease) = ended.claim_lease(ONE, action, None).await.unwrap() else { panic!() };
        assert!(!permits || ended.permit_request(&lease, true).await.unwrap());
        a.heard(words).await;
        let blocked = ended.permit_request(&lease, true).await.unwrap();
        assert!(!blocked, "the lease was released");
    }
    assert!(a.heard.text().contains("one: the server has ended during the action cycle, requested by ann at "));
    assert_eq!(controller.count("POST"), 0);
}

/// A server restarts a machine for a step, and loses the database while the controller handles the request. The other
/// server does not restart the machine again; it continues the steps after the next boot of the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn step_restart_is_not_repeated_by_another_server() {
    let Some(url) = new_database() else { return };
    let controller = GatedController::start(ONE.to_owned());
    let around = HostEnvironment { quiet: PATIENCE, ..silent() };
    let a = start_around(with_reboot_step(&controller), &url, &around).await;
    let gate = controller.close_gate("POST").await;
    let token = a.token(ONE).await;
    let path = format!("/v1/machine/{ONE}");
    let began = std::time::Instant::now();
    while controller.count("POST") == 0 {
        assert!(began.elapsed() < PATIENCE, "{}", a.heard.text());
        a.call(&token, "GET", &path, &Value::Null).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let dir = with_reboot_step(&controller);
    std::fs::copy(a.dir.path().join("operator.token"), dir.path().join("operator.token")).unwrap();
    let b = start_around(dir, &url, &around).await;
    let (until, blocked) = mpsc::channel();
    a.state.block_thread(blocked);
    tokio::time::sleep(store::server_leases::LEASE + TAKEOVER).await;
    let run = b.state.find_out_of_band_run(ONE).await.unwrap().unwrap();
    assert_eq!((run.phase, run.restart_sent), (store::RunPhase::Restarting, true));
    drop(gate);
    drop(until);
    // The first server records the response of the controller.
    while b.state.find_out_of_band_run(ONE).await.unwrap().unwrap().phase != store::RunPhase::Booting {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let token = b.token(ONE).await;
    b.allocated(ONE, &token).await;
    assert_eq!(controller.count("POST"), 1);
}

/// Returns the phase of machine ONE in the list of a server.
async fn listed_phase(server: &Running) -> Value {
    let listed = server.v1("GET", "/v1/machines", &Value::Null).await.json();
    listed.as_array().unwrap().iter().find(|machine| machine["id"] == ONE).unwrap()["phase"].clone()
}

/// A machine sends events to one server, and continues at another server. The first server must not show the last event
/// that it has received itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_server_shows_the_last_event_of_a_machine() {
    let Some(url) = new_database() else { return };
    let [a, b] = start_two(&url).await;
    let path = format!("/v1/machine/{ONE}/event");
    let token = a.token(ONE).await;
    let event = json!({ "event": "Installing", "message": "erases the disks", "step": "storage.wipe" });
    assert_eq!(a.call(&token, "POST", &path, &event).await.status, 200);
    let browser = a.browser().await;
    assert!(browser.text("/").await.contains("erases the disks"));
    for server in [&a, &b] {
        assert_eq!(listed_phase(server).await, "installing");
    }
    let event = json!({ "event": "Installing", "message": "writes the image", "step": "image.burn" });
    assert_eq!(b.call(&token, "POST", &path, &event).await.status, 200);
    assert!(!browser.text("/").await.contains("erases the disks"));
    let event = json!({ "event": "Crashed", "message": "no disk" });
    assert_eq!(b.call(&token, "POST", &path, &event).await.status, 200);
    for server in [&a, &b] {
        assert_eq!(listed_phase(server).await, "failed");
    }
}

/// A change of one machine at one server makes the other server read only the records of this machine again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn change_of_a_machine_does_not_wake_the_requests_of_others() {
    let Some(url) = new_database() else { return };
    let [a, b] = start_two(&url).await;
    a.installed().await;
    let versions = || {
        let snapshot = b.directory.borrow();
        [ONE, TWO].map(|id| snapshot.machine_version(id))
    };
    // The server may also reload all machines for another reason, such as a new digest of an image.
    for _ in 0..20 {
        let before = versions();
        a.order("debian-13").await;
        b.wait_until(|| versions()[0] != before[0], "machine ONE is reloaded").await;
        if versions()[1] == before[1] {
            return;
        }
    }
    panic!("each order reloads all machines");
}

/// Starts two servers with the same files and the same token of the operator.
async fn start_two(url: &str) -> [Running; 2] {
    let a = start(with_images(), url).await;
    let dir = with_images();
    std::fs::copy(a.dir.path().join("operator.token"), dir.path().join("operator.token")).unwrap();
    [a, start(dir, url).await]
}

/// A user logs in at one server. The session is valid at the other server, which can also end it, and survives a
/// restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn login_is_valid_at_all_servers() {
    let Some(url) = new_database() else { return };
    let [a, b] = start_two(&url).await;
    let at_a = a.browser().await;
    let at_b = at_a.at(&b);
    assert!(at_b.text("/").await.contains("Log out") && at_a.text("/").await.contains("Log out"));
    at_b.log_out().await;
    assert_eq!([at_a.get("/").await.status, at_b.get("/").await.status], [303, 303]);

    let token = a.user("ann", "viewer", &[]).await;
    let at_b = b.browser_with(&token).await;
    at_b.at(&a).text("/").await;
    let a = start(a.stop().await, &url).await;
    at_b.at(&a).text("/").await;
    for is_disabled in [true, false] {
        assert_eq!(a.v1("POST", "/v1/users/ann", &json!({ "disabled": is_disabled })).await.status, 200);
        assert_eq!([at_b.get("/").await.status, at_b.at(&a).get("/").await.status], [303, 303], "{is_disabled}");
    }
}

/// Creates a directory whose machine ONE must be restarted over Redfish before its installation.
fn with_reboot_step(controller: &GatedController) -> TempDir {
    let dir = with_controller(controller);
    std::fs::create_dir(dir.path().join("deploy-templates")).unwrap();
    let step = json!({"interface": "power", "step": "reboot", "args": {}, "priority": 5});
    let template = json!({"name": "CUSTOM_A", "steps": [step]}).to_string();
    std::fs::write(dir.path().join("deploy-templates/a.yaml"), template).unwrap();
    let path = dir.path().join("machines/one.yaml");
    let file = std::fs::read_to_string(&path).unwrap();
    let file = file.replace("size: c1", "size: c1\ntraits: [CUSTOM_A]") + "  requested_traits: [CUSTOM_A]\n";
    std::fs::write(&path, file).unwrap();
    dir
}
