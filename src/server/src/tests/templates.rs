//! Deploy templates: their files, their requests, and their effects on allocations. `scripts/test ironic-templates`
//! compares the responses with those of Ironic.

use super::*;
use control::agent_api_types::RegisterRequest;
use model::inventory::Inventory;

const MIRROR: &str = "CUSTOM_BM_CONFIG_RAID_DISK_MIRROR";
const AT: &str = "/v1/deploy_templates";

/// Returns the step in the example of Ironic's specification.
fn raid(level: &str) -> Value {
    let disk = json!({"size_gb": "MAX", "raid_level": level, "is_root_volume": true});
    let args = json!({"logical_disks": [disk], "delete_configuration": true});
    json!({"interface": "raid", "step": "create_configuration", "args": args, "priority": 10})
}

impl Running {
    /// Sends a request as an OpenStack client.
    async fn template(&self, method: &str, path: &str, body: &Value) -> Answer {
        let (token, body) = (self.operator(), if body.is_null() { String::new() } else { body.to_string() });
        let headers = [("X-Auth-Token", token.as_str()), ("X-OpenStack-Ironic-API-Version", "1.115")];
        self.ask(method, path, &headers, &body).await
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_requests_create_update_and_delete_its_file() {
    let server = Running::start().await;
    let file = format!("deploy-templates/{MIRROR}.yaml");
    let answer = server.template("POST", AT, &json!({"name": MIRROR, "steps": [raid("1")]})).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let made = answer.json();
    assert!(answer.headers["location"].ends_with(made["uuid"].as_str().unwrap()));
    assert!(server.read(&file).contains("step: \"create_configuration\""), "{}", server.read(&file));
    assert_eq!(server.template("POST", AT, &json!({"name": MIRROR, "steps": [raid("1")]})).await.status, 409);
    let bad = server.template("POST", AT, &json!({"name": "mirror", "steps": []})).await;
    assert!(bad.status == 400 && bad.text().contains("name: ") && bad.text().contains("steps: "), "{}", bad.text());

    // Each change is in effect when the client receives the response, so the next request can follow immediately.
    for priority in 1..9 {
        let patch = json!([{"op": "replace", "path": "/steps/0/priority", "value": priority}]);
        assert_eq!(server.template("PATCH", &format!("{AT}/{MIRROR}"), &patch).await.status, 200);
        let shown = server.template("GET", &format!("{AT}/{MIRROR}"), &Value::Null).await.json();
        assert_eq!((&shown["steps"][0]["priority"], &shown["uuid"]), (&json!(priority), &made["uuid"]));
    }
    let uuid = format!("{AT}/{}", made["uuid"].as_str().unwrap());
    let patch = json!([{"op": "replace", "path": "/name", "value": "CUSTOM_OTHER"}]);
    assert_eq!(server.template("PATCH", &uuid, &patch).await.status, 200);
    assert_eq!(
        (server.read(&file).as_str(), server.template("GET", &format!("{AT}/{MIRROR}"), &Value::Null).await.status),
        ("", 404)
    );
    assert!(!server.read("deploy-templates/CUSTOM_OTHER.yaml").is_empty());

    // The format of Ironic's specification: without a version, and with complete templates.
    let listed = server.call(&server.operator(), "GET", "/v1/deploy-templates", &Value::Null).await;
    let expected = json!({"deploy-templates": [{"name": "CUSTOM_OTHER", "uuid": made["uuid"], "steps": [{
        "interface": "raid", "step": "create_configuration", "args": raid("1")["args"], "priority": 8}]}]});
    assert_eq!((listed.status, listed.json()), (200, expected));
    assert_eq!(server.template("DELETE", &uuid, &Value::Null).await.status, 204);
    assert_eq!(server.template("DELETE", &uuid, &Value::Null).await.status, 404);
    assert_eq!(server.read("deploy-templates/CUSTOM_OTHER.yaml"), "");

    // Methods that no path supports, and methods that either only the collection or only a template supports.
    for (method, path, status) in [("PUT", AT, 405), ("PUT", &*uuid, 405), ("POST", &*uuid, 400), ("DELETE", AT, 400)] {
        assert_eq!(server.template(method, path, &json!({})).await.status, status, "{method} {path}");
    }
    let (token, old) = (server.operator(), ("X-OpenStack-Ironic-API-Version", "1.54"));
    for (method, status) in [("GET", 404), ("POST", 405), ("DELETE", 405)] {
        let headers = [("X-Auth-Token", token.as_str()), old];
        assert_eq!(server.ask(method, AT, &headers, "").await.status, status, "{method}");
    }

    // Only the operator may send these requests. An unsupported API version is refused; the response contains the
    // supported range.
    let version = [("X-OpenStack-Ironic-API-Version", "1.115")];
    assert_eq!(server.ask("GET", AT, &version, "").await.status, 401);
    let token = server.token(ONE).await;
    assert_eq!(server.call(&token, "GET", "/v1/deploy-templates", &Value::Null).await.status, 401);
    let refused = server.ask("GET", AT, &[("X-OpenStack-Ironic-API-Version", "1.999")], "").await;
    assert_eq!((refused.status, refused.headers["x-openstack-ironic-api-maximum-version"].as_str()), (406, "1.115"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_template_edit_is_reported_and_not_overwritten() {
    let server = Running::start().await;
    let good = "name: CUSTOM_A\nsteps: [{interface: deploy, step: write_files, args: {}, priority: 0}]\n";
    std::fs::create_dir(server.dir.path().join("deploy-templates")).unwrap();
    server.write("deploy-templates/a.yaml", good);
    let shown = async || server.template("GET", &format!("{AT}/CUSTOM_A"), &Value::Null).await;
    let began = std::time::Instant::now();
    while shown().await.status != 200 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let uuid = shown().await.json()["uuid"].clone();
    server.write("deploy-templates/a.yaml", &good.replace("deploy", "network"));
    server.heard("a.yaml:2:10: steps[0].interface: must be one of vendor, power").await;
    assert_eq!(shown().await.json()["uuid"], uuid, "its last valid version stays in force");
    let patch = json!([{"op": "replace", "path": "/extra", "value": {"a": 1}}]);
    let answer = server.template("PATCH", &format!("{AT}/CUSTOM_A"), &patch).await;
    assert!(answer.status == 409 && answer.text().contains("see the server's output"), "{}", answer.text());
    assert_eq!(server.template("DELETE", &format!("{AT}/CUSTOM_A"), &Value::Null).await.status, 409);
    assert!(server.read("deploy-templates/a.yaml").contains("network"));
    server.write("deploy-templates/a.yaml", good);
    server.heard("all files are valid again").await;
    assert_eq!(server.template("PATCH", &format!("{AT}/CUSTOM_A"), &patch).await.status, 200);
    assert!(server.read("deploy-templates/a.yaml").contains("extra: {\"a\": 1}"));
    server.write("deploy-templates/b.yaml", &good.replace("write_files", "fly"));
    server.heard("b.yaml: template CUSTOM_A is already defined in ").await;
}

fn with_traits(more: &str) -> TempDir {
    let dir = directory();
    std::fs::create_dir(dir.path().join("deploy-templates")).unwrap();
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", more)
        .replace("size: c1", "traits: [CUSTOM_A, CUSTOM_B, CUSTOM_C]");
    std::fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_traits_change_steps_and_invalid_ones_are_reported() {
    let dir = with_traits("  requested_traits: [CUSTOM_C, CUSTOM_A, CUSTOM_B]\n");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join("deploy-templates").join(name), text).unwrap();
    write(
        "a.yaml",
        "name: CUSTOM_A\nsteps: [{interface: deploy, step: apply_layout, args: {erase: secure}, priority: 90}]\n",
    );
    write("b.yaml", "name: CUSTOM_B\nsteps:\n- {interface: deploy, step: write_files, args: {}, priority: 0}\n");
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    let allocation = server.allocated(ONE, &token).await.allocation.unwrap();
    let told: Vec<String> = allocation
        .steps
        .iter()
        .map(|step| format!("{} {}.{} {}", step.priority.unwrap(), step.interface, step.step, json!(step.args)))
        .collect();
    assert_eq!(
        told,
        [
            "90 deploy.apply_layout {\"erase\":\"secure\"}",
            "80 deploy.burn_image {}",
            "65 deploy.run_installer {}",
            "60 deploy.prepare_boot {}",
            "45 deploy.finish {}",
        ]
    );
    assert_eq!(
        allocation.erase,
        model::deploy_steps::EraseMode::Secure,
        "agents without support for steps receive the erase mode"
    );
    let request =
        plan::request_from_allocation::build_request(&allocation::AssignedMachine::default(), ONE, &allocation, &[]);
    assert!(request.steps.problems().is_empty() && !request.steps.includes_step("deploy.write_files"));

    for (name, text, says) in [
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- {interface: bios, step: factory_reset, args: {}, priority: 5}\n",
            "one.yaml:11:42: the template CUSTOM_B (deploy-templates/b.yaml:3:3): bios.factory_reset: this step requires Redfish, but the machine file has no management controller",
        ),
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- interface: deploy\n  step: apply_layout\n  args: {erase: secure, wipe: 1}\n  priority: 90\n",
            "(deploy-templates/b.yaml:5:25): step deploy.apply_layout: unknown argument wipe; supported arguments: erase",
        ),
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- {interface: deploy, step: burn_image, args: {}, priority: 79}\n",
            "deploy.burn_image is a core step: its priority must be 80, or 0 to disable the step; found 79",
        ),
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- {interface: deploy, step: finish, args: {}, priority: 0}\n",
            "the step deploy.finish is disabled, but every installation requires this step",
        ),
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- {interface: raid, step: create_configuration, args: {logical_disks: [{size_gb: 1, raid_level: 1}]}, priority: 1}\n",
            "(deploy-templates/b.yaml:3:85): logical_disks[0].raid_level: must be one of 0, 1, 5, 6, 1+0, as a string",
        ),
        (
            "b.yaml",
            "name: CUSTOM_B\nsteps:\n- {interface: raid, step: create_configuration, args: {logical_disks: [{size_gb: 1, raid_level: \\\"1\\\"}]}, priority: 1}\n",
            "one.yaml:9:21: the template CUSTOM_B generates the layout: remove `filesystemlayout`, or do not request CUSTOM_B",
        ),
    ] {
        server.write(&format!("deploy-templates/{name}"), &text.replace("\\\"", "\""));
        server.heard(&says.replace('"', "\\\"")).await;
    }
    server.heard("nothing is installed on machines with the trait CUSTOM_B").await;
}

fn inventory(disks: u8) -> Inventory {
    let disk = |index: u8| model::inventory::InventoryDisk {
        name: format!("sd{}", char::from(b'a' + index)).as_str().into(),
        device: format!("/dev/sd{}", char::from(b'a' + index)).as_str().into(),
        size_bytes: 8 << 30,
        sector_bytes: 512,
        serial: format!("S{index}"),
        ..Default::default()
    };
    let mut inventory = Inventory { disks: (0..disks).map(disk).collect(), ..Inventory::default() };
    inventory.system.firmware = model::inventory::FirmwareType::Uefi;
    inventory
}

/// Example of Ironic's specification: the layout is generated for the registered hardware.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_with_arrays_generates_the_layout() {
    let dir = with_traits("  requested_traits: [CUSTOM_A]\n");
    let path = dir.path().join("machines/one.yaml");
    let text = std::fs::read_to_string(&path).unwrap().replace("  filesystemlayout: default\n", "");
    std::fs::write(&path, text).unwrap();
    let template = json!({"name": "CUSTOM_A", "steps": [raid("1")]}).to_string();
    std::fs::write(dir.path().join("deploy-templates/a.yaml"), template).unwrap();
    let server = Running::start_in(dir).await;
    let registers = async |disks: u8| {
        let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
        let register = serde_json::to_value(RegisterRequest::new(ONE.to_owned(), inventory(disks))).unwrap();
        assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
        token
    };
    let token = registers(1).await;
    let preview = async || {
        server.call(&server.operator(), "GET", &format!("/v1/machine/{ONE}/preview"), &Value::Null).await.json()
    };
    let began = std::time::Instant::now();
    while !preview().await["withheld"].to_string().contains("has 1 of the 2 devices") {
        assert!(began.elapsed() < PATIENCE, "{}", preview().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.heard("on the disks that the machine has registered: raid:/dev/md/esp has 1 of the 2 devices").await;
    drop(token);
    let token = registers(2).await;
    let allocation = server.allocated(ONE, &token).await.allocation.unwrap();
    let layout = allocation.parse_layout().unwrap().layout;
    assert_eq!(layout.id, "CUSTOM_A");
    let root = layout.raid.iter().find(|raid| raid.arrayname == "/dev/md0").unwrap();
    assert_eq!((root.devices.len(), root.level), (2, model::layout::RaidLevel::Raid1));
    assert_eq!(allocation.steps.last().unwrap().step, "create_configuration");
    let request =
        plan::request_from_allocation::build_request(&allocation::AssignedMachine::default(), ONE, &allocation, &[]);
    let plan = plan::make_plan(
        &layout,
        &inventory(2),
        request,
        &mut plan::request_from_allocation::preview::placeholder_uuids(),
    )
    .unwrap();
    assert!(plan.to_string().contains("md0 raid1 metadata 1.2 (sda2 sdb2)"), "{plan}");
}

/// A trait of the machine applies its template even if the allocation does not request the trait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_with_unusable_enabled_template_is_refused() {
    let dir = with_traits("");
    let broken = "name: CUSTOM_A\nsteps: [{interface: vendor, step: unknown, args: {}, priority: 5}]\n";
    std::fs::write(dir.path().join("deploy-templates/a.yaml"), broken).unwrap();
    let two = format!("id: {TWO}\nname: two\nsize: c2\ntraits: [CUSTOM_A]\nmacs: ['52:54:00:00:00:02']\n");
    std::fs::write(dir.path().join("machines/two.yaml"), two).unwrap();
    let server = Running::start_in(dir).await;
    let why = "two.yaml:4:10: the template CUSTOM_A (deploy-templates/a.yaml:2:9): unknown step vendor.unknown";
    server.heard(why).await;
    let withheld = async || {
        let path = format!("/v1/machine/{ONE}/preview");
        server.call(&server.operator(), "GET", &path, &Value::Null).await.json()["withheld"].to_string()
    };
    let reaches = async |expected: &str| {
        let began = std::time::Instant::now();
        while !withheld().await.contains(expected) {
            assert!(began.elapsed() < PATIENCE, "{expected}: {}", withheld().await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    reaches("the machine's trait enables this template even if the allocation does not request the trait: correct the template").await;

    // A machine whose trait enables an invalid template cannot be allocated, neither by id nor by size.
    server.token(TWO).await;
    let allocate = async |field: &str, value: &str| {
        let wish = json!({"imageid": "debian-12", "filesystemlayoutid": "default", field: value});
        server.v1("POST", "/v1/machine/allocate", &wish).await
    };
    let answer = allocate("uuid", TWO).await;
    assert!(answer.status == 422 && answer.text().contains("\"the template CUSTOM_A ("), "{}", answer.text());
    let answer = allocate("sizeid", "c2").await;
    assert!(answer.status == 422 && answer.text().contains("no machine available"), "{}", answer.text());

    // The template requires arrays for which the machine has too few disks.
    server.write("deploy-templates/a.yaml", &json!({"name": "CUSTOM_A", "steps": [raid("1")]}).to_string());
    reaches("null").await;
    let registers = async |disks: u8| {
        let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
        let register = serde_json::to_value(RegisterRequest::new(ONE.to_owned(), inventory(disks))).unwrap();
        assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
        token
    };
    drop(registers(1).await);
    reaches("has 1 of the 2 devices").await;
    let token = registers(2).await;
    reaches("null").await;
    let allocation = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(allocation.steps.is_empty(), "an enabled template does not change the steps: {:?}", allocation.steps);

    // A machine that is already installed still boots from its disks.
    assert_eq!(server.begins_first(ONE, &token, &allocation.id).await, 200);
    server.report(ONE, &token, &allocation.id, true).await;
    server.write("deploy-templates/a.yaml", &broken.replace("unknown", "absent"));
    server.heard("unknown step vendor.absent").await;
    reaches("null").await;
    let body = json!({"id": ONE, "imageid": "debian-12"});
    let refused = server.v1("POST", &format!("/v1/machine/{ONE}/reinstall"), &body).await;
    assert!(refused.status != 200 && refused.text().contains("unknown step vendor.absent"), "{}", refused.text());
}
