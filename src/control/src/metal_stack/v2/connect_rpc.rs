//! Client of the Connect protocol with JSON over HTTP/1.1 (<https://connectrpc.com/docs/protocol>). It supports only
//! unary calls, and streams of which only the first message is read.

use common::bounded_read::read_prefix;
use common::error::{Error, Phase, Result};
use common::format::untrusted_text_limits;
use linux::http;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// Maximum size of a message, in bytes. The largest layouts are tens of kilobytes, and user data can be 32 KiB.
const MESSAGE_BYTES: u32 = 4 << 20;

/// Envelope flag that marks a compressed message.
const COMPRESSED: u8 = 1;
/// Envelope flag that marks the last message of a stream.
const END_STREAM_FLAG: u8 = 2;

/// Maximum length of a server's error message, in characters.
const MAXIMUM_ERROR_CHARACTERS: usize = 500;

/// Client of a Connect service.
pub(crate) struct ConnectClient {
    client: Client,
    /// URL of the API, without a trailing slash.
    api: String,
    /// URL of the service, without a trailing slash.
    url: String,
    token: String,
}

/// First event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FirstEvent {
    Message(Value),
    /// The timeout has elapsed without a message, but the stream is still open.
    Silence,
    /// The stream has ended without a message and without an error.
    End,
}

/// Failure of a call, by its cause.
#[derive(Debug)]
pub(crate) enum ConnectFailure {
    /// The server's certificate is not trusted.
    Certificate(Error),
    /// The token was rejected.
    Token(Error),
    /// The token does not permit this call.
    Denied(Error),
    /// The server does not support this method.
    Unknown(Error),
    /// The requested object does not exist on the server.
    Missing(Error),
    /// Any other failure. A retry may succeed.
    Transient(Error),
    Permanent(Error),
}

impl ConnectFailure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            ConnectFailure::Certificate(error)
            | ConnectFailure::Token(error)
            | ConnectFailure::Denied(error)
            | ConnectFailure::Unknown(error)
            | ConnectFailure::Missing(error)
            | ConnectFailure::Transient(error)
            | ConnectFailure::Permanent(error) => error,
        }
    }
}

impl ConnectClient {
    pub fn new(client: Client, api: &str, service: &str, token: String) -> ConnectClient {
        ConnectClient { client, api: api.to_owned(), url: format!("{api}/{service}"), token }
    }

    /// Returns a client of another service of the same API.
    pub(crate) fn with_service(&self, service: &str) -> ConnectClient {
        ConnectClient::new(self.client.clone(), &self.api, service, self.token.clone())
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// Fails if the server is unreachable or returns an error.
    pub(crate) fn call_unary(
        &self,
        method: &str,
        question: &Value,
        patience: Duration,
    ) -> Result<Value, ConnectFailure> {
        let response = self.send_request(method, "application/json", question.to_string().into_bytes(), patience);
        let response = response.map_err(|error| self.connection_failure(method, error))?;
        if response.status() != StatusCode::OK {
            return Err(self.response_failure(method, response));
        }
        let text =
            read_prefix(response, u64::from(MESSAGE_BYTES)).map_err(|error| self.truncated_failure(method, error))?;
        serde_json::from_slice(&text).map_err(|error| self.parse_failure(method, &error.to_string()))
    }

    /// Returns the first message of a stream, and closes the stream.
    ///
    /// # Errors
    /// Fails if the server is unreachable, returns an error, or ends the stream with an error.
    pub(crate) fn read_first_message(
        &self,
        method: &str,
        question: &Value,
        patience: Duration,
    ) -> Result<FirstEvent, ConnectFailure> {
        let mut response = match self.send_request(
            method,
            "application/connect+json",
            encode_envelope(question.to_string().as_bytes()),
            patience,
        ) {
            Ok(response) => response,
            // A timeout before the header counts as silence, because a server may send its header together with the
            // first message.
            Err(error) if error.is_timeout() && !error.is_connect() => return Ok(FirstEvent::Silence),
            Err(error) => return Err(self.connection_failure(method, error)),
        };
        if response.status() != StatusCode::OK {
            return Err(self.response_failure(method, response));
        }
        match self.read_envelope(method, &mut response)? {
            Ok((flags, text)) if flags & END_STREAM_FLAG != 0 => self.parse_end(method, &text),
            Ok((_, text)) => {
                let message = serde_json::from_slice(&text);
                message.map(FirstEvent::Message).map_err(|error| self.parse_failure(method, &error.to_string()))
            }
            Err(error) if is_timeout(&error) => Ok(FirstEvent::Silence),
            // If the connection is interrupted, the stream counts as ended, because the server and proxies close
            // streams at their time limits.
            Err(_) => Ok(FirstEvent::End),
        }
    }

    fn send_request(
        &self,
        method: &str,
        kind: &'static str,
        body: Vec<u8>,
        patience: Duration,
    ) -> reqwest::Result<Response> {
        let request = self.client.post(format!("{}/{method}", self.url)).bearer_auth(&self.token).timeout(patience);
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static(kind));
        request.header("connect-protocol-version", "1").body(body).send()
    }

    /// Reads the flags and the content of an envelope. The inner error means that the envelope was incomplete.
    fn read_envelope(&self, method: &str, from: &mut impl Read) -> Result<io::Result<(u8, Vec<u8>)>, ConnectFailure> {
        let mut head = [0; 5];
        if let Err(error) = from.read_exact(&mut head) {
            return Ok(Err(error));
        }
        let [flags, length @ ..] = head;
        let length = u32::from_be_bytes(length);
        if length > MESSAGE_BYTES || flags & COMPRESSED != 0 {
            return Err(self.parse_failure(method, "a message is compressed or longer than 4 MiB"));
        }
        match read_prefix(from, u64::from(length)) {
            Ok(text) if text.len() as u64 == u64::from(length) => Ok(Ok((flags, text))),
            Ok(_) => Ok(Err(ErrorKind::UnexpectedEof.into())),
            Err(error) => Ok(Err(error)),
        }
    }

    fn parse_end(&self, method: &str, text: &[u8]) -> Result<FirstEvent, ConnectFailure> {
        // An empty last message is the regular end of the stream. A last message that cannot be parsed counts as an
        // error of the server.
        let end: Value = match text {
            [] => Value::Null,
            text => serde_json::from_slice(text).map_err(|error| self.parse_failure(method, &error.to_string()))?,
        };
        match end.get("error") {
            None => Ok(FirstEvent::End),
            Some(error) => Err(self.classify_error(method, error, None)),
        }
    }

    fn response_failure(&self, method: &str, response: Response) -> ConnectFailure {
        let status = response.status();
        // If the body of the response cannot be read, the HTTP status alone determines the type of the failure.
        let text = read_prefix(response, u64::from(MESSAGE_BYTES)).unwrap_or_default();
        self.classify_error(method, &serde_json::from_slice(&text).unwrap_or_default(), Some(status))
    }

    /// Classifies an error of the server by its code, or by the HTTP status if there is no code. Errors of proxies have
    /// only an HTTP status.
    fn classify_error(&self, method: &str, error: &Value, status: Option<StatusCode>) -> ConnectFailure {
        let word = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
        let (code, message) = (
            untrusted_text_limits::sanitize_name(word("code")),
            untrusted_text_limits::sanitize_message(&untrusted_text_limits::truncate_with_mark(
                word("message"),
                MAXIMUM_ERROR_CHARACTERS,
            )),
        );
        let what = match (code.as_str(), status) {
            ("", Some(status)) => status.to_string(),
            ("", None) => "error without a code".to_owned(),
            (code, _) => code.to_owned(),
        };
        let said = if message.is_empty() { what } else { format!("{what}: {message}") };
        let error = Error::new(Phase::Control, format!("{method}: {} answered {said}", self.url));
        match (code.as_str(), status) {
            ("unauthenticated", _) | ("", Some(StatusCode::UNAUTHORIZED)) => ConnectFailure::Token(error),
            ("permission_denied", _) | ("", Some(StatusCode::FORBIDDEN)) => ConnectFailure::Denied(error),
            ("not_found", _) => ConnectFailure::Missing(error),
            ("unimplemented", _) | ("", Some(StatusCode::NOT_FOUND)) => ConnectFailure::Unknown(error),
            ("unavailable" | "resource_exhausted" | "deadline_exceeded" | "aborted" | "internal" | "unknown", _) => {
                ConnectFailure::Transient(error)
            }
            ("", Some(status)) if !http::is_retryable(status) => ConnectFailure::Permanent(error),
            ("", _) => ConnectFailure::Transient(error),
            _ => ConnectFailure::Permanent(error),
        }
    }

    fn connection_failure(&self, method: &str, error: reqwest::Error) -> ConnectFailure {
        if http::is_untrusted_certificate(&error) {
            let message = format!(
                "{method}: {server} has a certificate from a CA that is not in pixie's configuration",
                server = self.url
            );
            return ConnectFailure::Certificate(Error::with_source(Phase::Control, message, error.without_url()));
        }
        let message = format!("{method}: no answer from {server}", server = self.url);
        ConnectFailure::Transient(Error::with_source(Phase::Control, message, error.without_url()))
    }

    fn truncated_failure(&self, method: &str, error: io::Error) -> ConnectFailure {
        ConnectFailure::Transient(Error::with_source(
            Phase::Control,
            format!("{method}: the response of {server} is truncated", server = self.url),
            error,
        ))
    }

    fn parse_failure(&self, method: &str, why: &str) -> ConnectFailure {
        ConnectFailure::Permanent(Error::new(
            Phase::Control,
            format!("{method}: cannot parse the response of {server}: {why}", server = self.url),
        ))
    }
}

/// Encodes an envelope: one byte of flags, four bytes for the length, and the message.
fn encode_envelope(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// Returns whether the error is a timeout. If a timeout occurs while a body is read, reqwest wraps it in an I/O error.
fn is_timeout(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
    error.kind() == ErrorKind::TimedOut || inner.is_some_and(reqwest::Error::is_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use testing::http::{ResponseBehavior, Server};

    fn connect(server: &Server) -> ConnectClient {
        let api = server.url("").trim_end_matches('/').to_owned();
        ConnectClient::new(http::new_client().unwrap(), &api, "metalstack.infra.v2.BootService", "T".into())
    }

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(60);

    fn wait(act: ResponseBehavior, patience: Duration) -> Result<FirstEvent, ConnectFailure> {
        let server = Server::start(Vec::new(), move |_| act.clone());
        connect(&server).read_first_message("Wait", &json!({"uuid": "u"}), patience)
    }

    /// Returns a body that consists of these envelopes.
    fn stream(messages: &[(u8, &str)]) -> ResponseBehavior {
        let one = |(flags, text): &(u8, &str)| [&[*flags][..], &encode_envelope(text.as_bytes())[1..]].concat();
        ResponseBehavior {
            body: Some(messages.iter().flat_map(one).collect()),
            length: false,
            ..ResponseBehavior::default()
        }
    }

    #[test]
    fn unary_calls_send_json_with_token() {
        let server = Server::script(&[(200, r#"{"size": "c1"}"#), (200, "{}")]);
        let connect = connect(&server);
        assert_eq!(connect.call_unary("Register", &json!({"uuid": "u"}), LONG).unwrap(), json!({"size": "c1"}));
        assert_eq!(connect.call_unary("SendEvent", &json!({}), LONG).unwrap(), json!({}));
        let request = &server.requests()[0];
        assert_eq!(request.line(), "POST /metalstack.infra.v2.BootService/Register");
        assert_eq!((request.authorization.as_deref(), request.body.as_str()), (Some("Bearer T"), r#"{"uuid":"u"}"#));
        assert_eq!(request.header("content-type"), Some("application/json"));
    }

    #[test]
    fn failures_are_classified_by_status_and_code() {
        let said = |code: &str| format!(r#"{{"code": "{code}", "message": "because"}}"#);
        for (status, body, kind) in [
            (401, said("unauthenticated"), "token"),
            (401, String::new(), "token"),
            (501, said("unimplemented"), "unknown"),
            (404, "404 page not found".into(), "unknown"),
            (503, said("unavailable"), "passing"),
            (429, said("resource_exhausted"), "passing"),
            (502, "<html>".into(), "passing"),
            (400, said("invalid_argument"), "lasting"),
            (404, said("not_found"), "missing"),
            (403, said("permission_denied"), "denied"),
            (403, "<html>".into(), "denied"),
            (200, "no JSON".into(), "lasting"),
        ] {
            let server = Server::script(&[(status, body.as_str())]);
            let failure = connect(&server).call_unary("Register", &json!({}), LONG).unwrap_err();
            let found = match &failure {
                ConnectFailure::Certificate(_) => "certificate",
                ConnectFailure::Token(_) => "token",
                ConnectFailure::Denied(_) => "denied",
                ConnectFailure::Unknown(_) => "unknown",
                ConnectFailure::Missing(_) => "missing",
                ConnectFailure::Transient(_) => "passing",
                ConnectFailure::Permanent(_) => "lasting",
            };
            assert_eq!(found, kind, "{body}");
            let error = failure.into_error().to_string();
            assert!(
                error.starts_with("Register: ") && (!body.contains("because") || error.ends_with(": because")),
                "{error}"
            );
        }
    }

    #[test]
    fn first_message_of_an_open_stream_is_returned() {
        let act = ResponseBehavior { hold: true, ..stream(&[(0, r#"{"allocation": {"uuid": "a"}}"#)]) };
        let first = wait(act, LONG).unwrap();
        assert_eq!(first, FirstEvent::Message(json!({"allocation": {"uuid": "a"}})));
        assert_eq!(wait(stream(&[(0, "{}"), (2, "{}")]), LONG).unwrap(), FirstEvent::Message(json!({})));
    }

    #[test]
    fn stream_distinguishes_silence_end_and_error() {
        let silent = ResponseBehavior { silent: true, ..ResponseBehavior::default() };
        let header_alone = ResponseBehavior { hold: true, ..stream(&[]) };
        for act in [silent, header_alone] {
            assert_eq!(wait(act, SHORT).unwrap(), FirstEvent::Silence);
        }
        let half = ResponseBehavior { cut: Some(9), ..stream(&[(0, "{\"allocation\": {}}")]) };
        for act in [stream(&[]), stream(&[(2, "{}")]), half] {
            assert_eq!(wait(act, LONG).unwrap(), FirstEvent::End);
        }
        let ended = stream(&[(2, r#"{"error": {"code": "unavailable", "message": "going down"}}"#)]);
        assert!(
            matches!(wait(ended, LONG), Err(ConnectFailure::Transient(error)) if error.to_string().ends_with("going down"))
        );
        for strange in [stream(&[(1, "{}")]), stream(&[(0, "no JSON")])] {
            assert!(matches!(wait(strange, LONG), Err(ConnectFailure::Permanent(_))));
        }
        let endless = ResponseBehavior { body: Some(vec![0, 0xff, 0xff, 0xff, 0xff]), ..stream(&[]) };
        assert!(matches!(wait(endless, LONG), Err(ConnectFailure::Permanent(_))));
        let gone = ConnectClient::new(http::new_client().unwrap(), "http://127.0.0.1:9", "S", "T".into());
        assert!(matches!(gone.read_first_message("Wait", &json!({}), LONG), Err(ConnectFailure::Transient(_))));
    }

    #[test]
    fn certificate_from_unknown_ca_is_reported() {
        let server = Server::start_tls(Vec::new(), |_| ResponseBehavior::default());
        let failure = connect(&server).call_unary("Register", &json!({}), LONG).unwrap_err();
        assert!(
            matches!(&failure, ConnectFailure::Certificate(error) if error.to_string().contains("from a CA that is not in pixie")),
            "{failure:?}"
        );
    }
}
