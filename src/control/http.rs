//! The control plane over HTTP: `drophammer serve`, or whoever speaks the same calls.

use super::retry::{Attempt, BRIEF, ONCE, PATIENT, Retries};
use super::wire::{ErrorBody, LogPart, PointOfNoReturn, REQUEST_ID, Register, Report};
use super::{Acknowledged, Control};
use crate::allocation::Machine;
use crate::carried::Standing;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, Event, Outcome};
use crate::http;
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::Extents;
use crate::text::limits;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For one answer. Long polls get theirs on top.
const ANSWER: Duration = Duration::from_secs(30);

/// For an event, which is sent once.
const EVENT: Duration = Duration::from_secs(5);
/// An event of a token that is not taken any more has the machine register again, but not so soon again: events come by the second, and
/// an inventory is long.
const AGAIN: Duration = Duration::from_secs(30);

/// There is no call for the log.
const NOT_KEPT: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

pub struct HttpControl {
    client: Client,
    url: String,
    token: String,
    machine: String,
    /// What the ids of this boot's requests begin with, and how many there were.
    boot: String,
    requests: AtomicU64,
    /// What was told last: a machine whose address has changed tells it again.
    registered: Mutex<Option<Register>>,
    /// When an event has last had it told again.
    by_event: Mutex<Option<Instant>>,
}

impl HttpControl {
    /// # Errors
    /// TLS could not be set up.
    pub fn new(url: &str, token: &str, machine: &str) -> Result<HttpControl> {
        let boot = format!("{:08x}", fastrand::u32(..));
        tracing::info!("asking {url}; the ids of requests are {boot}-1 and so on, in its log too");
        Ok(HttpControl {
            client: http::client()?,
            url: url.to_owned(),
            token: token.to_owned(),
            machine: machine.to_owned(),
            boot,
            requests: AtomicU64::new(0),
            registered: Mutex::default(),
            by_event: Mutex::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// With an id, and for what, in words that name it.
    fn identified(&self, what: &str, request: RequestBuilder) -> (String, RequestBuilder) {
        let id = format!("{}-{}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed) + 1);
        (format!("{what} (request {id})"), request.header(REQUEST_ID, id))
    }

    fn of_machine(&self, call: &str) -> String {
        format!("/v1/machine/{}{call}", self.machine)
    }

    /// [`Self::ask_once`], and again after another registration when the token is not taken: it is bound to the address that has
    /// registered with it, and leases change. The registration has no more patience than the call itself.
    fn ask(
        &self,
        retries: Retries,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        let refused = match self.ask_once(retries, what, patience, &request) {
            Err(error) if error.is_refusal() => error,
            done => return done,
        };
        self.enroll_again(refused, retries, patience.min(ANSWER))?;
        self.ask_once(retries, what, patience, request)
    }

    fn enroll(&self, register: &Register, retries: Retries, patience: Duration) -> Result<Response> {
        let request = || self.request(Method::POST, "/v1/machine/register").json(register);
        self.ask_once(retries, "register", patience, request)
    }

    /// After that refusal, which stays when the machine has never registered.
    fn enroll_again(&self, refused: Error, retries: Retries, patience: Duration) -> Result<()> {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(register) = registered else { return Err(refused) };
        tracing::warn!("{refused}; registering again");
        self.enroll(&register, retries, patience).map(drop)
    }

    /// May an event have the machine register again, now?
    fn may_enroll_by_event(&self) -> bool {
        let mut last = self.by_event.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| last.elapsed() >= AGAIN);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Sends what `request` makes, with retries, until there is an answer of the 200s. That the token is not taken is a refusal.
    fn ask_once(
        &self,
        retries: Retries,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        retries.run(|| {
            let (what, request) = self.identified(what, request());
            match request.timeout(patience).send() {
                Ok(response) if response.status().is_success() => Attempt::Done(response),
                Ok(response) if http::is_passing(response.status()) => Attempt::Again(self.refused(&what, response)),
                Ok(response) => Attempt::Never(self.refused(&what, response)),
                Err(error) if http::is_certificate(&error) => Attempt::Never(self.unreachable(&what, error)),
                Err(error) => Attempt::Again(self.unreachable(&what, error)),
            }
        })
    }

    fn refused(&self, what: &str, response: Response) -> Error {
        let status = response.status();
        let body = http::read_refusal(response);
        let said = serde_json::from_slice::<ErrorBody>(body.as_bytes()).map(|body| body.message).unwrap_or(body);
        let said = limits::message(&said);
        let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
        let text = format!("{what}: {} answered {status}{said}", self.url);
        match status {
            StatusCode::UNAUTHORIZED => Error::refusal(Phase::Control, text),
            StatusCode::CONFLICT => Error::denial(Phase::Control, text),
            _ => Error::new(Phase::Control, text),
        }
    }

    fn unreachable(&self, what: &str, error: reqwest::Error) -> Error {
        Error::with_source(Phase::Control, format!("{what}: no answer from {}", self.url), error.without_url())
    }

    fn garbled(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::with_source(Phase::Control, format!("{what}: the answer of {} is not understood", self.url), error)
    }
}

impl Control for HttpControl {
    fn register(&self, inventory: &Inventory) -> Result<()> {
        let register = Register::new(self.machine.clone(), inventory.clone());
        self.enroll(&register, PATIENT, ANSWER)?;
        *self.registered.lock().unwrap_or_else(PoisonError::into_inner) = Some(register);
        Ok(())
    }

    fn wait(&self, patience: Duration) -> Result<bool> {
        let path = format!("{}?seconds={}", self.of_machine("/wait"), patience.as_secs());
        let response =
            self.ask(PATIENT, "wait for an allocation", patience + ANSWER, || self.request(Method::GET, &path))?;
        Ok(response.status() != StatusCode::NO_CONTENT)
    }

    fn machine(&self) -> Result<Machine> {
        let what = "fetch the allocation";
        let response = self.ask(PATIENT, what, ANSWER, || self.request(Method::GET, &self.of_machine("")))?;
        let text = http::read_answer(response).map_err(|error| self.garbled(what, error))?;
        let machine = serde_json::from_slice(&text).map_err(|error| self.garbled(what, error))?;
        super::of_this_machine(machine, &self.machine)
    }

    fn event(&self, event: &Event) -> Result<()> {
        let path = self.of_machine("/event");
        let send = || self.ask_once(ONCE, "event", EVENT, || self.request(Method::POST, &path).json(event));
        match send() {
            // As `ask`, within seconds: the server hears again that the machine is alive.
            Err(refused) if refused.is_refusal() && self.may_enroll_by_event() => {
                self.enroll_again(refused, ONCE, EVENT)?;
                send().map(drop)
            }
            sent => sent.map(drop),
        }
    }

    fn log(&self, start: u64, text: &str) -> Result<bool> {
        let part = LogPart { start, log: text.to_owned() };
        let (what, request) = self.identified("log", self.request(Method::POST, &self.of_machine("/log")).json(&part));
        match request.timeout(EVENT).send() {
            Ok(response) if response.status().is_success() => Ok(true),
            // A control plane of another kind, or of an earlier version.
            Ok(response) if NOT_KEPT.contains(&response.status()) => Ok(false),
            Ok(response) => Err(self.refused(&what, response)),
            Err(error) => Err(self.unreachable(&what, error)),
        }
    }

    fn point_of_no_return(
        &self,
        allocation: &str,
        order: Option<&str>,
        disks: &[MarkedDisk],
        extents: &[Extents],
        approved: Option<&str>,
    ) -> Result<()> {
        let (allocationuuid, order) = (allocation.to_owned(), order.map(str::to_owned));
        let (disks, extents, approved) = (disks.to_vec(), extents.to_vec(), approved.map(str::to_owned));
        let notice = PointOfNoReturn { allocationuuid, order, disks, extents, approved };
        let path = self.of_machine("/point-of-no-return");
        self.ask(PATIENT, "begin the reinstall", ANSWER, || self.request(Method::POST, &path).json(&notice))?;
        Ok(())
    }

    fn moving(&self, standing: &Standing) -> Result<()> {
        let path = self.of_machine("/moving");
        let request = || self.request(Method::POST, &path).json(standing);
        self.ask(PATIENT, "take part in the move", ANSWER, request).map(drop)
    }

    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        let report = Report::from(ended);
        let request = || self.request(Method::POST, &self.of_machine("/report")).json(&report);
        let response = self.ask(how_long(&ended.outcome), "report", ANSWER, request)?;
        // Acknowledged it is, whatever a control plane of another kind writes into its answer.
        let text = http::read_answer(response).unwrap_or_default();
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }
}

/// A failed machine waits for a person: it must not first wait ten minutes for its server. But a server that was asked whether
/// the reinstall may begin perhaps believes that it has, until it hears otherwise.
fn how_long(outcome: &Outcome) -> Retries {
    let must_be_heard = match outcome {
        Outcome::Succeeded { .. } => true,
        Outcome::FailedUntouched(failed) | Outcome::FailedBegun(failed) => failed.announced,
    };
    if must_be_heard { PATIENT } else { BRIEF }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{EventName, Failed};
    use crate::testing::control::ended;
    use crate::testing::http::{Request, Server};

    /// A control plane that gives these answers, one a call.
    fn control(answers: &[(u16, &str)]) -> (HttpControl, Server) {
        let server = Server::script(answers);
        (HttpControl::new(server.url("").trim_end_matches('/'), "t", "m-1").unwrap(), server)
    }

    /// What it was asked: request lines.
    fn lines(server: &Server) -> Vec<String> {
        server.requests().iter().map(Request::line).collect()
    }

    #[test]
    fn a_reinstall_begins_only_when_the_control_plane_says_so() {
        const REFUSAL: &str = r#"{"statuscode": 409, "message": "order o-1 was cancelled"}"#;
        let (control, server) = control(&[(200, "{}"), (503, ""), (200, ""), (409, REFUSAL)]);
        let begin = || control.point_of_no_return("a-1", Some("o-1"), &[], &[], None);
        begin().unwrap();
        begin().unwrap();
        let error = begin().unwrap_err().to_string();
        assert!(error.starts_with("begin the reinstall (request "), "{error}");
        assert!(error.contains("409") && error.ends_with(": order o-1 was cancelled"), "{error}");
        let asked = server.requests();
        assert_eq!(asked.len(), 4, "a refusal is not asked again");
        for request in asked {
            assert_eq!(request.line(), "POST /v1/machine/m-1/point-of-no-return");
            assert_eq!(request.body, r#"{"allocationuuid":"a-1","order":"o-1"}"#);
        }
    }

    /// What another attempt or another server may mend is none.
    #[test]
    fn only_a_conflict_is_a_denial() {
        for (status, is_denial) in [(409, true), (400, false), (401, false), (404, false), (413, false), (500, false)] {
            let (control, _server) = control(&[(status, "{}")]);
            let error = control.report(&ended()).unwrap_err();
            assert_eq!(error.is_denial(), is_denial, "{status}: {error}");
        }
    }

    /// What a person reads on the console is what the server's log has.
    #[test]
    fn each_request_has_an_id_and_an_error_names_it() {
        let (control, server) = control(&[(200, "{}"), (503, ""), (409, ""), (404, "")]);
        control.register(&Inventory::default()).unwrap();
        let error = control.point_of_no_return("a-1", None, &[], &[], None).unwrap_err().to_string();
        assert!(!control.log(0, "x").unwrap());
        let ids: Vec<String> =
            server.requests().iter().map(|request| request.header(REQUEST_ID).unwrap().to_owned()).collect();
        let wanted: Vec<String> = (1..=4).map(|number| format!("{}-{number}", control.boot)).collect();
        assert_eq!(ids, wanted);
        assert!(error.starts_with(&format!("begin the reinstall (request {}): http://127.0.0.1:", ids[2])), "{error}");
    }

    #[test]
    fn a_part_of_the_log_is_sent_once_and_not_to_whom_keeps_none() {
        let (control, server) = control(&[(200, "{}"), (503, ""), (401, ""), (404, ""), (405, "")]);
        assert!(control.log(7, "one\n").unwrap());
        assert!(control.log(11, "two\n").is_err() && control.log(11, "two\n").is_err());
        assert!(!control.log(11, "two\n").unwrap() && !control.log(11, "two\n").unwrap());
        assert_eq!(server.requests()[0].body, r#"{"start":7,"log":"one\n"}"#);
        assert_eq!(lines(&server), ["POST /v1/machine/m-1/log"; 5]);
    }

    #[test]
    fn a_token_that_is_not_taken_any_more_is_registered_again_once() {
        const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
        let (control, server) = control(&[(200, "{}"), (401, MOVED), (503, ""), (200, "{}"), (204, "")]);
        control.register(&Inventory::default()).unwrap();
        assert!(!control.wait(Duration::from_secs(1)).unwrap());
        let (register, wait) = ("POST /v1/machine/register", "GET /v1/machine/m-1/wait?seconds=1");
        assert_eq!(lines(&server), [register, wait, register, register, wait]);
    }

    #[test]
    fn an_event_that_is_not_taken_is_sent_again_after_another_registration() {
        const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
        let (control, server) = control(&[(200, "{}"), (401, MOVED), (200, "{}"), (200, "{}"), (401, MOVED)]);
        control.register(&Inventory::default()).unwrap();
        control.event(&said("one")).unwrap();
        assert!(control.event(&said("two")).unwrap_err().is_refusal(), "not so soon again");
        let (register, event) = ("POST /v1/machine/register", "POST /v1/machine/m-1/event");
        assert_eq!(lines(&server), [register, event, register, event, event]);
        let bodies: Vec<String> = server.requests().into_iter().map(|request| request.body).collect();
        assert_eq!((&bodies[0], &bodies[1]), (&bodies[2], &bodies[3]));
        assert!(bodies[3].contains("one") && bodies[4].contains("two"), "{bodies:?}");
    }

    /// An installation goes on while its events go nowhere.
    #[test]
    fn no_event_waits_for_a_server_that_is_away() {
        const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
        let (control, server) = control(&[(401, MOVED), (503, ""), (200, "{}"), (401, MOVED), (503, "")]);
        assert!(control.event(&said("one")).unwrap_err().is_refusal(), "nothing to register with");
        let error = control.event(&said("two")).unwrap_err();
        assert!(error.to_string().contains("503"), "{error}");
        control.register(&Inventory::default()).unwrap();
        *control.by_event.lock().unwrap() = None;
        let error = control.event(&said("three")).unwrap_err().to_string();
        assert!(error.starts_with("register (request ") && error.contains("503"), "{error}");
        assert_eq!(server.requests().len(), 5, "each is asked once");
    }

    fn said(message: &str) -> Event {
        let event = EventName::Alive;
        Event { event, message: message.to_owned(), stage: None, seconds: None, progress: None }
    }

    #[test]
    fn a_token_that_has_ended_is_a_refusal() {
        const ENDED: &str = r#"{"statuscode": 401, "message": "older than a day"}"#;
        let (control, server) = control(&[(401, ENDED), (200, "{}"), (401, ENDED), (401, ENDED)]);
        let error = control.register(&Inventory::default()).unwrap_err();
        assert!(error.is_refusal() && error.to_string().ends_with("401 Unauthorized: older than a day"), "{error}");
        control.register(&Inventory::default()).unwrap();
        assert!(control.wait(Duration::ZERO).unwrap_err().is_refusal());
        assert_eq!(server.requests().len(), 4);
    }

    #[test]
    fn who_must_hear_of_a_failure_is_waited_for() {
        let failed = |announced| Failed { announced, ..Failed::default() };
        for (outcome, wanted) in [
            (ended().outcome, PATIENT),
            (Outcome::FailedUntouched(failed(true)), PATIENT),
            (Outcome::FailedBegun(failed(true)), PATIENT),
            (Outcome::FailedUntouched(failed(false)), BRIEF),
            (Outcome::FailedBegun(failed(false)), BRIEF),
        ] {
            assert_eq!(how_long(&outcome).patience, wanted.patience, "{outcome:?}");
        }
    }

    #[test]
    fn another_attempt_is_only_made_when_it_is_asked_for() {
        let answers = &[(200, r#"{"retry": true}"#), (200, r#"{"retry": false}"#), (200, "{}"), (200, "thanks")];
        let (control, _server) = control(answers);
        for ((_, answer), retry) in answers.iter().zip([true, false, false, false]) {
            assert_eq!(control.report(&ended()).unwrap(), Acknowledged { retry }, "{answer}");
        }
    }
}
