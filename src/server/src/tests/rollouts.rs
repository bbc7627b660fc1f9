//! Rollouts, with simulated agents on four machines.

use super::reinstall::with_images;
use super::*;
use common::command_outcome::CommandOutcome;

/// Ids of the machines `m1` to `m99`.
pub(super) fn id(number: usize) -> String {
    format!("4c4c4544-0051-3010-8052-b4c04f4d10{number:02}")
}

fn file(number: usize, more: &str) -> String {
    let mac = format!("52:54:00:00:01:{number:02}");
    format!("{more}{}", machine_file(&id(number), &format!("m{number}"), &mac, &format!("a{number}"), ""))
}

impl Running {
    /// Starts a server with four machines that are installed with debian-12.
    pub(super) async fn with_installed_machines(more: &str) -> Running {
        Running::with_several_installed(4, more).await
    }

    /// Starts a server with machines that are installed with debian-12.
    pub(super) async fn with_several_installed(count: usize, more: &str) -> Running {
        let dir = with_images();
        for number in 1..=count {
            std::fs::write(dir.path().join(format!("machines/m{number}.yaml")), file(number, more)).unwrap();
        }
        let server = Running::start_in(dir).await;
        for number in 1..=count {
            let token = server.token(&id(number)).await;
            server.allocated(&id(number), &token).await;
            server.report(&id(number), &token, &format!("a{number}"), true).await;
        }
        server
    }

    pub(super) async fn request_rollout(&self, token: &str, numbers: &[usize], more: Value) -> Answer {
        let member = |number: &usize| json!({ "id": id(*number), "imageid": "debian-13" });
        let mut body = json!({ "at_most": 2, "members": numbers.iter().map(member).collect::<Vec<_>>() });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.call(token, "POST", "/v1/rollouts", &body).await
    }

    /// Orders a rollout of the machines, and returns its path.
    pub(super) async fn rollout(&self, numbers: &[usize], more: Value) -> String {
        let answer = self.request_rollout(&self.operator(), numbers, more).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        format!("/v1/rollouts/{}", answer.json()["id"])
    }

    /// Waits until the members have these states, and returns the rollout.
    pub(super) async fn until_states(&self, path: &str, expected: &[&str]) -> Value {
        let states = |answer: &Answer| {
            let members = answer.json()["members"].as_array().unwrap().clone();
            members.iter().map(|member| member["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        self.shows(path, |answer| states(answer) == expected).await.json()
    }

    /// Boots the ramdisk of a machine with an open reinstall order. Returns the token and the id of the order.
    pub(super) async fn boots_member(&self, number: usize) -> (String, String) {
        let token = self.token(&id(number)).await;
        let allocation = self.allocated(&id(number), &token).await.allocation.unwrap();
        (token, allocation.order.unwrap().id)
    }

    /// Carries out the reinstall of a machine.
    pub(super) async fn installs_member(&self, number: usize) {
        let (token, order) = self.boots_member(number).await;
        let (machine, allocation) = (id(number), format!("a{number}"));
        let disks = json!([{ "device": "os", "serial": "A0", "size_bytes": 1 }]);
        let begin = json!({ "allocationuuid": allocation, "order": order, "disks": disks });
        let path = format!("/v1/machine/{machine}/point-of-no-return");
        assert_eq!(self.call(&token, "POST", &path, &begin).await.status, 200);
        let marker = json!({ "machine": machine, "allocation": allocation, "order": order, "image": "debian-13",
            "layout": "default" });
        let report = json!({ "success": true, "message": "m", "allocationuuid": allocation, "order": order,
            "marker": marker });
        let answer = self.call(&token, "POST", &format!("/v1/machine/{machine}/report"), &report).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Reports that the reinstall of a machine has failed before its point of no return.
    pub(super) async fn fails_member(&self, number: usize) {
        let (token, order) = self.boots_member(number).await;
        let report = json!({ "success": false, "message": "no such disk", "allocationuuid": format!("a{number}"),
            "order": order, "untouched": true, "step": "plan" });
        let answer = self.call(&token, "POST", &format!("/v1/machine/{}/report", id(number)), &report).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Runs `drophammer rollout`, and returns its exit status.
    async fn rollout_command(&self, arguments: &[&str]) -> CommandOutcome {
        self.rollout_output(arguments).await.1
    }

    /// Runs `drophammer rollout`, and returns its output and its exit status.
    pub(super) async fn rollout_output(&self, arguments: &[&str]) -> (String, CommandOutcome) {
        use clap::Parser;
        let (url, token) = (format!("http://{}", self.address), self.dir.path().join("operator.token"));
        let with = ["--server", &url, "--token-file", token.to_str().unwrap()];
        let all = ["drophammer", "rollout"].iter().chain(arguments).chain(&with);
        let command = drophammer::cli::Cli::try_parse_from(all).unwrap().command;
        let drophammer::cli::CliCommand::Rollout(options) = command else { panic!() };
        let run = move || {
            let mut outcome = CommandOutcome::Refused;
            let output = common::output_capture::recorded(|| {
                outcome = drophammer::server_commands::rollouts::run_rollout_command(&options)?;
                Ok(())
            });
            (output, outcome)
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }
}

/// The server restarts between the waves of the rollout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_reinstalled_in_waves() {
    let server = Running::with_installed_machines("").await;
    let order = ["reinstall", "m1", "m2", "m3", "m4", "--image", "debian-13", "--at-most", "2", "--yes", "4"];
    assert_eq!(server.machine(&order).await.unwrap(), CommandOutcome::Good);
    let path = "/v1/rollouts/1";
    server.until_states(path, &["ordered", "ordered", "waiting", "waiting"]).await;
    assert_eq!(server.rollout_command(&["show", "1"]).await, CommandOutcome::Good);
    server.boots_member(1).await;
    server.until_states(path, &["installing", "ordered", "waiting", "waiting"]).await;
    assert_eq!(server.rollout_command(&["show", "1"]).await, CommandOutcome::Good);
    let server = server.restarted().await;
    server.installs_member(1).await;
    server.until_states(path, &["done", "ordered", "ordered", "waiting"]).await;
    server.heard("rollout 1: machine m1 done").await;
    let server = server.restarted().await;
    server.installs_member(3).await;
    server.until_states(path, &["done", "ordered", "done", "ordered"]).await;
    server.installs_member(2).await;
    server.installs_member(4).await;
    let ended = server.shows(path, |answer| answer.json()["state"] == "finished").await.json();
    assert_eq!(ended["counts"]["done"], 4);
    assert_eq!(server.rollout_command(&["show", "1"]).await, CommandOutcome::Good);
    assert_eq!(server.rollout_command(&["list"]).await, CommandOutcome::Good);
    server.heard("rollout 1 has finished").await;
    for number in 1..=4 {
        let history = server.v1("GET", &format!("/v1/machine/{}/history", id(number)), &Value::Null).await.json();
        let ordered = history.as_array().unwrap().iter().filter(|entry| entry["kind"] == "ordered");
        assert_eq!(ordered.count(), 1, "{history}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_stops_a_rollout_until_it_is_resumed() {
    let server = Running::with_installed_machines("").await;
    let path = server.rollout(&[4, 3, 2, 1], json!({})).await;
    server.until_states(&path, &["ordered", "ordered", "waiting", "waiting"]).await;
    server.fails_member(4).await;
    let stopped = server.until_states(&path, &["failed", "ordered", "waiting", "waiting"]).await;
    assert!(stopped["members"][0]["reason"].as_str().unwrap().contains("no such disk"), "{stopped}");
    server.heard("rollout 1 is stopped: 1 member has failed or was skipped, so no further members are started").await;
    assert_eq!(server.rollout_command(&["show", "1"]).await, CommandOutcome::Good);
    server.installs_member(3).await;
    let stopped = server.until_states(&path, &["failed", "done", "waiting", "waiting"]).await;
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(server.rollout_command(&["resume", "1"]).await, CommandOutcome::Good);
    server.until_states(&path, &["failed", "done", "ordered", "ordered"]).await;
    assert_eq!(server.rollout_command(&["cancel", "1"]).await, CommandOutcome::Good);
    let canceled = server.until_states(&path, &["failed", "done", "skipped", "skipped"]).await;
    assert_eq!(canceled["state"], "canceled");
    let again = server.v1("DELETE", &path, &Value::Null).await;
    assert!(again.status == 200 && again.json()["state"] == "canceled", "{}", again.text());
    assert_eq!(server.rollout_command(&["cancel", "1"]).await, CommandOutcome::Good);
    let refused = server.v1("POST", &format!("{path}/resume"), &Value::Null).await;
    assert!(refused.status == 409 && refused.json()["error_code"] == "DH-646", "{}", refused.text());
    assert_eq!(server.rollout_command(&["resume", "1"]).await, CommandOutcome::Refused);
    assert_eq!(server.rollout_command(&["halt", "9"]).await, CommandOutcome::Refused);
}

/// Members whose machines have changed between the order of the rollout and the start of their reinstall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_were_locked_changed_or_freed_are_skipped() {
    let server = Running::with_installed_machines("").await;
    let path = server.rollout(&[1, 2, 3, 4], json!({ "start": "+1h", "stop_after": 4 })).await;
    assert_eq!(server.machine(&["lock", "m1", "--reason", "audit"]).await.unwrap(), CommandOutcome::Good);
    assert_eq!(server.machine(&["free", "m2"]).await.unwrap(), CommandOutcome::Good);
    server.write("layouts/other.yaml", &LAYOUT.replace("id: default", "id: other"));
    std::fs::remove_file(server.dir.path().join("machines/m4.yaml")).unwrap();
    server.write("images/13.yaml", "id: debian-13\nfile: deb/other.tar.zst\n");
    server.write("images/deb/other.tar.zst", "another image");
    server.shows("/v1/image/debian-13", |answer| answer.text().contains("other.tar.zst")).await;
    server.shows("/v1/machines", |answer| !answer.text().contains(&id(4))).await;
    let states = server.v1("GET", &path, &Value::Null).await.json();
    assert_eq!(states["counts"]["waiting"], 4, "the start is not reached");
    let now = "UPDATE rollouts SET document = replace(document, '\"start\":\"2', '\"start\":\"1')";
    engine::run_sql(server.dir.path(), now);
    let ended = server.until_states(&path, &["skipped", "skipped", "skipped", "skipped"]).await;
    for (member, words) in [
        (0, "is locked: audit; to unlock it, run `drophammer machine unlock m1` (DH-645)"),
        (1, "does not contain an allocation"),
        (2, "changed since the rollout was ordered: image debian-13 has changed"),
        (3, "machines/ contains no machine"),
    ] {
        assert!(ended["members"][member]["reason"].as_str().unwrap().contains(words), "{words}: {ended}");
    }
    assert_eq!(ended["state"], "finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_rollout_is_refused_as_a_whole() {
    let server = Running::with_installed_machines("").await;
    let request = async |numbers: &[usize], more: Value| {
        let answer = server.request_rollout(&server.operator(), numbers, more).await;
        (answer.status, answer.text())
    };
    assert_eq!(server.machine(&["lock", "m2", "--reason", "audit"]).await.unwrap(), CommandOutcome::Good);
    let member = |image: &str| json!({ "members": [{ "id": id(1), "imageid": image }] });
    for (numbers, more, status, words) in [
        (&[1, 2][..], json!({}), 409, "`drophammer machine unlock m2` (DH-645)"),
        (&[1, 1], json!({}), 400, "is listed twice"),
        (&[], json!({}), 400, "the list of machines is empty"),
        (&[1], json!({ "at_most": 0 }), 400, "must be at least 1"),
        (&[1], json!({ "stop_after": 0 }), 400, "must be at least 1"),
        (&[1], json!({ "start": "2020-01-01T00:00Z" }), 400, "start: the start time 2020-01-01T00:00Z has passed"),
        (&[1], json!({ "window": "1-5" }), 400, "is not a window"),
        (&[1], json!({ "parallel": 2 }), 400, "unknown field"),
        (&[1], json!({ "members": [{ "id": id(1), "imageid": "i", "force": true }] }), 400, "unknown field"),
        (&[1], json!({ "power_cycle": true }), 409, "does not name a management controller"),
        (&[1], member("debian-99"), 409, "not found in images/"),
        (&[9], json!({}), 409, "machines/ contains no machine"),
    ] {
        let (answered, text) = request(numbers, more.clone()).await;
        assert!(answered == status && text.contains(words), "{words}: {answered} {text}");
    }
    let none = server.v1("GET", "/v1/rollouts", &Value::Null).await;
    assert_eq!(none.json(), json!([]));
    let many = ["reinstall", "m1", "m3", "--image", "debian-13"];
    assert_eq!(server.machine(&many).await.unwrap(), CommandOutcome::Refused, "without --at-most");
    let filtered = ["reinstall", "--filter", "name=m*", "--image", "debian-13", "--at-most", "1", "--yes", "4"];
    assert_eq!(server.machine(&filtered).await.unwrap(), CommandOutcome::Refused, "m2 is locked");
    assert_eq!(server.machine(&["unlock", "m2"]).await.unwrap(), CommandOutcome::Good);
    for count in ["3", "5"] {
        let unconfirmed = [&filtered[..7], &["--yes", count]].concat();
        assert_eq!(server.machine(&unconfirmed).await.unwrap(), CommandOutcome::Refused, "4 machines are selected");
    }
    assert_eq!(server.v1("GET", "/v1/rollouts", &Value::Null).await.json(), json!([]), "nothing was ordered");
    assert_eq!(server.machine(&filtered).await.unwrap(), CommandOutcome::Good);
    let (answered, text) = request(&[4], json!({})).await;
    assert!(answered == 409 && text.contains("is a member of rollout 1"), "{text}");
    let missing = server.v1("GET", "/v1/rollouts/x", &Value::Null).await;
    assert!(missing.status == 404 && missing.text().contains("there is no rollout x"), "{}", missing.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_are_limited_to_the_projects_of_a_user() {
    let server = Running::with_installed_machines("project: blue\n").await;
    server.write("machines/m4.yaml", &file(4, "project: red\n"));
    server.shows("/v1/machines", |answer| answer.text().contains("\"red\"")).await;
    let bob = server.user("bob", "operator", &["blue"]).await;
    let viewer = server.user("vic", "viewer", &[]).await;
    assert_eq!(server.request_rollout(&viewer, &[1], json!({})).await.status, 403);
    let refused = server.request_rollout(&bob, &[1, 4], json!({})).await;
    assert!(refused.status == 409 && refused.text().contains("machines/ contains no machine"), "{}", refused.text());
    let own = server.request_rollout(&bob, &[1], json!({ "start": "+1h" })).await;
    assert_eq!((own.status, &own.json()["created_by"]), (201, &json!("bob")), "{}", own.text());
    let other = server.rollout(&[2, 4], json!({ "start": "+1h" })).await;
    let listed = server.call(&bob, "GET", "/v1/rollouts", &Value::Null).await.json();
    assert_eq!(listed.as_array().unwrap().iter().map(|it| it["id"].clone()).collect::<Vec<_>>(), [json!(1)]);
    assert_eq!(server.call(&bob, "GET", &other, &Value::Null).await.status, 404);
    assert_eq!(server.call(&bob, "POST", &format!("{other}/halt"), &Value::Null).await.status, 404);
    assert_eq!(server.call(&viewer, "POST", &format!("{other}/halt"), &Value::Null).await.status, 403);
    assert_eq!(server.call(&bob, "POST", "/v1/rollouts/1/halt", &Value::Null).await.status, 200);
    let entries = server.v1("GET", "/v1/audit?action=rollouts&who=bob", &Value::Null).await.json();
    let halt = &entries[0];
    assert_eq!(
        (&halt["action"], &halt["object"], &halt["outcome"]),
        (&json!("POST /v1/rollouts/{id}/halt"), &json!("1"), &json!("done"))
    );
    assert!(halt["changes"].to_string().contains("halted by bob"), "{halt}");
}

/// The rollout reinstalls one machine by a saved plan. The server approves the plan when it orders the reinstall of the
/// machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saved_plan_is_approved_when_its_member_starts() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let file = server.dir.path().join("one.plan").display().to_string();
    server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    let order = ["reinstall", "--plan", &file, "--at-most", "1", "--start", "+1h"];
    assert_eq!(
        server.machine(&["reinstall", "two", "--plan", &file, "--at-most", "1"]).await.unwrap(),
        CommandOutcome::Refused
    );
    assert_eq!(server.machine(&order).await.unwrap(), CommandOutcome::Good);
    let waiting = server.until_states("/v1/rollouts/1", &["waiting"]).await;
    let member = &waiting["members"][0];
    assert!(member["lost_bytes"].is_u64() && member["approved"].as_str().unwrap().starts_with("sha256:"), "{member}");
    let approval = server.dir.path().join(format!("approved/{ONE}.yaml"));
    assert!(!approval.exists());
    let now = "UPDATE rollouts SET document = replace(document, '\"start\":\"2', '\"start\":\"1')";
    engine::run_sql(server.dir.path(), now);
    server.until_states("/v1/rollouts/1", &["ordered"]).await;
    assert!(std::fs::read_to_string(&approval).unwrap().contains(member["approved"].as_str().unwrap()));
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    let ended = server.until_states("/v1/rollouts/1", &["failed"]).await;
    assert_eq!(
        (&ended["members"][0]["reason"], &ended["state"]),
        (&json!("the reinstall order was canceled"), &json!("finished"))
    );
    for (method, path) in
        [("DELETE", "/v1/rollouts/1"), ("POST", "/v1/rollouts/1/halt"), ("POST", "/v1/rollouts/1/resume")]
    {
        let refused = server.v1(method, path, &Value::Null).await;
        assert!(
            refused.status == 409 && refused.json()["error_code"] == "DH-646",
            "{method} {path}: {}",
            refused.text()
        );
    }
    assert_eq!(server.rollout_command(&["cancel", "1"]).await, CommandOutcome::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_members_are_power_cycled() {
    use super::power_control::bmc_field;
    use bmc::redfish::test_double::{Ignores, RedfishDouble};
    let server = Running::with_installed_machines("").await;
    let start = |number, quirks| RedfishDouble::start("On", quirks).with_uuid(&id(number));
    let controllers = [start(1, &[]), start(2, &[Ignores])];
    for (number, controller) in [(1, &controllers[0]), (2, &controllers[1])] {
        server.write(&format!("machines/m{number}.yaml"), &file(number, &bmc_field(controller)));
    }
    let began = std::time::Instant::now();
    let more = json!({ "power_cycle": true, "stop_after": 2 });
    while server.request_rollout(&server.operator(), &[1, 2], more.clone()).await.status != 201 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let shown = server.until_states("/v1/rollouts/1", &["ordered", "failed"]).await;
    assert!(
        shown["members"][1]["reason"].as_str().unwrap().starts_with("the machine could not be restarted"),
        "{shown}"
    );
    server.heard("m1: switched off and on, as requested by rollout 1").await;
    assert_eq!(controllers[0].changes().iter().filter(|change| *change == "POST ForceRestart").count(), 1);
    let machines = server.v1("GET", "/v1/machines", &Value::Null).await.json();
    let machine = |number| machines.as_array().unwrap().iter().find(|machine| machine["id"] == id(number)).unwrap();
    assert!(machine(1)["order"].is_object() && machine(2)["order"].is_null(), "the order of m2 is canceled");
}

/// A checkout of the server's directory removes a file for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_whose_file_is_absent_keeps_its_order() {
    let server = Running::with_several_installed(1, "").await;
    let path = server.rollout(&[1], json!({})).await;
    server.until_states(&path, &["ordered"]).await;
    let text = server.file("machines/m1.yaml");
    std::fs::remove_file(server.dir.path().join("machines/m1.yaml")).unwrap();
    let listed = format!("\"id\":\"{}\"", id(1));
    server.shows("/v1/machines", |answer| !answer.text().contains(&listed)).await;
    // The rollout is updated several times meanwhile.
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.write("machines/m1.yaml", &text);
    server.shows("/v1/machines", |answer| answer.text().contains(&listed)).await;
    server.until_states(&path, &["ordered"]).await;
    server.installs_member(1).await;
    server.until_states(&path, &["done"]).await;
}
