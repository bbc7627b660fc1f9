//! Tests of the requests as a server receives them.

use super::*;
use crate::api_types::REQUEST_ID;
use crate::fake_control_plane::ended;
use crate::http_machine_client::report_retries;
use crate::retry::{BRIEF, PATIENT};
use model::install_report::{EventName, FailureSummary, InstallOutcome};
use testing::http::{Act, Request, Server};

const NOTICE: AttemptNotice =
    AttemptNotice { allocation: "a-1", order: None, disks: &[], extents: &[], approved: None, secret_digest: None };

/// Returns a control plane whose server sends these responses, one per request.
pub(crate) fn control(answers: &[(u16, &str)]) -> (HttpControlPlane, Server) {
    let server = Server::script(answers);
    (HttpControlPlane::new(server.url("").trim_end_matches('/'), "t", "m-1").unwrap(), server)
}

/// Returns the lines of all requests that the server has received.
pub(crate) fn lines(server: &Server) -> Vec<String> {
    server.requests().iter().map(Request::line).collect()
}

#[test]
fn a_reinstall_begins_only_when_the_control_plane_says_so() {
    const REFUSAL: &str = r#"{"statuscode": 409, "message": "order o-1 was cancelled"}"#;
    let (control, server) = control(&[(200, "{}"), (503, ""), (200, ""), (409, REFUSAL)]);
    let begin = || control.announce_point_of_no_return(&AttemptNotice { order: Some("o-1"), ..NOTICE });
    begin().unwrap();
    begin().unwrap();
    let error = begin().unwrap_err().to_string();
    assert!(error.starts_with("announce the point of no return (request "), "{error}");
    assert!(error.contains("409") && error.ends_with(": order o-1 was cancelled"), "{error}");
    let asked = server.requests();
    assert_eq!(asked.len(), 4, "a refusal is not asked again");
    for request in asked {
        assert_eq!(request.line(), "POST /v1/machine/m-1/point-of-no-return");
        assert_eq!(request.body, r#"{"allocationuuid":"a-1","order":"o-1"}"#);
    }
}

/// The code is printed on the machine's console, and is part of the report.
#[test]
fn the_code_of_the_server_is_the_code_of_the_error() {
    for (status, code, printed, number) in [
        (409, "DH-643", "no (DH-643)", 643),
        (401, "DH-704", "no (DH-704)", 704),
        (401, "", "no (DH-602)", 602),
        (409, "DH-999", "no (DH-999)", 600),
        (409, "DH-1\u{1b}[2J", "no (DH-600)", 600),
        (409, "", "no (DH-600)", 600),
    ] {
        let body = serde_json::json!({ "statuscode": status, "message": "no", "error_code": code }).to_string();
        let (control, _server) = control(&[(status, &body)]);
        let error = control.announce_point_of_no_return(&NOTICE).unwrap_err();
        assert_eq!(error.code().number(), number, "{body}");
        assert!(error.to_coded_text().contains(printed), "{}", error.to_coded_text());
    }
}

/// Errors that a retry or another server may resolve are not denials.
#[test]
fn only_a_conflict_is_a_denial() {
    for (status, is_denial) in [(409, true), (400, false), (401, false), (404, false), (413, false), (500, false)] {
        let (control, _server) = control(&[(status, "{}")]);
        let error = control.report_result(&ended()).unwrap_err();
        assert_eq!(error.is_denial(), is_denial, "{status}: {error}");
    }
}

/// Error messages on the console contain the id that is in the server's log.
#[test]
fn each_request_has_an_id_and_an_error_names_it() {
    let (control, server) = control(&[(200, "{}"), (503, ""), (409, ""), (404, "")]);
    control.register_machine(&Inventory::default()).unwrap();
    let error = control.announce_point_of_no_return(&NOTICE).unwrap_err().to_string();
    assert!(!control.upload_log(0, "x").unwrap());
    let ids: Vec<String> =
        server.requests().iter().map(|request| request.header(REQUEST_ID).unwrap().to_owned()).collect();
    let wanted: Vec<String> = (1..=4).map(|number| format!("{}-{number}", control.client.boot)).collect();
    assert_eq!(ids, wanted);
    assert!(
        error.starts_with(&format!(
            "announce the point of no return (request {}): control plane http://127.0.0.1:",
            ids[2]
        )),
        "{error}"
    );
}

#[test]
fn a_part_of_the_log_is_sent_once_and_not_to_whom_keeps_none() {
    let (control, server) = control(&[(200, "{}"), (503, ""), (401, ""), (404, ""), (405, "")]);
    assert!(control.upload_log(7, "one\n").unwrap());
    assert!(control.upload_log(11, "two\n").is_err() && control.upload_log(11, "two\n").is_err());
    assert!(!control.upload_log(11, "two\n").unwrap() && !control.upload_log(11, "two\n").unwrap());
    assert_eq!(server.requests()[0].body, r#"{"start":7,"log":"one\n"}"#);
    assert_eq!(lines(&server), ["POST /v1/machine/m-1/log"; 5]);
}

#[test]
fn a_token_that_is_not_taken_any_more_is_registered_again_once() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(200, "{}"), (401, MOVED), (503, ""), (200, "{}"), (204, "")]);
    control.register_machine(&Inventory::default()).unwrap();
    assert!(!control.wait_for_allocation(Duration::from_secs(1)).unwrap());
    let (register, wait) = ("POST /v1/machine/register", "GET /v1/machine/m-1/wait?seconds=1");
    assert_eq!(lines(&server), [register, wait, register, register, wait]);
}

#[test]
fn an_event_that_is_not_taken_is_sent_again_after_another_registration() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(200, "{}"), (401, MOVED), (200, "{}"), (200, "{}"), (401, MOVED)]);
    control.register_machine(&Inventory::default()).unwrap();
    control.send_event(&said("one")).unwrap();
    assert!(control.send_event(&said("two")).unwrap_err().is_refusal(), "not so soon again");
    let (register, event) = ("POST /v1/machine/register", "POST /v1/machine/m-1/event");
    assert_eq!(lines(&server), [register, event, register, event, event]);
    let bodies: Vec<String> = server.requests().into_iter().map(|request| request.body).collect();
    assert_eq!((&bodies[0], &bodies[1]), (&bodies[2], &bodies[3]));
    assert!(bodies[3].contains("one") && bodies[4].contains("two"), "{bodies:?}");
}

/// An installation continues even if its events cannot be delivered.
#[test]
fn no_event_waits_for_a_server_that_is_away() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(401, MOVED), (503, ""), (200, "{}"), (401, MOVED), (503, "")]);
    assert!(control.send_event(&said("one")).unwrap_err().is_refusal(), "nothing to register with");
    let error = control.send_event(&said("two")).unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
    control.register_machine(&Inventory::default()).unwrap();
    *control.client.by_event.lock().unwrap() = None;
    let error = control.send_event(&said("three")).unwrap_err().to_string();
    assert!(error.starts_with("register (request ") && error.contains("503"), "{error}");
    assert_eq!(server.requests().len(), 5, "each is asked once");
}

fn said(message: &str) -> ProgressEvent {
    let event = EventName::Alive;
    ProgressEvent { event, message: message.to_owned(), stage: None, seconds: None, progress: None }
}

#[test]
fn a_token_that_has_ended_is_a_refusal() {
    const ENDED: &str = r#"{"statuscode": 401, "message": "older than a day"}"#;
    let (control, server) = control(&[(401, ENDED), (200, "{}"), (401, ENDED), (401, ENDED)]);
    let error = control.register_machine(&Inventory::default()).unwrap_err();
    assert!(error.is_refusal() && error.to_string().ends_with("401 Unauthorized: older than a day"), "{error}");
    control.register_machine(&Inventory::default()).unwrap();
    assert!(control.wait_for_allocation(Duration::ZERO).unwrap_err().is_refusal());
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn who_must_hear_of_a_failure_is_waited_for() {
    let failed = |announced| FailureSummary { announced, ..FailureSummary::default() };
    for (outcome, wanted) in [
        (ended().outcome, PATIENT),
        (InstallOutcome::FailedUntouched(failed(true)), PATIENT),
        (InstallOutcome::FailedBegun(failed(true)), PATIENT),
        (InstallOutcome::FailedUntouched(failed(false)), BRIEF),
        (InstallOutcome::FailedBegun(failed(false)), BRIEF),
    ] {
        assert_eq!(report_retries(&outcome).patience, wanted.patience, "{outcome:?}");
    }
}

#[test]
fn another_attempt_is_only_made_when_it_is_asked_for() {
    let answers = &[(200, r#"{"retry": true}"#), (200, r#"{"retry": false}"#), (200, "{}"), (200, "thanks")];
    let (control, _server) = control(answers);
    for ((_, answer), retry) in answers.iter().zip([true, false, false, false]) {
        assert_eq!(control.report_result(&ended()).unwrap(), ReportAcknowledgement { retry }, "{answer}");
    }
}

/// The second attempt comes no earlier than the server has requested.
#[test]
fn a_busy_server_determines_when_a_request_is_repeated() {
    let server = Server::start(Vec::new(), {
        let is_first = std::sync::atomic::AtomicBool::new(true);
        move |_| match is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            true => Act::wire("HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"),
            false => Act::says(200, "{}"),
        }
    });
    let control = HttpControlPlane::new(server.url("").trim_end_matches('/'), "t", "m-1").unwrap();
    let began = std::time::Instant::now();
    control.register_machine(&Inventory::default()).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(server.requests().len(), 2);
}
