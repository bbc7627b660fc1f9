//! Power control of machines through the server.

use super::*;
use bmc::redfish::test_double::{Ignores, Quirk, RedfishDouble, SYSTEM};
use control::agent_api_types::RegisterRequest;
use model::inventory::{FirmwareType, Inventory};

/// Returns the field of a machine file that contains the address of this controller.
pub(super) fn bmc_field(controller: &RedfishDouble) -> String {
    format!("bmc: {{url: '{}{SYSTEM}', username: admin, password: hunter2}}\n", controller.url())
}

impl Running {
    async fn switch(&self, token: &str, action: &str) -> Answer {
        self.call(token, "POST", &format!("/v1/machine/{TWO}/power"), &json!({ "action": action })).await
    }

    /// Writes the machine file, and requests the action as soon as the server has read the file.
    async fn switches_soon(&self, file: &str, action: &str) -> Answer {
        self.write("machines/two.yaml", &format!("id: {TWO}\nname: two\n{file}"));
        let began = std::time::Instant::now();
        loop {
            let answer = self.switch(&self.operator(), action).await;
            if answer.status != 409 {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "{}", answer.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_requests_use_the_controller_of_the_machine_file() {
    let server = Running::start().await;
    let answer = server.switch(&server.operator(), "on").await;
    let words = "does not name a management controller";
    assert!(answer.status == 409 && answer.text().contains(words), "{}", answer.text());
    assert_eq!(answer.json()["code"], "controller-missing");

    let controller = RedfishDouble::start("On", &[]).with_uuid(TWO);
    let answer = server.switches_soon(&bmc_field(&controller), "cycle").await;
    assert_eq!((answer.status, answer.json()), (200, json!({ "action": "cycle" })), "{}", answer.text());
    assert_eq!(controller.changes(), ["POST ForceRestart"]);
    server.heard("two: switched off and on, as requested by 127.0.0.1").await;
    assert_eq!(server.switch("wrong", "off").await.status, 401);
    assert_eq!(server.switch(&server.operator(), "melt").await.status, 400);
    assert!(!server.heard.text().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_power_state_is_read_from_the_controller() {
    let server = Running::start().await;
    let path = format!("/v1/machine/{TWO}/power");
    let answer = server.call(&server.operator(), "GET", &path, &json!(null)).await;
    assert_eq!((answer.status, answer.json()["code"].clone()), (409, json!("controller-missing")));

    let controller = RedfishDouble::start("On", &[]).with_uuid(TWO);
    for (action, state) in [("on", "on"), ("off", "off")] {
        assert_eq!(server.switches_soon(&bmc_field(&controller), action).await.status, 200);
        let answer = server.call(&server.operator(), "GET", &path, &json!(null)).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "state": state })), "{}", answer.text());
    }
    assert_eq!(server.call("wrong", "GET", &path, &json!(null)).await.status, 401);

    let server = Running::start().await;
    let unreachable = "bmc: {url: 'https://127.0.0.1:1', username: admin, password: hunter2}\n";
    assert_eq!(server.switches_soon(unreachable, "on").await.status, 502);
    let answer = server.call(&server.operator(), "GET", &path, &json!(null)).await;
    assert_eq!((answer.status, answer.json()["code"].clone()), (502, json!("controller-failed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ineffective_power_change_is_a_bad_gateway() {
    let server = Running::start().await;
    let controller = RedfishDouble::start("On", &[Ignores]).with_uuid(TWO);
    for (action, expected) in
        [("pxe", "reports BootSourceOverrideTarget=None instead of Pxe"), ("off", "reports PowerState On, not Off")]
    {
        let answer = server.switches_soon(&bmc_field(&controller), action).await;
        assert!(answer.status == 502 && answer.text().contains(expected), "{}", answer.text());
        assert_eq!(answer.json()["code"], "controller-failed");
    }
    assert_eq!(controller.changes(), ["PATCH 1 UEFI", "POST ForceOff"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pxe_action_uses_the_registered_firmware_type() {
    const NONE: &[Quirk] = &[];
    for (firmware, present, expected) in [
        (Some(FirmwareType::Uefi), "Legacy", "UEFI"),
        (Some(FirmwareType::Bios), "UEFI", "Legacy"),
        (None, "UEFI", "UEFI"),
    ] {
        let server = Running::start().await;
        let controller = RedfishDouble::start("On", NONE).with_uuid(TWO);
        controller.state().boot[2] = present.to_owned();
        if let Some(firmware) = firmware {
            let mut inventory = Inventory::default();
            inventory.system.firmware = firmware;
            let register = serde_json::to_value(RegisterRequest::new(TWO.to_owned(), inventory)).unwrap();
            let token = token_of(&server.boot(&format!("uuid={TWO}")).await.text());
            assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
        }
        let answer = server.switches_soon(&bmc_field(&controller), "pxe").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(controller.state().boot, ["Once", "Pxe", expected]);
    }
}
