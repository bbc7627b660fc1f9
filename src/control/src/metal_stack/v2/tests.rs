//! API v2 with a test double of the server. `metal_conformance_tests` in the crate `agent` use a server with the
//! published validation rules.

use super::*;
use crate::ControlPlane;
use crate::fake_control_plane::ended;
use crate::metal_stack::{MetalControlPlane, UNKNOWN_PASSWORD_TEXT};
use common::error::Phase;
use model::install_report::{FailureSummary, ProgressEvent};
use model::inventory::Inventory;
use std::path::Path;
use testing::http::{Request, ResponseBehavior, Server};

const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4e4232";

const QUICK: V2Timeouts = V2Timeouts {
    retries: RetryPolicy {
        patience: Duration::from_secs(60),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(1),
    },
    stream: Duration::from_millis(200),
    pause: Duration::from_millis(1),
    silence: Duration::from_millis(200),
    long_silence: Duration::from_millis(200),
    confirm: Duration::ZERO,
};

/// Timeouts for responses that must arrive even if this host is busy.
const SURE: V2Timeouts = V2Timeouts {
    stream: Duration::from_secs(60),
    silence: Duration::from_secs(60),
    long_silence: Duration::from_secs(60),
    confirm: Duration::from_secs(60),
    ..QUICK
};

/// Starts pixie and the control plane at the same address. `act` returns the response to a call; its first argument is
/// the name of the method.
fn control(
    pace: V2Timeouts,
    act: impl Fn(&str, &Request) -> ResponseBehavior + Send + Sync + 'static,
) -> (MetalControlPlane, Server) {
    let act = move |request: &Request| match request.path.strip_prefix(&format!("/{SERVICE}/")) {
        Some(method) => act(method, request),
        // The token of a machine does not permit this call.
        None if request.path.ends_with("/GetBMC") => ResponseBehavior::respond(403, r#"{"code": "permission_denied"}"#),
        // The response contains the address at which the request was received.
        None => {
            let url = format!("http://{}", request.header("host").unwrap());
            let client = json!({"metal_apiserver_url": url, "metal_hammer_token": format!("T{}", request.nth)});
            ResponseBehavior::respond(200, &json!({"client": client, "partition": "fra"}).to_string())
        }
    };
    let server = Server::start(Vec::new(), act);
    let pixie = server.url("certs");
    (booted(&pixie, pace, &FirmwareRecord::new(Path::new("/proc/nonexistent"))), server)
}

/// Boots the machine again. `record` is the record in its EFI variables.
fn booted(pixie: &str, pace: V2Timeouts, record: &FirmwareRecord) -> MetalControlPlane {
    let config = pixie_config::fetch_config(pixie, MACHINE_ID, NO_RETRIES).unwrap_or_else(|error| panic!("{error}"));
    let api = MetalApiV2::with_timeouts(pixie, MACHINE_ID, &config, record.clone(), pace)
        .unwrap_or_else(|error| panic!("{error}"));
    MetalControlPlane::with_api(Box::new(api), MACHINE_ID, &config.partition, record.clone()).unwrap()
}

fn silent() -> ResponseBehavior {
    ResponseBehavior { silent: true, ..ResponseBehavior::default() }
}

/// Returns a response with this message in an envelope. The stream stays open.
fn message(text: &str) -> ResponseBehavior {
    let head = [&[0][..], &(text.len() as u32).to_be_bytes()].concat();
    ResponseBehavior {
        body: Some([&head[..], text.as_bytes()].concat()),
        length: false,
        hold: true,
        ..ResponseBehavior::default()
    }
}

fn allocated(id: &str) -> ResponseBehavior {
    message(&json!({"allocation": {"uuid": id, "hostname": "h"}}).to_string())
}

fn requested_methods(server: &Server) -> Vec<String> {
    let name = |request: &Request| request.path.rsplit('/').next().unwrap_or_default().to_owned();
    server.requests().iter().map(name).filter(|name| name != MACHINE_ID && name != "GetBMC").collect()
}

#[test]
fn refused_token_is_fetched_again() {
    let (control, server) = control(SURE, |_, request| match request.authorization.as_deref() {
        Some("Bearer T0") => ResponseBehavior::respond(401, r#"{"code": "unauthenticated", "message": "expired"}"#),
        _ => ResponseBehavior::respond(200, "{}"),
    });
    control.register_machine(&Inventory::default()).unwrap();
    assert_eq!(requested_methods(&server), ["Register", "Register"]);
    let register: Value = serde_json::from_str(&server.requests().last().unwrap().body).unwrap();
    assert_eq!((register["partition"].as_str(), register["uuid"].as_str()), (Some("fra"), Some(MACHINE_ID)));
    assert_eq!(register["hardware"]["nics"][0], json!({"name": "lo", "mac": "00:00:00:00:00:00"}));
}

#[test]
fn permanent_refusal_is_not_retried() {
    const SWITCHES: &str = r#"{"code": "failed_precondition", "message": "not connected to exactly two switches"}"#;
    let (control, server) = control(SURE, |_, _| ResponseBehavior::respond(400, SWITCHES));
    let error = control.register_machine(&Inventory::default()).unwrap_err().to_string();
    assert!(error.contains("Register: ") && error.ends_with("not connected to exactly two switches"), "{error}");
    assert_eq!(requested_methods(&server), ["Register"]);
}

/// The stream is cut, ends with an error, stays silent, and finally sends the allocation. The machine registers only
/// once.
#[test]
fn ended_stream_is_reopened_until_allocation() {
    let (control, server) = control(QUICK, |_, request| match request.nth {
        0 => ResponseBehavior { body: Some(Vec::new()), ..ResponseBehavior::default() },
        1 => ResponseBehavior::respond(503, r#"{"code": "unavailable"}"#),
        2 => silent(),
        _ => allocated("a-1"),
    });
    let end = Instant::now() + Duration::from_secs(120);
    while !control.wait_for_allocation(Duration::from_secs(60)).unwrap() {
        assert!(Instant::now() < end, "{:?}", requested_methods(&server));
    }
    let methods = requested_methods(&server);
    assert!(methods.len() >= 4 && methods.iter().all(|call| call == "Wait"), "{methods:?}");
    let machine = control.fetch_machine().unwrap();
    let allocation = machine.allocation.unwrap();
    assert_eq!((machine.id.as_str(), allocation.id.as_str()), (MACHINE_ID, "a-1"));
    assert_eq!(allocation.console_password.len(), 16);
    assert_eq!(control.fetch_machine().unwrap().allocation.unwrap().console_password, allocation.console_password);
}

#[test]
fn unparsable_end_of_stream_is_reported() {
    let closed = "the server closed the stream";
    let unparsable = "cannot parse the response";
    for (text, reason) in
        [("", closed), ("{}", closed), ("{\"error\": {\"code\": \"unau", unparsable), ("<html>", unparsable)]
    {
        let brief = RetryPolicy { patience: Duration::from_millis(20), ..QUICK.retries };
        let (control, _server) = control(V2Timeouts { retries: brief, ..QUICK }, move |_, _| {
            let head = [&[2][..], &(text.len() as u32).to_be_bytes()].concat();
            ResponseBehavior { body: Some([&head[..], text.as_bytes()].concat()), ..ResponseBehavior::default() }
        });
        let error = control.machine_pool().unwrap().is_allocated(false).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

/// A missing response must never cause disks to be erased.
#[test]
fn machine_is_unallocated_only_if_live_server_is_silent() {
    let answers = |pace: V2Timeouts, act: fn(&str, &Request) -> ResponseBehavior, at_stake: bool| {
        let (control, server) = control(pace, act);
        let answer = control.machine_pool().unwrap().is_allocated(at_stake);
        (answer.map_err(|error| error.to_string()), requested_methods(&server))
    };
    let free: fn(&str, &Request) -> ResponseBehavior = |method, _| match method {
        "Wait" => silent(),
        _ => ResponseBehavior::respond(200, r#"{"featureDisabled": true}"#),
    };
    let (wait, alive) = ("Wait".to_owned(), "SuperUserPassword".to_owned());
    assert_eq!(answers(QUICK, free, false), (Ok(false), vec![wait.clone(), alive.clone()]));
    let thrice = vec![[wait.clone(), alive]; 3].concat();
    assert_eq!(answers(QUICK, free, true), (Ok(false), thrice));
    assert_eq!(answers(SURE, |_, _| allocated("a-1"), true), (Ok(true), vec![wait]));
    // A proxy cuts the first streams.
    let cut: fn(&str, &Request) -> ResponseBehavior = |_, request| match request.nth {
        0 => ResponseBehavior::respond(502, "<html>"),
        1 => ResponseBehavior { body: Some(Vec::new()), ..ResponseBehavior::default() },
        _ => allocated("a-1"),
    };
    assert_eq!(answers(SURE, cut, false).0, Ok(true));
    // The first stream is silent.
    let late: fn(&str, &Request) -> ResponseBehavior = |method, request| match (method, request.nth) {
        ("Wait", 0) => silent(),
        ("Wait", _) => allocated("a-1"),
        _ => ResponseBehavior::respond(200, "{}"),
    };
    assert_eq!(answers(V2Timeouts { long_silence: Duration::from_secs(5), ..SURE }, late, true).0, Ok(true));
    // The stream is silent, but the server does not respond correctly to other requests.
    let dead: fn(&str, &Request) -> ResponseBehavior = |method, _| match method {
        "Wait" => silent(),
        _ => ResponseBehavior::respond(400, r#"{"code": "permission_denied", "message": "no"}"#),
    };
    assert!(answers(QUICK, dead, false).0.unwrap_err().ends_with("permission_denied: no"));
}

#[test]
fn installation_starts_only_while_its_allocation_exists() {
    let begin = |pace: V2Timeouts, act: fn(&str, &Request) -> ResponseBehavior| {
        let (control, _server) = control(pace, act);
        control
            .announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() })
            .map_err(|error| error.to_string())
    };
    assert_eq!(begin(SURE, |_, _| allocated("a-1")), Ok(()));
    assert_eq!(
        begin(SURE, |_, request| if request.nth == 0 { ResponseBehavior::status(502) } else { allocated("a-1") }),
        Ok(())
    );
    assert!(begin(SURE, |_, _| allocated("a-2")).unwrap_err().contains("the machine has another allocation"));
    let nobody = |pace: V2Timeouts, act: fn(&str, &Request) -> ResponseBehavior| {
        let (control, _server) = control(pace, act);
        control.announce_point_of_no_return(&AttemptNotice::default()).map_err(|error| error.to_string())
    };
    let free =
        |method: &str, _: &Request| if method == "Wait" { silent() } else { ResponseBehavior::respond(200, "{}") };
    assert_eq!(nobody(QUICK, free), Ok(()));
    assert!(nobody(SURE, |_, _| allocated("a-1")).unwrap_err().contains("this machine was allocated"));
    assert!(begin(QUICK, |_, _| silent()).unwrap_err().contains("no confirmation was received. Nothing was written"));
}

#[test]
fn installation_with_a_changed_image_or_layout_does_not_start() {
    for [received, changed] in [
        [json!({"image": {"id": "i"}}), json!({"image": {"id": "j"}})],
        [json!({"filesystemLayout": {"id": "l"}}), json!({"filesystemLayout": {"id": "m"}})],
    ] {
        let (control, _server) = control(SURE, move |_, request| {
            let mut allocation = if request.nth == 0 { received.clone() } else { changed.clone() };
            allocation["uuid"] = json!("a-1");
            message(&json!({ "allocation": allocation }).to_string())
        });
        assert!(control.wait_for_allocation(Duration::from_secs(60)).unwrap());
        let notice = AttemptNotice { allocation: "a-1", ..AttemptNotice::default() };
        let error = control.announce_point_of_no_return(&notice).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("Nothing was written"), "{error}");
    }
}

#[test]
fn only_successful_installations_are_reported() {
    let (control, server) = control(SURE, |method, request| match (method, request.nth) {
        ("Wait", _) => allocated("a-1"),
        ("InstallationSucceeded", 0) => ResponseBehavior::status(503),
        _ => ResponseBehavior::respond(200, "{}"),
    });
    let failed = |outcome: fn(FailureSummary) -> InstallOutcome| InstallResult {
        outcome: outcome(FailureSummary::default()),
        ..ended()
    };
    control.report_result(&failed(InstallOutcome::FailedUntouched)).unwrap();
    control.report_result(&failed(InstallOutcome::FailedBegun)).unwrap();
    assert!(requested_methods(&server).is_empty());
    // The machine was installed in an earlier boot, whose password is unknown now.
    control.report_result(&ended()).unwrap();
    control.announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() }).unwrap();
    control.wait_for_allocation(Duration::from_secs(60)).unwrap();
    let password = control.fetch_machine().unwrap().allocation.unwrap().console_password;
    control.report_result(&ended()).unwrap();
    let passwords: Vec<Value> = server
        .requests()
        .iter()
        .filter(|request| request.path.ends_with("Succeeded"))
        .map(|request| serde_json::from_str::<Value>(&request.body).unwrap()["consolePassword"].clone())
        .collect();
    assert_eq!(passwords, [UNKNOWN_PASSWORD_TEXT, UNKNOWN_PASSWORD_TEXT, password.as_str()]);
}

/// The responses of the server do not show whether an allocation is installed. The server stores each console password
/// that it receives.
#[test]
fn accidental_boot_does_not_repeat_the_report() {
    let (first, server) =
        control(
            SURE,
            |method, _| if method == "Wait" { allocated("a-1") } else { ResponseBehavior::respond(200, "{}") },
        );
    let (pixie, directory) = (server.url("certs"), tempfile::tempdir().unwrap());
    let record = FirmwareRecord::new(directory.path());
    drop(first);
    let reports = || server.requests().iter().filter(|request| request.path.ends_with("Succeeded")).count();
    let boot = |record: &FirmwareRecord| {
        let control = booted(&pixie, SURE, record);
        control.wait_for_allocation(Duration::from_secs(60)).unwrap();
        let installed = control.fetch_machine().unwrap().allocation.unwrap().succeeded;
        (control, installed)
    };
    let (control, installed) = boot(&record);
    assert!(!installed, "the installation has not been reported");
    control.announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() }).unwrap();
    control.report_result(&ended()).unwrap();
    for _ in 0..2 {
        let (control, installed) = boot(&record);
        control.report_result(&ended()).unwrap();
        assert_eq!((installed, reports()), (true, 1));
    }
    // Without EFI variables, the agent does not know whether the report was acknowledged, and sends it again. The
    // control plane needs the report more than the correct password.
    let (control, installed) = boot(&FirmwareRecord::new(Path::new("/proc/nonexistent")));
    control.report_result(&ended()).unwrap();
    assert_eq!((installed, reports()), (false, 2));
    // Another allocation is another installation.
    let (control, _) = boot(&record);
    control.report_result(&InstallResult { allocation: "a-2".into(), ..ended() }).unwrap();
    assert_eq!(reports(), 3);
}

/// If the server refuses a report, the report does not count as acknowledged.
#[test]
fn a_report_that_is_refused_is_an_error() {
    let (control, _server) = control(SURE, |_, _| {
        ResponseBehavior::respond(400, r#"{"code": "failed_precondition", "message": "not allocated"}"#)
    });
    assert!(control.report_result(&ended()).unwrap_err().to_string().ends_with("not allocated"));
}

#[test]
fn unsupported_events_are_sent_only_once() {
    let event =
        |event: EventName| ProgressEvent { event, message: "m".into(), stage: None, seconds: None, progress: None };
    let (old, server) = control(SURE, |_, _| ResponseBehavior::respond(404, "404 page not found"));
    old.send_event(&event(EventName::Preparing)).unwrap();
    old.send_event(&event(EventName::Registering)).unwrap();
    assert_eq!(requested_methods(&server), ["SendEvent"]);
    let (new, server) = control(SURE, |_, _| ResponseBehavior::respond(200, "{}"));
    for name in [EventName::Preparing, EventName::Registering, EventName::Registering] {
        new.send_event(&event(name)).unwrap();
    }
    let names: Vec<String> = server.requests()[1..]
        .iter()
        .map(|request| {
            serde_json::from_str::<Value>(&request.body).unwrap()["event"]["event"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names, ["MACHINE_PROVISIONING_EVENT_TYPE_PREPARING", "MACHINE_PROVISIONING_EVENT_TYPE_REGISTERING"]);
}

#[test]
fn malformed_certificates_of_pixie_are_reported() {
    let with = |ca_cert: Option<&str>, identity: Option<&str>| PixieConfig {
        partition: "fra".into(),
        ntp_servers: vec![],
        logging: None,
        date: None,
        api: pixie_config::ApiCredentials::V2(pixie_config::V2Credentials {
            url: "https://h".into(),
            token: "T".into(),
            ca_cert: ca_cert.map(str::to_owned),
            identity: identity.map(str::to_owned),
        }),
    };
    for (config, expected) in [
        (with(Some("none"), None), "`ca_cert` of pixie's configuration"),
        (with(None, Some("none")), "`cert` and `key` of pixie's configuration"),
    ] {
        let error = connect_client(&config).err().unwrap();
        assert!(error.phase == Phase::Control && error.to_string().contains(expected), "{error}");
    }
}
