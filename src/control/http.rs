//! The control plane over HTTP: `drophammer serve`, or whoever speaks the same calls.

use super::Control;
use super::retry::{Attempt, BRIEF, PATIENT, Retries};
use super::wire::{Acknowledged, ErrorBody, Event, PointOfNoReturn, Register, Report};
use crate::allocation::Machine;
use crate::error::{Error, Phase, Result};
use crate::http;
use crate::plan::StepName;
use crate::settings::Settings;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{Method, StatusCode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// For one answer. Long polls get theirs on top.
const ANSWER: Duration = Duration::from_secs(30);

/// For an event, which is sent once.
const EVENT: Duration = Duration::from_secs(5);

pub struct HttpControl {
    client: Client,
    url: String,
    token: String,
    machine: String,
    /// What was told last: a machine whose address has changed tells it again.
    registered: Mutex<Option<Register>>,
}

impl HttpControl {
    /// # Errors
    /// TLS could not be set up.
    pub fn new(settings: &Settings, machine: &str) -> Result<HttpControl> {
        Ok(HttpControl {
            client: http::client()?,
            url: settings.url.clone(),
            token: settings.token.clone(),
            machine: machine.to_owned(),
            registered: Mutex::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    fn of_machine(&self, call: &str) -> String {
        format!("/v1/machine/{}{call}", self.machine)
    }

    /// [`Self::ask_once`], and again after another registration when the token is not taken: it is bound to the address that has
    /// registered with it, and leases change.
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
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(register) = registered else { return Err(refused) };
        tracing::warn!("{refused}; registering again");
        self.enroll(&register)?;
        self.ask_once(retries, what, patience, request)
    }

    fn enroll(&self, register: &Register) -> Result<Response> {
        let request = || self.request(Method::POST, "/v1/machine/register").json(register);
        self.ask_once(PATIENT, "register", ANSWER, request)
    }

    /// Sends what `request` makes, with retries, until there is an answer of the 200s. That the token is not taken is a refusal.
    fn ask_once(
        &self,
        retries: Retries,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        retries.run(|| match request().timeout(patience).send() {
            Ok(response) if response.status().is_success() => Attempt::Done(response),
            Ok(response) if http::is_passing(response.status()) => Attempt::Again(self.refused(what, response)),
            Ok(response) => Attempt::Never(self.refused(what, response)),
            Err(error) if http::is_certificate(&error) => Attempt::Never(self.unreachable(what, error)),
            Err(error) => Attempt::Again(self.unreachable(what, error)),
        })
    }

    fn refused(&self, what: &str, response: Response) -> Error {
        let status = response.status();
        // The status says enough when the body cannot be read.
        let body = response.text().unwrap_or_default();
        let said = serde_json::from_str::<ErrorBody>(&body).map(|body| body.message).unwrap_or(body);
        let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
        let text = format!("{what}: {} answered {status}{said}", self.url);
        match status {
            StatusCode::UNAUTHORIZED => Error::refusal(Phase::Control, text),
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
    fn register(&self, register: &Register) -> Result<()> {
        self.enroll(register)?;
        *self.registered.lock().unwrap_or_else(PoisonError::into_inner) = Some(register.clone());
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
        let text = response.text().map_err(|error| self.unreachable(what, error))?;
        serde_json::from_str(&text).map_err(|error| self.garbled(what, error))
    }

    fn event(&self, event: &Event) -> Result<()> {
        let request = self.request(Method::POST, &self.of_machine("/event")).json(event);
        let response = request.timeout(EVENT).send().map_err(|error| self.unreachable("event", error))?;
        if response.status().is_success() { Ok(()) } else { Err(self.refused("event", response)) }
    }

    fn point_of_no_return(&self, notice: &PointOfNoReturn) -> Result<()> {
        let path = self.of_machine("/point-of-no-return");
        self.ask(PATIENT, "begin the reinstall", ANSWER, || self.request(Method::POST, &path).json(notice))?;
        Ok(())
    }

    fn report(&self, report: &Report) -> Result<Acknowledged> {
        let retries = how_long(report);
        let request = || self.request(Method::POST, &self.of_machine("/report")).json(report);
        let response = self.ask(retries, "report", ANSWER, request)?;
        // Acknowledged it is, whatever a control plane of another kind writes into its answer.
        Ok(response.json().unwrap_or_default())
    }
}

/// A failed machine waits for a person: it must not first wait ten minutes for its server. But a server that was asked whether
/// the reinstall may begin perhaps believes that it has, until it hears otherwise.
fn how_long(report: &Report) -> Retries {
    let may_have_begun = report.step.as_deref() == Some(StepName::ReportBegin.as_str());
    if report.success || may_have_begun { PATIENT } else { BRIEF }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    /// A control plane that gives these answers, one a call, and what it was asked: request line and body.
    fn control(answers: &'static [(u16, &'static str)]) -> (HttpControl, Receiver<(String, String)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, asked) = channel();
        std::thread::spawn(move || {
            for (status, answer) in answers {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let mut lines = (&mut stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty());
                let request = lines.next().unwrap();
                let length =
                    lines.filter_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.last().unwrap_or(0)];
                stream.read_exact(&mut body).unwrap();
                let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}", answer.len());
                write!(stream.get_mut(), "{head}\r\n\r\n{answer}").unwrap();
                sender.send((request, String::from_utf8(body).unwrap())).unwrap();
            }
        });
        let settings =
            Settings { url, token: "t".into(), machine: None, keys: vec![], minimum: vec![], consoles: vec![] };
        (HttpControl::new(&settings, "m-1").unwrap(), asked)
    }

    #[test]
    fn a_reinstall_begins_only_when_the_control_plane_says_so() {
        const REFUSAL: &str = r#"{"statuscode": 409, "message": "order o-1 was cancelled"}"#;
        let (control, asked) = control(const { &[(200, "{}"), (503, ""), (200, ""), (409, REFUSAL)] });
        let notice = PointOfNoReturn { allocationuuid: "a-1".into(), order: "o-1".into(), ..Default::default() };
        control.point_of_no_return(&notice).unwrap();
        control.point_of_no_return(&notice).unwrap();
        let error = control.point_of_no_return(&notice).unwrap_err().to_string();
        assert!(error.starts_with("begin the reinstall: http://127.0.0.1:"), "{error}");
        assert!(error.contains("409") && error.ends_with(": order o-1 was cancelled"), "{error}");
        let asked: Vec<_> = asked.iter().collect();
        assert_eq!(asked.len(), 4, "a refusal is not asked again");
        for (request, body) in asked {
            assert_eq!(request, "POST /v1/machine/m-1/point-of-no-return HTTP/1.1");
            assert_eq!(body, r#"{"allocationuuid":"a-1","order":"o-1"}"#);
        }
    }

    #[test]
    fn a_token_that_is_not_taken_any_more_is_registered_again_once() {
        const MOVED: &str = r#"{"statuscode": 401, "message": "registered from 10.0.0.1, not from 10.0.0.2"}"#;
        let (control, asked) = control(const { &[(200, "{}"), (401, MOVED), (503, ""), (200, "{}"), (204, "")] });
        control.register(&Register::default()).unwrap();
        assert!(!control.wait(Duration::from_secs(1)).unwrap());
        let asked: Vec<String> = asked.iter().map(|(request, _)| request).collect();
        let (register, wait) = ("POST /v1/machine/register HTTP/1.1", "GET /v1/machine/m-1/wait?seconds=1 HTTP/1.1");
        assert_eq!(asked, [register, wait, register, register, wait]);
    }

    #[test]
    fn a_token_that_has_ended_is_a_refusal() {
        const ENDED: &str = r#"{"statuscode": 401, "message": "older than a day"}"#;
        let (control, asked) = control(const { &[(401, ENDED), (200, "{}"), (401, ENDED), (401, ENDED)] });
        let error = control.register(&Register::default()).unwrap_err();
        assert!(error.is_refusal() && error.to_string().ends_with("401 Unauthorized: older than a day"), "{error}");
        control.register(&Register::default()).unwrap();
        assert!(control.wait(Duration::ZERO).unwrap_err().is_refusal());
        assert_eq!(asked.iter().count(), 4);
    }

    #[test]
    fn who_must_hear_of_a_failure_is_waited_for() {
        let failed = |step: &str| Report { step: Some(step.to_owned()), ..Report::default() };
        let done = Report { success: true, ..Report::default() };
        let cases = [(done, PATIENT), (failed("report.begin"), PATIENT), (failed("image.reach"), BRIEF)];
        for (report, wanted) in cases.into_iter().chain([(Report::default(), BRIEF)]) {
            assert_eq!(how_long(&report).patience, wanted.patience, "{report:?}");
        }
    }

    #[test]
    fn another_attempt_is_only_made_when_it_is_asked_for() {
        let answers = &[(200, r#"{"retry": true}"#), (200, r#"{"retry": false}"#), (200, "{}"), (200, "thanks")];
        let (control, _asked) = control(answers);
        for ((_, answer), retry) in answers.iter().zip([true, false, false, false]) {
            assert_eq!(control.report(&Report::default()).unwrap(), Acknowledged { retry }, "{answer}");
        }
    }
}
