//! Reading and changing the BIOS attributes of a Redfish service.

use super::*;
use crate::TargetMachine;
use crate::redfish::RedfishMachine;
use model::bmc::{Bmc, BmcAddress};
use model::secret_text::SecretText;
use testing::http::{Request, ResponseBehavior, Server};

const SYSTEM: &str = "/redfish/v1/Systems/1";
const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

/// Starts a service with one system. `bios` is the link from the system to its Bios resource.
fn service(bios: Option<&'static str>) -> Server {
    Server::start(Vec::new(), move |request: &Request| {
        let boot = json!({"BootSourceOverrideTarget": "None", "BootSourceOverrideTarget@Redfish.AllowableValues": ["Pxe", "Hdd"]});
        let reset = json!({"#ComputerSystem.Reset": {"target": "/reset"}});
        let document = match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/redfish/v1/Systems") => json!({"Members": [{"@odata.id": SYSTEM}]}),
            ("GET", SYSTEM) => {
                let link = bios.map(|path| json!({"@odata.id": path}));
                json!({"UUID": ID, "PowerState": "On", "Boot": boot, "Actions": reset, "Bios": link})
            }
            ("GET", "/bios") => json!({"Attributes": {"Vmx": "Off", "Cores": 4}, "AttributeRegistry": "B.1",
                "@Redfish.Settings": {"SettingsObject": {"@odata.id": "/settings"}, "SupportedApplyTimes": ["OnReset"]},
                "Actions": {"#Bios.ResetBios": {"target": "/reset-bios"}}}),
            ("GET", "/fixed") => json!({"Attributes": {"Vmx": "Off"}}),
            ("GET", "/settings") => json!({"Attributes": {"Vmx": "On"}}),
            ("GET", "/redfish/v1/Registries") => {
                json!({"Members": [{"@odata.id": "/redfish/v1/Registries/Messages"}, {"@odata.id": "/redfish/v1/Registries/BiosAttributeRegistry"}]})
            }
            ("GET", "/redfish/v1/Registries/BiosAttributeRegistry") => {
                json!({"Id": "other", "Location": [{"Language": "de", "Uri": "/de"}, {"Language": "en", "Uri": "/en"}]})
            }
            ("GET", "/en") => json!({"Id": "B.1", "RegistryEntries": {"Attributes": [
                {"AttributeName": "Vmx", "Value": [{"ValueName": "On"}, {"ValueName": "Off"}], "DefaultValue": "Off"},
                {"AttributeName": "Cores", "ReadOnly": true, "LowerBound": 1, "UpperBound": 8}]}}),
            ("GET", _) => return ResponseBehavior::respond(404, "{}"),
            _ => return ResponseBehavior::respond(204, ""),
        };
        ResponseBehavior {
            headers: vec![("ETag", "\"7\"".to_owned())],
            ..ResponseBehavior::respond(200, &document.to_string())
        }
    })
}

fn bmc(server: &Server) -> Bmc {
    let at = BmcAddress::Redfish { url: server.url("").trim_end_matches('/').to_owned(), system: None };
    Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false }
}

fn target(uuid: &str) -> TargetMachine {
    TargetMachine { uuid: Some(uuid.to_owned()), ..TargetMachine::default() }
}

#[test]
fn current_and_pending_values_and_their_registry_are_read() {
    let server = service(Some("/bios"));
    let bmc = bmc(&server);
    let state = RedfishMachine::connect(&bmc, &target(ID)).unwrap().read_described_state().unwrap();
    assert_eq!((state.power.as_deref(), state.boot_targets.len()), (Some("On"), 2));
    let bios = state.bios.unwrap();
    assert_eq!((&bios.current["Vmx"], &bios.pending["Vmx"]), (&json!("Off"), &json!("On")));
    assert!(bios.is_settable() && bios.is_resettable());
    let vmx = &bios.registry["Vmx"];
    assert_eq!((vmx.value.as_ref().unwrap().len(), &vmx.default_value), (2, &Some(json!("Off"))));
    assert_eq!((bios.registry["Cores"].read_only, bios.registry["Cores"].upper_bound), (Some(true), Some(8)));
}

#[test]
fn changes_are_requested_with_etag_and_apply_time() {
    let server = service(Some("/bios"));
    let bmc = bmc(&server);
    let machine = RedfishMachine::connect(&bmc, &target(ID)).unwrap();
    let bios = machine.read_state().unwrap().bios.unwrap();
    let last_change = || server.requests().into_iter().rfind(|request| request.method != "GET").unwrap();
    let last = || {
        let request = last_change();
        (request.line(), serde_json::from_str::<Value>(&request.body).unwrap())
    };
    machine.set_attributes(&bios, &[BiosSetting { name: "Vmx".to_owned(), value: json!("On") }]).unwrap();
    let body = json!({"Attributes": {"Vmx": "On"}, "@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}});
    assert_eq!(last(), ("PATCH /settings".to_owned(), body));
    assert_eq!(last_change().header("if-match"), Some("\"7\""));
    machine.reset_attributes(&bios).unwrap();
    assert_eq!(last(), ("POST /reset-bios".to_owned(), json!({})));
    // The service accepts the change, but does not change the pending value.
    let why =
        machine.set_attributes(&bios, &[BiosSetting { name: "Vmx".to_owned(), value: json!("Off") }]).unwrap_err();
    assert!(why.to_string().contains("accepted the BIOS settings, but reports Vmx=\"On\" instead of \"Off\""), "{why}");
}

#[test]
fn missing_and_read_only_bios_resources_are_recognized() {
    let server = service(None);
    let bmc_without = bmc(&server);
    let machine = RedfishMachine::connect(&bmc_without, &target(ID)).unwrap();
    assert_eq!(machine.read_described_state().unwrap().bios, None);

    let server = service(Some("/fixed"));
    let bmc_fixed = bmc(&server);
    let machine = RedfishMachine::connect(&bmc_fixed, &target(ID)).unwrap();
    let bios = machine.read_described_state().unwrap().bios.unwrap();
    assert!(!bios.is_settable() && !bios.is_resettable());
    let why = machine.set_attributes(&bios, &[]).unwrap_err().to_string();
    assert!(why.contains("no settings resource"), "{why}");
    let why = machine.reset_attributes(&bios).unwrap_err().to_string();
    assert!(why.contains("does not support Bios.ResetBios") && !why.contains("hunter2"), "{why}");

    // Following a link to another host would send the password to that host.
    let server = service(Some("//other/bios"));
    let bmc_linked = bmc(&server);
    let why = RedfishMachine::connect(&bmc_linked, &target(ID)).unwrap().read_state().unwrap_err().to_string();
    assert!(why.contains("is not a path"), "{why}");
    let other = "4c4c4544-0051-3010-8052-b4c04f4dffff";
    let why = RedfishMachine::connect(&bmc_linked, &target(other)).err().unwrap().to_string();
    assert!(why.contains("belongs to machine"), "{why}");
}
