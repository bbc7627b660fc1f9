//! Selection of the machine's system among the systems of a Redfish controller, and error messages of controllers.

use super::*;
use crate::switch_power;
use model::secret_text::SecretText;
use testing::http::{Request, ResponseBehavior, Server};

const ONE: &str = "/redfish/v1/Systems/1";
const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

fn bmc(server: &Server, system: Option<&str>) -> Bmc {
    let url = server.url("").trim_end_matches('/').to_owned();
    let at = BmcAddress::Redfish { url, system: system.map(str::to_owned) };
    Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false }
}

/// Restarts the machine whose firmware reports this UUID.
fn restart(bmc: &Bmc, id: Option<&str>) -> Result<Option<String>> {
    let target = TargetMachine { uuid: id.map(str::to_owned), ..TargetMachine::default() };
    switch_power(bmc, PowerAction::Cycle, &target, &crate::Unguarded)
}

#[test]
fn reads_power_state_of_system_with_machine_uuid() {
    let target = |uuid: &str| TargetMachine { uuid: Some(uuid.to_owned()), ..TargetMachine::default() };
    let server = systems(&["other", "4C4C4544-0051-3010-8052-B4C04F4D0001"]);
    assert_eq!(crate::read_power_state(&bmc(&server, None), &target(ID)).unwrap(), (PowerState::On, None));
    let foreign = systems(&["4c4c4544-0051-3010-8031-b2c04f333633"]);
    assert!(crate::read_power_state(&bmc(&foreign, None), &target(ID)).is_err());
    assert!(switches(&server).is_empty() && switches(&foreign).is_empty());
}

#[test]
fn redfish_power_state_names_are_parsed() {
    for (name, state) in [
        ("On", PowerState::On),
        ("Off", PowerState::Off),
        ("PoweringOn", PowerState::Changing),
        ("PoweringOff", PowerState::Changing),
        ("Paused", PowerState::Unknown),
        ("", PowerState::Unknown),
    ] {
        assert_eq!(PowerState::from_name(name), state, "{name}");
    }
}

#[test]
fn system_with_uuid_of_machine_is_selected() {
    let server = systems(&["other", "other", "4C4C4544-0051-3010-8052-B4C04F4D0001"]);
    restart(&bmc(&server, None), Some(ID)).unwrap();
    assert_eq!(switches(&server), ["POST /redfish/v1/Systems/2/Actions/ComputerSystem.Reset"]);
    let why = restart(&bmc(&server, None), Some("x")).unwrap_err().to_string();
    assert!(why.contains("manages 3 systems") && why.contains("/redfish/v1/Systems/1"), "{why}");
    assert_eq!(switches(&server).len(), 1);
}

/// Starts a controller with one system for each of these UUIDs.
fn systems(uuids: &'static [&'static str]) -> Server {
    Server::start(Vec::new(), move |request: &Request| {
        let links: Vec<_> =
            (0..uuids.len()).map(|number| json!({ "@odata.id": format!("/redfish/v1/Systems/{number}") })).collect();
        match (request.method.as_str(), request.path.strip_prefix("/redfish/v1/Systems")) {
            ("GET", Some("")) => ResponseBehavior::respond(200, &json!({ "Members": links }).to_string()),
            ("GET", Some(number)) => {
                let target = format!("/redfish/v1/Systems{number}/Actions/ComputerSystem.Reset");
                let uuid = uuids[number[1..].parse::<usize>().unwrap()];
                let uuid = if uuid.is_empty() { Value::Null } else { json!(uuid) };
                let actions = json!({ "#ComputerSystem.Reset": { "target": target } });
                ResponseBehavior::respond(
                    200,
                    &json!({ "UUID": uuid, "PowerState": "On", "Actions": actions }).to_string(),
                )
            }
            _ => ResponseBehavior::respond(204, ""),
        }
    })
}

fn switches(server: &Server) -> Vec<String> {
    server.requests().iter().filter(|request| request.method == "POST").map(Request::line).collect()
}

#[test]
fn single_system_with_differing_uuid_is_not_switched() {
    let own = "4c4c4544-0051-3010-8031-b2c04f333633";
    for reported in [own, "4C4C4544-0051-3010-8031-B2C04F333633"] {
        let server = systems(if reported == own {
            &["4c4c4544-0051-3010-8031-b2c04f333633"]
        } else {
            &["4C4C4544-0051-3010-8031-B2C04F333633"]
        });
        let other = "aaaaaaaa-0051-3010-8031-b2c04f333633";
        let error = restart(&bmc(&server, None), Some(other)).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        let why = error.to_string();
        assert!(why.contains(own) && why.contains(other) && why.contains("/redfish/v1/Systems/0"), "{why}");
        assert!(switches(&server).is_empty());
        // A UUID with swapped bytes is also accepted. If the URL of the controller contains a path, the path selects
        // the system, and UUIDs are not compared.
        for id in [own, "44454c4c-5100-1030-8031-b2c04f333633"] {
            restart(&bmc(&server, None), Some(id)).unwrap();
        }
        restart(&bmc(&server, None), None).unwrap();
        restart(&bmc(&server, Some("/redfish/v1/Systems/0")), Some(other)).unwrap();
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
        restart(&bmc(&server, None), Some(ID)).unwrap();
        assert_eq!(switches(&server).len(), 1, "{uuids:?}");
    }
}

/// The file of the machine contains the address of another machine's controller.
#[test]
fn system_of_another_known_machine_is_refused() {
    const OTHER: &str = "4c4c4544-0051-3010-8052-b4c04f4d0002";
    let of_machine = |uuid: &str, other: &str| {
        let other_uuids = vec![Uuid::parse_str(other).unwrap()];
        TargetMachine { uuid: Some(uuid.to_owned()), other_uuids, ..TargetMachine::default() }
    };
    let cycle = |bmc: &Bmc, target: &TargetMachine| switch_power(bmc, PowerAction::Cycle, target, &crate::Unguarded);
    for uuids in [&[OTHER][..], &["44454c4c-5100-1030-8052-b4c04f4d0002"]] {
        let server = systems(uuids);
        for own in [ID, "03000200-0400-0500-0006-000700080009"] {
            for system in [None, Some("/redfish/v1/Systems/0")] {
                let error = cycle(&bmc(&server, system), &of_machine(own, OTHER)).unwrap_err();
                assert!(error.is_refusal() && error.to_string().contains("belongs to machine"), "{error}");
            }
        }
        assert_eq!(switches(&server), [] as [String; 0]);
        cycle(&bmc(&server, Some("/redfish/v1/Systems/0")), &of_machine(OTHER, ID)).unwrap();
        assert_eq!(switches(&server).len(), 1, "the controller of the machine itself");
    }
}

/// Several machine files contain the address of the controller without the path of a system.
#[test]
fn shared_controller_must_report_the_uuid_of_the_machine() {
    let target =
        |uuid: &str| TargetMachine { uuid: Some(uuid.to_owned()), must_match_uuid: true, ..TargetMachine::default() };
    let cycle = |server: &Server, uuid: &str| {
        switch_power(&bmc(server, None), PowerAction::Cycle, &target(uuid), &crate::Unguarded)
    };
    const PLACEHOLDER: &str = "03000200-0400-0500-0006-000700080009";
    for uuids in [&[PLACEHOLDER][..], &[""]] {
        let server = systems(uuids);
        for own in [ID, PLACEHOLDER] {
            let why = cycle(&server, own).unwrap_err().to_string();
            assert!(why.contains("several machine files contain this address"), "{why}");
        }
        assert_eq!(switches(&server), [] as [String; 0]);
    }
    let single = systems(&["4C4C4544-0051-3010-8052-B4C04F4D0001"]);
    let chassis = systems(&["other", "4C4C4544-0051-3010-8052-B4C04F4D0001"]);
    for server in [single, chassis] {
        cycle(&server, ID).unwrap();
        assert_eq!(switches(&server).len(), 1);
    }
}

#[test]
fn byte_swapped_uuid_is_selected_if_none_is_identical() {
    let swapped = "44454c4c-5100-1030-8052-b4c04f4d0001";
    let server = systems(&["other", "44454c4c-5100-1030-8052-b4c04f4d0001"]);
    restart(&bmc(&server, None), Some(ID)).unwrap();
    let server_of_both = systems(&["44454c4c-5100-1030-8052-b4c04f4d0001", "4c4c4544-0051-3010-8052-b4c04f4d0001"]);
    restart(&bmc(&server_of_both, None), Some(ID)).unwrap();
    let reset = |number: usize| format!("POST /redfish/v1/Systems/{number}/Actions/ComputerSystem.Reset");
    assert_eq!((switches(&server), switches(&server_of_both)), (vec![reset(1)], vec![reset(1)]));
    // A default UUID that two blades report selects neither of them.
    let shared = "03000200-0400-0500-0006-000700080009";
    let server = systems(&["03000200-0400-0500-0006-000700080009", "03000200-0400-0500-0006-000700080009"]);
    let why = restart(&bmc(&server, None), Some(shared)).unwrap_err().to_string();
    assert!(why.contains("manages 2 systems"), "{why}");
    let server = systems(&["44454c4c-5100-1030-8052-b4c04f4d0001", "44454c4c-5100-1030-8052-b4c04f4d0001"]);
    let why = restart(&bmc(&server, None), Some(swapped)).unwrap_err().to_string();
    assert!(why.contains("manages 2 systems") && switches(&server).is_empty(), "{why}");
}

#[test]
fn the_controllers_messages_are_in_the_error() {
    for (status, body, expected) in [
        (
            500,
            r#"{"error": {"message": "general", "@Message.ExtendedInfo": [{"Message": "the fan is on fire"}]}}"#,
            "the fan is on fire",
        ),
        (
            400,
            r#"{"error": {"@Message.ExtendedInfo": [{"Message": "One."}, {"Message": "Two."}, {"Message": "Two."}]}}"#,
            "One. Two.",
        ),
        (400, r#"{"error": {"@Message.ExtendedInfo": {"Message": "not a list"}}}"#, "not a list"),
        (400, r#"{"@Message.ExtendedInfo": [{"Message": "not in error"}]}"#, "not in error"),
        (
            400,
            r#"{"error": {"@Message.ExtendedInfo": [{"MessageID": "iLO.0.10.X", "MessageArgs": ["Power is off"]}]}}"#,
            "iLO.0.10.X: Power is off",
        ),
        (400, r#"{"error": {"message": "general", "@Message.ExtendedInfo": []}}"#, "general"),
        (503, "<html>busy</html>", "<html>busy</html>"),
        (503, "", "the response contains no reason"),
        (403, r#"{"error": {"message": "change it first"}}"#, "403 Forbidden: change it first"),
        (401, r#"{"error": {"message": "hunter2 is wrong"}}"#, "rejected the username and password: … is wrong"),
        (200, r#"{"Actions": {}}"#, "does not support ComputerSystem.Reset"),
        (200, "[1", "cannot parse the response of"),
    ] {
        let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(status, body));
        let why = restart(&bmc(&server, Some(ONE)), None).unwrap_err().to_string();
        assert!(why.contains(expected) && !why.contains("hunter"), "{status} {body}: {why}");
    }
}

#[test]
fn no_password_is_sent_to_another_origin() {
    let other = systems(&[ID]);
    for (status, location) in
        [(301, other.url("redfish/v1/Systems/1/")), (307, other.url("x")), (308, "//127.0.0.2/x".to_owned())]
    {
        let server = Server::start(Vec::new(), move |_| ResponseBehavior {
            headers: vec![("Location", location.clone())],
            ..ResponseBehavior::respond(status, "")
        });
        let why = restart(&bmc(&server, Some(ONE)), None).unwrap_err().to_string();
        assert!(
            why.contains("to which the password is not sent; if that address belongs to this controller, specify that address for the controller"),
            "{why}"
        );
    }
    assert!(other.requests().is_empty());
    // The client also does not follow links to other origins.
    let link = other.url("redfish/v1/Systems/1");
    let members = json!({ "Members": [{ "@odata.id": link }] }).to_string();
    let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(200, &members));
    let why = restart(&bmc(&server, None), None).unwrap_err().to_string();
    assert!(why.contains("which is not a path on this controller") && other.requests().is_empty(), "{why}");
}

#[test]
fn changes_are_redirected_only_with_their_method() {
    for (status, location, expected) in [
        (307, "/reset-elsewhere", true),
        (308, "/reset-elsewhere", true),
        (301, "/reset/", true),
        (302, "/reset/", true),
        (301, "/reset-elsewhere", false),
        (302, "/", false),
        (303, "/reset/", false),
    ] {
        let server = Server::start(Vec::new(), move |request: &Request| match request.line().as_str() {
            "POST /reset" => ResponseBehavior {
                headers: vec![("Location", location.to_owned())],
                ..ResponseBehavior::respond(status, "")
            },
            "POST /reset/" | "POST /reset-elsewhere" => ResponseBehavior::respond(204, ""),
            _ => ResponseBehavior::respond(
                200,
                r##"{"PowerState": "On", "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}}"##,
            ),
        });
        let done = restart(&bmc(&server, Some(ONE)), None);
        assert_eq!(done.is_ok(), expected, "{status} {location}: {done:?}");
        assert_eq!(switches(&server).len(), if expected { 2 } else { 1 });
        let bodies: Vec<_> = server
            .requests()
            .into_iter()
            .filter(|request| request.method == "POST")
            .map(|request| request.body)
            .collect();
        assert!(bodies.iter().all(|body| body == r#"{"ResetType":"ForceRestart"}"#), "{bodies:?}");
    }
}

#[test]
fn untrusted_certificate_is_accepted_only_with_insecure_option() {
    let server = Server::start_tls(Vec::new(), |_| ResponseBehavior::respond(401, ""));
    let strict = bmc(&server, Some(ONE));
    let why = restart(&strict, None).unwrap_err().to_string();
    assert!(why.contains("no response from the management controller"), "{why}");
    assert!(server.requests().is_empty());
    let lax = Bmc { insecure: true, ..strict };
    let why = restart(&lax, None).unwrap_err().to_string();
    assert!(why.contains("rejected the username"), "{why}");
}
