//! Tests of the requests that a server receives.

use super::*;
use crate::agent_api_types::REQUEST_ID;
use crate::fake_control_plane::ended;
use crate::http_machine_client::report_retries;
use crate::retry::{ONE_MINUTE_RETRIES, TEN_MINUTE_RETRIES};
use model::install_report::{EventName, FailureSummary, InstallOutcome};
use testing::http::{Request, ResponseBehavior, Server};

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
fn reinstall_starts_only_with_permission_of_control_plane() {
    const REFUSAL: &str = r#"{"statuscode": 409, "message": "order o-1 was cancelled"}"#;
    let (control, server) = control(&[(200, "{}"), (503, ""), (200, r#"{"other": 1}"#), (409, REFUSAL)]);
    let begin = || control.announce_point_of_no_return(&AttemptNotice { order: Some("o-1"), ..NOTICE });
    begin().unwrap();
    begin().unwrap();
    let error = begin().unwrap_err().to_string();
    assert!(error.starts_with("announce the point of no return (request "), "{error}");
    assert!(error.contains("409") && error.ends_with(": order o-1 was cancelled"), "{error}");
    let requests = server.requests();
    assert_eq!(requests.len(), 4, "a refused request is not repeated");
    for request in requests {
        assert_eq!(request.line(), "POST /v1/machine/m-1/point-of-no-return");
        assert_eq!(request.body, r#"{"allocationuuid":"a-1","order":"o-1"}"#);
    }
}

/// Only the control plane itself may permit an installation to erase data, or acknowledge its result.
#[test]
fn other_responses_are_neither_permission_nor_acknowledgement() {
    for answer in [
        "302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
        "307 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
        "202 Accepted\r\nContent-Length: 2\r\n\r\n{}",
        "204 No Content\r\n\r\n",
        "200 OK\r\nContent-Length: 8\r\n\r\n<p>hi</p",
        "200 OK\r\nContent-Length: 0\r\n\r\n",
        "200 OK\r\nContent-Length: 4\r\n\r\ntrue",
    ] {
        let server = Server::start(Vec::new(), move |request| match request.line().as_str() {
            "GET /x" | "POST /x" => ResponseBehavior::respond(200, "{}"),
            _ => ResponseBehavior::wire(format!("HTTP/1.1 {answer}")),
        });
        let control = HttpControlPlane::new(server.url("").trim_end_matches('/'), "t", "m-1").unwrap();
        let error = control.announce_point_of_no_return(&NOTICE).unwrap_err().to_string();
        assert!(error.contains(&answer[..3]), "{answer:?}: {error}");
        assert!(control.report_result(&ended()).is_err(), "{answer:?}");
        assert_eq!(server.requests().len(), 2, "{answer:?}");
    }
}

/// The code is printed on the machine's console, and is part of the report.
#[test]
fn error_has_the_code_of_the_server() {
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

/// An error that a retry or another server may resolve does not count as a refusal.
#[test]
fn only_a_conflict_is_a_denial() {
    for (status, is_denial) in [(409, true), (400, false), (401, false), (404, false), (413, false), (500, false)] {
        let (control, _server) = control(&[(status, "{}")]);
        let error = control.report_result(&ended()).unwrap_err();
        assert_eq!(error.is_denial(), is_denial, "{status}: {error}");
    }
}

/// Error messages on the console contain the request id that is also in the server's log.
#[test]
fn errors_contain_the_unique_request_id() {
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
fn log_upload_is_not_repeated_and_detects_missing_endpoint() {
    let (control, server) = control(&[(200, "{}"), (503, ""), (401, ""), (404, ""), (405, "")]);
    assert!(control.upload_log(7, "one\n").unwrap());
    assert!(control.upload_log(11, "two\n").is_err() && control.upload_log(11, "two\n").is_err());
    assert!(!control.upload_log(11, "two\n").unwrap() && !control.upload_log(11, "two\n").unwrap());
    assert_eq!(server.requests()[0].body, r#"{"start":7,"log":"one\n"}"#);
    assert_eq!(lines(&server), ["POST /v1/machine/m-1/log"; 5]);
}

#[test]
fn rejected_token_causes_one_new_registration() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(200, "{}"), (401, MOVED), (503, ""), (200, "{}"), (204, "")]);
    control.register_machine(&Inventory::default()).unwrap();
    assert!(!control.wait_for_allocation(Duration::from_secs(1)).unwrap());
    let (register, wait) = ("POST /v1/machine/register", "GET /v1/machine/m-1/wait?seconds=1");
    assert_eq!(lines(&server), [register, wait, register, register, wait]);
}

#[test]
fn rejected_event_is_repeated_after_new_registration() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(200, "{}"), (401, MOVED), (200, "{}"), (200, "{}"), (401, MOVED)]);
    control.register_machine(&Inventory::default()).unwrap();
    control.send_event(&alive_event("one")).unwrap();
    assert!(control.send_event(&alive_event("two")).unwrap_err().is_refusal(), "not again before the pause has ended");
    let (register, event) = ("POST /v1/machine/register", "POST /v1/machine/m-1/event");
    assert_eq!(lines(&server), [register, event, register, event, event]);
    let bodies: Vec<String> = server.requests().into_iter().map(|request| request.body).collect();
    assert_eq!((&bodies[0], &bodies[1]), (&bodies[2], &bodies[3]));
    assert!(bodies[3].contains("one") && bodies[4].contains("two"), "{bodies:?}");
}

/// An installation continues even if the server does not receive its events.
#[test]
fn events_are_not_retried_while_server_is_unavailable() {
    const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
    let (control, server) = control(&[(401, MOVED), (503, ""), (200, "{}"), (401, MOVED), (503, "")]);
    assert!(control.send_event(&alive_event("one")).unwrap_err().is_refusal(), "the machine has not registered before");
    let error = control.send_event(&alive_event("two")).unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
    control.register_machine(&Inventory::default()).unwrap();
    *control.client.by_event.lock().unwrap() = None;
    let error = control.send_event(&alive_event("three")).unwrap_err().to_string();
    assert!(error.starts_with("register (request ") && error.contains("503"), "{error}");
    assert_eq!(server.requests().len(), 5, "each request is sent once");
}

fn alive_event(message: &str) -> ProgressEvent {
    let event = EventName::Alive;
    ProgressEvent { event, message: message.to_owned(), stage: None, seconds: None, progress: None }
}

#[test]
fn expired_token_is_a_refusal() {
    const ENDED: &str = r#"{"statuscode": 401, "message": "older than a day"}"#;
    let (control, server) = control(&[(401, ENDED), (200, "{}"), (401, ENDED), (401, ENDED)]);
    let error = control.register_machine(&Inventory::default()).unwrap_err();
    assert!(error.is_refusal() && error.to_string().ends_with("401 Unauthorized: older than a day"), "{error}");
    control.register_machine(&Inventory::default()).unwrap();
    assert!(control.wait_for_allocation(Duration::ZERO).unwrap_err().is_refusal());
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn successes_and_announced_failures_are_retried_longer() {
    let failed = |announced| FailureSummary { announced, ..FailureSummary::default() };
    for (outcome, wanted) in [
        (ended().outcome, TEN_MINUTE_RETRIES),
        (InstallOutcome::FailedUntouched(failed(true)), TEN_MINUTE_RETRIES),
        (InstallOutcome::FailedBegun(failed(true)), TEN_MINUTE_RETRIES),
        (InstallOutcome::FailedUntouched(failed(false)), ONE_MINUTE_RETRIES),
        (InstallOutcome::FailedBegun(failed(false)), ONE_MINUTE_RETRIES),
    ] {
        assert_eq!(report_retries(&outcome).patience, wanted.patience, "{outcome:?}");
    }
}

#[test]
fn retry_is_read_from_report_acknowledgement() {
    let other = r#"{"thanks": 1}"#;
    let answers = &[(200, r#"{"retry": true}"#), (200, r#"{"retry": false}"#), (200, "{}"), (200, other)];
    let (control, _server) = control(answers);
    for ((_, answer), retry) in answers.iter().zip([true, false, false, false]) {
        assert_eq!(control.report_result(&ended()).unwrap(), ReportAcknowledgement { retry }, "{answer}");
    }
}

/// The second attempt is not made before the time that the server has requested.
#[test]
fn a_busy_server_determines_when_a_request_is_repeated() {
    let server = Server::start(Vec::new(), {
        let is_first = std::sync::atomic::AtomicBool::new(true);
        move |_| match is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            true => ResponseBehavior::wire("HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"),
            false => ResponseBehavior::respond(200, "{}"),
        }
    });
    let control = HttpControlPlane::new(server.url("").trim_end_matches('/'), "t", "m-1").unwrap();
    let began = std::time::Instant::now();
    control.register_machine(&Inventory::default()).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(server.requests().len(), 2);
}
