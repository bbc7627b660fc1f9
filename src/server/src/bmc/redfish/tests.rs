//! A controller of Redfish: what it is asked, and which of its systems.

use super::*;
use crate::bmc::switch_power;
use model::bmc::BmcAddress;
use model::registry_auth::SecretText;
use testing::http::{Act, Request, Server};

const ONE: &str = "/redfish/v1/Systems/1";
const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

/// A controller with so many systems, of which the last is the machine, with this power.
fn controller(systems: usize, power: &'static str) -> Server {
    let system = move |number: usize| {
        let uuid = if number == systems { ID.to_uppercase() } else { "other".to_owned() };
        json!({ "UUID": uuid, "PowerState": power, "Actions": { "#ComputerSystem.Reset": {
            "target": format!("/redfish/v1/Systems/{number}/Actions/ComputerSystem.Reset"),
            "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"] } } })
    };
    Server::start(Vec::new(), move |request: &Request| {
        let links: Vec<_> =
            (1..=systems).map(|number| json!({ "@odata.id": format!("/redfish/v1/Systems/{number}") })).collect();
        match (request.method.as_str(), request.path.strip_prefix("/redfish/v1/Systems")) {
            _ if request.authorization.as_deref() != Some("Basic YWRtaW46aHVudGVyMg==") => Act::says(401, "{}"),
            ("GET", Some("")) => Act::says(200, &json!({ "Members": links }).to_string()),
            ("GET", Some(number)) => {
                let body = system(number[1..].parse().unwrap()).to_string();
                Act { headers: vec![("ETag", "W/\"7\"".to_owned())], ..Act::says(200, &body) }
            }
            ("PATCH" | "POST", Some(_)) => Act::says(204, ""),
            _ => Act::says(404, "{}"),
        }
    })
}

fn bmc(server: &Server, system: Option<&str>) -> Bmc {
    let url = server.url("").trim_end_matches('/').to_owned();
    let at = BmcAddress::Redfish { url, system: system.map(str::to_owned) };
    Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false }
}

fn last(server: &Server) -> (String, Value) {
    let request = server.requests().pop().unwrap();
    (request.line(), serde_json::from_str(&request.body).unwrap())
}

#[test]
fn each_action_is_what_the_system_can_do() {
    for (power, action, kind) in [
        ("Off", PowerAction::On, "On"),
        ("On", PowerAction::Off, "ForceOff"),
        ("On", PowerAction::Cycle, "ForceRestart"),
        ("Off", PowerAction::Cycle, "On"),
    ] {
        let server = controller(1, power);
        switch_power(&bmc(&server, None), action, Some(ID)).unwrap();
        let expected = (format!("POST {ONE}/Actions/ComputerSystem.Reset"), json!({ "ResetType": kind }));
        assert_eq!(last(&server), expected);
    }
    let server = controller(1, "On");
    switch_power(&bmc(&server, Some(ONE)), PowerAction::Pxe, None).unwrap();
    let (line, body) = last(&server);
    assert_eq!(line, format!("PATCH {ONE}"));
    let once = json!({ "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe" });
    assert_eq!(body, json!({ "Boot": once }));
    assert_eq!(server.requests().pop().unwrap().header("if-match"), Some("W/\"7\""));
}

#[test]
fn of_several_systems_the_one_with_the_machines_id_is_meant() {
    let server = controller(3, "On");
    switch_power(&bmc(&server, None), PowerAction::Off, Some(ID)).unwrap();
    assert_eq!(last(&server).0, "POST /redfish/v1/Systems/3/Actions/ComputerSystem.Reset");
    let why = switch_power(&bmc(&server, None), PowerAction::Off, Some("x")).unwrap_err().to_string();
    assert!(why.contains("has 3 systems") && why.contains("/redfish/v1/Systems/2"), "{why}");
    assert!(server.requests().iter().filter(|request| request.method == "POST").count() == 1);
}

/// A controller with these UUIDs, one for each of its systems.
fn systems(uuids: &'static [&'static str]) -> Server {
    Server::start(Vec::new(), move |request: &Request| {
        let links: Vec<_> =
            (0..uuids.len()).map(|number| json!({ "@odata.id": format!("/redfish/v1/Systems/{number}") })).collect();
        match (request.method.as_str(), request.path.strip_prefix("/redfish/v1/Systems")) {
            ("GET", Some("")) => Act::says(200, &json!({ "Members": links }).to_string()),
            ("GET", Some(number)) => {
                let target = format!("/redfish/v1/Systems{number}/Actions/ComputerSystem.Reset");
                let uuid = uuids[number[1..].parse::<usize>().unwrap()];
                let uuid = if uuid.is_empty() { Value::Null } else { json!(uuid) };
                let actions = json!({ "#ComputerSystem.Reset": { "target": target } });
                Act::says(200, &json!({ "UUID": uuid, "PowerState": "On", "Actions": actions }).to_string())
            }
            _ => Act::says(204, ""),
        }
    })
}

fn switches(server: &Server) -> Vec<String> {
    server.requests().iter().filter(|request| request.method == "POST").map(Request::line).collect()
}

#[test]
fn the_only_system_with_another_uuid_is_not_switched() {
    let own = "4c4c4544-0051-3010-8031-b2c04f333633";
    for reported in [own, "4C4C4544-0051-3010-8031-B2C04F333633"] {
        let server = systems(if reported == own {
            &["4c4c4544-0051-3010-8031-b2c04f333633"]
        } else {
            &["4C4C4544-0051-3010-8031-B2C04F333633"]
        });
        let other = "aaaaaaaa-0051-3010-8031-b2c04f333633";
        let error = switch_power(&bmc(&server, None), PowerAction::Off, Some(other)).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        let why = error.to_string();
        assert!(why.contains(own) && why.contains(other) && why.contains("/redfish/v1/Systems/0"), "{why}");
        assert!(switches(&server).is_empty());
        // Byte-swapped it is the same machine; and a path behind the address is the operator's word.
        for id in [own, "44454c4c-5100-1030-8031-b2c04f333633"] {
            switch_power(&bmc(&server, None), PowerAction::Off, Some(id)).unwrap();
        }
        switch_power(&bmc(&server, None), PowerAction::Off, None).unwrap();
        switch_power(&bmc(&server, Some("/redfish/v1/Systems/0")), PowerAction::Off, Some(other)).unwrap();
        assert_eq!(switches(&server).len(), 4);
    }
}

#[test]
fn a_system_without_a_usable_uuid_is_switched() {
    for uuids in [
        &[""][..],
        &["00000000-0000-0000-0000-000000000000"],
        &["ffffffff-ffff-ffff-ffff-ffffffffffff"],
        &["03000200-0400-0500-0006-000700080009"],
        &["00020003-0004-0005-0006-000700080009"],
        &["not a UUID"],
    ] {
        let server = systems(uuids);
        switch_power(&bmc(&server, None), PowerAction::Off, Some(ID)).unwrap();
        assert_eq!(switches(&server).len(), 1, "{uuids:?}");
    }
}

#[test]
fn of_several_systems_the_byte_swapped_one_is_meant_if_none_is_identical() {
    let swapped = "44454c4c-5100-1030-8052-b4c04f4d0001";
    let server = systems(&["other", "44454c4c-5100-1030-8052-b4c04f4d0001"]);
    switch_power(&bmc(&server, None), PowerAction::Off, Some(ID)).unwrap();
    let server_of_both = systems(&["44454c4c-5100-1030-8052-b4c04f4d0001", "4c4c4544-0051-3010-8052-b4c04f4d0001"]);
    switch_power(&bmc(&server_of_both, None), PowerAction::Off, Some(ID)).unwrap();
    let reset = |number: usize| format!("POST /redfish/v1/Systems/{number}/Actions/ComputerSystem.Reset");
    assert_eq!((switches(&server), switches(&server_of_both)), (vec![reset(1)], vec![reset(1)]));
    // A default that two blades share selects neither.
    let shared = "03000200-0400-0500-0006-000700080009";
    let server = systems(&["03000200-0400-0500-0006-000700080009", "03000200-0400-0500-0006-000700080009"]);
    let why = switch_power(&bmc(&server, None), PowerAction::Off, Some(shared)).unwrap_err().to_string();
    assert!(why.contains("has 2 systems"), "{why}");
    let server = systems(&["44454c4c-5100-1030-8052-b4c04f4d0001", "44454c4c-5100-1030-8052-b4c04f4d0001"]);
    let why = switch_power(&bmc(&server, None), PowerAction::Off, Some(swapped)).unwrap_err().to_string();
    assert!(why.contains("has 2 systems") && switches(&server).is_empty(), "{why}");
}

#[test]
fn what_goes_wrong_is_said_without_the_password() {
    let server = controller(1, "On");
    let wrong = Bmc { password: SecretText::new("hunter3"), ..bmc(&server, None) };
    let why = switch_power(&wrong, PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("rejected the username and password") && !why.contains("hunter"), "{why}");

    let error = r#"{"error": {"message": "general", "@Message.ExtendedInfo": [{"Message": "the fan is on fire"}]}}"#;
    let server = Server::start(Vec::new(), move |_| Act::says(500, error));
    let why = switch_power(&bmc(&server, Some(ONE)), PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("the fan is on fire"), "{why}");

    let other = controller(1, "On");
    let place = other.url("redfish/v1/Systems/1");
    let server =
        Server::start(Vec::new(), move |_| Act { headers: vec![("Location", place.clone())], ..Act::says(307, "") });
    let why = switch_power(&bmc(&server, Some(ONE)), PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("to which the password is not sent"), "{why}");
    assert!(other.requests().is_empty());

    let server = Server::start(Vec::new(), |_| Act::says(200, r#"{"Actions": {}}"#));
    let why = switch_power(&bmc(&server, Some(ONE)), PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("does not support ComputerSystem.Reset"), "{why}");
}

#[test]
fn a_certificate_that_nobody_knows_is_taken_only_when_that_is_said() {
    let server = Server::start_tls(Vec::new(), |_| Act::says(401, ""));
    let strict = bmc(&server, Some(ONE));
    let why = switch_power(&strict, PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("no response from the management controller"), "{why}");
    assert!(server.requests().is_empty());
    let lax = Bmc { insecure: true, ..strict };
    let why = switch_power(&lax, PowerAction::On, None).unwrap_err().to_string();
    assert!(why.contains("rejected the username"), "{why}");
}
