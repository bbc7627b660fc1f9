//! Redfish steps before an installation of a machine with BIOS settings, from its first boot to its installation, and
//! refusals of such steps.

use super::*;
use bmc::redfish::test_double::{ActionInfo, Ignores, RedfishDouble, SYSTEM, SettingsOnly, Types};
use testing::http::{Request, ResponseBehavior, Server as Controller};

/// Redfish service of a machine. Changes take effect at the next restart of the machine.
struct Service {
    http: Controller,
    /// BIOS values in force, pending BIOS values, and the boot override.
    bios: Arc<Mutex<(Value, Value, Value)>>,
}

impl Service {
    fn start(has_bios: bool) -> Service {
        let bios = Arc::new(Mutex::new((json!({"Vmx": "Off"}), json!({"Vmx": "Off"}), json!({}))));
        let state = bios.clone();
        let http = Controller::start(Vec::new(), move |request: &Request| {
            let mut state = state.lock().unwrap();
            let link = has_bios.then(|| json!({"@odata.id": "/bios"}));
            let document = match (request.method.as_str(), request.path.as_str()) {
                _ if request.authorization.is_none() => return ResponseBehavior::respond(401, ""),
                ("GET", "/redfish/v1/Systems/1") => {
                    json!({"PowerState": "On", "UUID": ONE, "Bios": link, "Boot": state.2,
                    "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}})
                }
                ("GET", "/bios") => {
                    json!({"Attributes": state.0, "Actions": {"#Bios.ResetBios": {"target": "/reset-bios"}},
                    "@Redfish.Settings": {"SettingsObject": {"@odata.id": "/settings"}}})
                }
                ("GET", "/settings") => json!({"Attributes": state.1}),
                ("PATCH", "/settings") => {
                    let body: Value = serde_json::from_str(&request.body).unwrap();
                    state.1 = body["Attributes"].clone();
                    return ResponseBehavior::respond(204, "");
                }
                ("PATCH", "/redfish/v1/Systems/1") => {
                    let body: Value = serde_json::from_str(&request.body).unwrap();
                    state.2 = body["Boot"].clone();
                    return ResponseBehavior::respond(204, "");
                }
                ("POST", "/reset") => {
                    state.0 = state.1.clone();
                    return ResponseBehavior::respond(204, "");
                }
                ("GET", _) => return ResponseBehavior::respond(404, "{}"),
                _ => return ResponseBehavior::respond(204, ""),
            };
            ResponseBehavior::respond(200, &document.to_string())
        });
        Service { http, bios }
    }

    /// Returns the field of a machine file that contains the address of this service.
    fn bmc(&self) -> String {
        format!("bmc: {{url: '{}', username: admin, password: hunter2}}\n", self.http.url("redfish/v1/Systems/1"))
    }

    /// Returns the requests that change the machine.
    fn changes(&self) -> Vec<String> {
        let all = self.http.requests();
        all.iter().filter(|request| request.method != "GET").map(|request| request.line()).collect()
    }
}

const RESET: [&str; 2] = ["PATCH /redfish/v1/Systems/1", "POST /reset"];

fn apply(name: &str, value: &str) -> Value {
    let settings = json!([{"name": name, "value": value}]);
    json!({"interface": "bios", "step": "apply_configuration", "args": {"settings": settings}, "priority": 110})
}

fn step(interface: &str, step: &str, priority: u32) -> Value {
    json!({"interface": interface, "step": step, "args": {}, "priority": priority})
}

fn template(steps: &[Value]) -> String {
    json!({"name": "CUSTOM_A", "steps": steps}).to_string()
}

/// Creates a directory with a machine that requests the template CUSTOM_A with these steps.
fn with_template(bmc: &str, steps: &[Value]) -> TempDir {
    let dir = reinstall::with_images();
    std::fs::create_dir(dir.path().join("deploy-templates")).unwrap();
    let requested = format!("  requested_traits: [CUSTOM_A]\n{bmc}");
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &requested);
    let file = file.replace("size: c1", "size: c1\ntraits: [CUSTOM_A]");
    let path = dir.path().join("machines/one.yaml");
    std::fs::write(&path, file).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(dir.path().join("deploy-templates/a.yaml"), template(steps)).unwrap();
    dir
}

/// Starts a server on which boots count as active for a minute.
async fn start_in(dir: TempDir) -> Running {
    let options = options(dir.path());
    let around = HostEnvironment { quiet: Duration::from_secs(60), ..silent() };
    Running::start_with(dir, &options, &around, 10_000).await
}

impl Running {
    /// Requests the allocation. The status is 200 if the machine receives an installation, and 204 if it must wait.
    async fn asks(&self, token: &str) -> u16 {
        let answer = self.call(token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
        if answer.status == 200 && answer.json()["allocation"].is_null() { 204 } else { answer.status }
    }

    /// Requests the allocation repeatedly, as the agent does, until the condition holds.
    async fn asks_until(&self, token: &str, is_so: impl Fn() -> bool, what: &str) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", self.heard.text());
            self.asks(token).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn progress(&self) -> Value {
        self.listed().await["out_of_band"].clone()
    }

    async fn stored_events(&self) -> Vec<String> {
        self.state.list_events(ONE, 20).await.unwrap().into_iter().map(|(_, event)| event).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installation_waits_for_bios_settings_and_another_boot() {
    let service = Service::start(true);
    let steps = [step("bios", "factory_reset", 120), apply("Vmx", "On")];
    let server = start_in(with_template(&service.bmc(), &steps)).await;
    let first = server.token(ONE).await;
    server.asks_until(&first, || service.changes().len() == 3, "the reset of the BIOS and the restart").await;
    assert_eq!(service.changes(), [&["POST /reset-bios"], &RESET[..]].concat());
    server.heard("waits for BIOS settings: 2 steps must first run over Redfish").await;
    // The boot before the restart of the machine receives no installation, and must not erase any disk.
    assert_eq!((server.asks(&first).await, server.begins_first(ONE, &first, "a1").await), (204, 409));
    assert_eq!(server.progress().await["step"], "bios.factory_reset");

    // After a restart, the server does not repeat requests to the service.
    let server = start_in(server.stop().await).await;
    assert_eq!(service.changes().len(), 3);
    let second = server.token(ONE).await;
    server.asks_until(&second, || service.changes().len() == 6, "the settings and the restart").await;
    assert_eq!(service.changes()[3..], [&["PATCH /settings"], &RESET[..]].concat());
    assert_eq!(server.asks(&second).await, 204);

    let third = server.token(ONE).await;
    let allocation = server.allocated(ONE, &third).await.allocation.unwrap();
    server
        .heard("bios.apply_configuration: BIOS attributes verified after the restart: Vmx=\\\"On\\\" (step 2 of 2)")
        .await;
    assert_eq!((server.asks(&second).await, server.asks(&third).await), (401, 200));
    let bios = |step: &model::deploy_steps::TemplateStep| step.interface == "bios";
    assert!(!allocation.steps.is_empty() && !allocation.steps.iter().any(bios), "{:?}", allocation.steps);
    assert_eq!((server.progress().await, service.changes().len()), (Value::Null, 6));
    assert_eq!(service.bios.lock().unwrap().0, json!({"Vmx": "On"}));
    server.report(ONE, &third, "a1", true).await;

    // A reinstall runs the steps again. If all requested values are already in force, no restart is necessary.
    server.write("deploy-templates/a.yaml", &template(&[apply("Vmx", "On")]));
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.heard("all BIOS attributes already had the requested values").await;
    assert_eq!((service.changes().len(), server.listed().await["order"]["attempts"].clone()), (6, json!(1)));
    assert_eq!(server.begin(&token, &order).await, 200);
    assert!(!server.heard.text().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_bios_attribute_fails_before_any_change() {
    let service = Service::start(true);
    let server =
        start_in(with_template(&service.bmc(), &[step("bios", "factory_reset", 120), apply("Vmxx", "On")])).await;
    let token = server.token(ONE).await;
    let why = "Vmxx: the machine has no such BIOS attribute; did you mean";
    server.asks_until(&token, || server.heard.text().contains(why), why).await;
    assert_eq!((server.asks(&token).await, service.changes()), (204, Vec::new()));
    let progress = server.progress().await;
    assert_eq!((&progress["failed"], &progress["code"]), (&json!(true), &json!("redfish-step-failed")));
    let events = server.stored_events().await;
    assert!(
        events.iter().any(|event| event.contains("Crashed") && event.contains("redfish-step-failed: bios.")),
        "{events:?}"
    );
    // After the template was corrected, the server immediately runs the corrected steps. If the installation is
    // canceled, the steps are aborted.
    server.write("deploy-templates/a.yaml", &template(&[step("power", "reboot", 5)]));
    server.asks_until(&token, || service.changes() == RESET, "the restart").await;
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &service.bmc());
    server.write("machines/one.yaml", &file);
    server.heard("the Redfish steps are canceled, because the installation is no longer ordered").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
}

/// Creates a directory with a machine whose steps run through this controller.
fn with_double(controller: &RedfishDouble, steps: &[Value]) -> TempDir {
    let bmc = format!("bmc: {{url: '{}{SYSTEM}', username: admin, password: hunter2}}\n", controller.url());
    with_template(&bmc, steps)
}

fn boot_from_disk(priority: u32) -> Value {
    let args = json!({"device": "disk", "persistent": true});
    json!({"interface": "management", "step": "set_boot_device", "args": args, "priority": priority})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_and_boot_device_steps_tolerate_quirks() {
    let controller = RedfishDouble::start("On", &[SettingsOnly, ActionInfo, Types(&["On", "ForceOff"])]);
    let steps = [
        step("power", "power_off", 130),
        step("power", "power_on", 120),
        step("power", "reboot", 110),
        boot_from_disk(100),
    ];
    let server = start_in(with_double(&controller, &steps)).await;
    let pxe = ["PATCH 1 UEFI", "PATCH SD UEFI"];
    let first = server.token(ONE).await;
    server.asks_until(&first, || controller.changes().len() == 4, "the machine is switched off and on").await;
    assert_eq!(controller.changes(), [&["POST ForceOff"], &pxe[..], &["POST On"]].concat());
    let second = server.token(ONE).await;
    // Since the controller does not support ForceRestart, the machine is switched off and on.
    server.asks_until(&second, || controller.changes().len() == 8, "the machine is restarted").await;
    assert_eq!(controller.changes()[4..], [&pxe[..], &["POST ForceOff", "POST On"]].concat());
    assert_eq!(controller.state().boot, ["Once", "Pxe", "UEFI"]);
    let third = server.token(ONE).await;
    server.allocated(ONE, &third).await;
    assert_eq!(controller.state().boot, ["Continuous", "Hdd", "UEFI"]);
    let events = server.stored_events().await;
    for name in
        ["power.power_off: done (step 1 of 4)", "power.reboot: done", "management.set_boot_device: done (step 4 of 4)"]
    {
        assert!(events.iter().any(|event| event.contains("Preparing") && event.contains(name)), "{name}: {events:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_without_effect_fails_with_both_values() {
    for (step, power, expected) in [
        (boot_from_disk(100), "On", "reports BootSourceOverrideTarget=None instead of Hdd"),
        (step("power", "reboot", 1), "On", "reports BootSourceOverrideTarget=None instead of Pxe"),
        (step("power", "power_on", 1), "Off", "reports BootSourceOverrideTarget=None instead of Pxe"),
    ] {
        let controller = RedfishDouble::start(power, &[Ignores]);
        let server = start_in(with_double(&controller, std::slice::from_ref(&step))).await;
        let token = server.token(ONE).await;
        server.asks_until(&token, || server.heard.text().contains(expected), expected).await;
        assert_eq!((server.asks(&token).await, controller.changes()), (204, vec!["PATCH 1 UEFI".to_owned()]), "{step}");
        assert_eq!(server.progress().await["code"], "redfish-step-failed");
    }
}

#[test]
fn unsupported_out_of_band_steps_are_refused() {
    let (service, plain) = (Service::start(true), Service::start(false));
    let (reset, ipmi) =
        (step("bios", "factory_reset", 120), "bmc: {url: 'ipmi://10.0.0.9', username: a, password: b}\n");
    for (bmc, steps, expected) in [
        ("", vec![reset.clone()], "has no management controller: add `bmc:`"),
        (
            ipmi,
            vec![reset.clone()],
            "bios.factory_reset: this step requires Redfish, but the management controller of the machine is addressed over IPMI",
        ),
        (ipmi, vec![step("power", "reboot", 1)], "power.reboot: this step requires Redfish"),
        (&*service.bmc(), vec![step("power", "power_off", 1)], "power.power_off leaves the machine off"),
        (&*plain.bmc(), vec![reset.clone()], "the Redfish service offers no Bios resource"),
        (&*service.bmc(), vec![apply("Other", "On")], "Other: the machine has no such BIOS attribute"),
    ] {
        let dir = with_template(bmc, &steps);
        let report = site_check::find_problems(&options(dir.path())).unwrap();
        let problems = format!("{:?}", report.problems);
        assert!(!report.good && problems.contains(expected), "{expected}: {problems}");
        assert!(problems.contains("machines/one.yaml") && !problems.contains("hunter2"), "{problems}");
    }
    // While the service cannot be reached, steps that only the service can check do not count as problems.
    let gone = "bmc: {url: 'https://127.0.0.1:1/redfish/v1/Systems/1', username: a, password: b}\n";
    let dir = with_template(gone, std::slice::from_ref(&reset));
    let report = site_check::find_problems(&options(dir.path())).unwrap();
    let notes = format!("{:?}", report.notes);
    assert!(report.good && notes.contains("cannot check the Redfish steps"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_with_unsupported_steps_is_refused() {
    let reset = step("bios", "factory_reset", 120);
    let (good, plain) = (Service::start(true), Service::start(false));
    let dir = with_template(&good.bmc(), &[step("power", "power_on", 1)]);
    let server = start_in(dir).await;
    server.installed().await;
    let file = machine_file(
        ONE,
        "one",
        "52:54:00:00:00:01",
        "a1",
        &format!("  requested_traits: [CUSTOM_A]\n{}", plain.bmc()),
    );
    server.write("machines/one.yaml", &file.replace("size: c1", "size: c1\ntraits: [CUSTOM_A]"));
    server.write("deploy-templates/a.yaml", &template(&[reset]));
    let began = std::time::Instant::now();
    let answer = loop {
        let answer = server.press(ONE, "debian-13", json!({})).await;
        if answer.status != 200 || began.elapsed() > PATIENCE {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(answer.status == 400 && answer.text().contains("offers no Bios resource"), "{}", answer.text());
    assert_eq!(answer.json()["code"], "redfish-unsupported");
    assert_eq!(plain.changes(), Vec::<String>::new());
}
