//! HTTP client for the operator's API.

use super::ServerOptions;
use super::connection::{ServerConnection, select_connection};
use super::message_rewording;
use ::api::operator_api::MachineSummary;
use common::error::{Context, Error, Phase, Result};
use common::error_code::{self, ErrorCode};
use common::format::untrusted_text_limits;
use common::output::print_note;
use control::agent_api_types::{ErrorBody, REQUEST_ID};
use linux::http;
use linux::http::proxies::{ProxyScope, check_proxy, describe_proxy};
use linux::http::scheme_mismatch::{SchemeMismatch, find_scheme_mismatch};
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Error message of a server for a path without an endpoint.
const NO_ENDPOINT: &str = "no such endpoint";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Client with the address and the token of a server.
pub(crate) struct OperatorClient {
    client: Client,
    connection: ServerConnection,
    /// True if each request is printed (`--verbose`).
    is_verbose: bool,
}

pub(crate) enum OperatorResponse<T> {
    Good(T),
    /// The server has refused the request. Contains the server's message.
    Refused(String),
}

impl<T> OperatorResponse<T> {
    /// Applies a conversion to the server's response. A refusal is returned unchanged.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> OperatorResponse<U> {
        match self {
            OperatorResponse::Good(response) => OperatorResponse::Good(convert(response)),
            OperatorResponse::Refused(why) => OperatorResponse::Refused(why),
        }
    }
}

impl OperatorClient {
    /// Selects the server and the token, and creates the client.
    ///
    /// # Errors
    /// Returns an error if no token is found, or TLS cannot be set up.
    pub(crate) fn new(options: &ServerOptions) -> Result<OperatorClient> {
        let client = OperatorClient::with_connection(select_connection(options)?)?;
        if options.verbose {
            let ServerConnection { url, token_origin, context, .. } = &client.connection;
            let context = context.as_ref().map(|name| format!(", context {name}")).unwrap_or_default();
            print_note(&format!("server {url}, {token_origin}{context}"));
        }
        Ok(OperatorClient { is_verbose: options.verbose, ..client })
    }

    /// Creates the client for this server.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up, the proxy settings for the server are not supported, or the token
    /// cannot be sent.
    pub(crate) fn with_connection(connection: ServerConnection) -> Result<OperatorClient> {
        check_proxy(&connection.url, ProxyScope::Https)?;
        if !connection.token.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
            let why = "is not a token: a token is one line of printable ASCII characters; use a copy of operator.token from the server's directory";
            let message = format!("{} {why}", connection.token_origin);
            return Err(Error::refusal(Phase::Control, message).with_code(ErrorCode::OperatorToken));
        }
        Ok(OperatorClient { client: http::new_operator_client()?, connection, is_verbose: false })
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.connection.url
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let ServerConnection { url, token, .. } = &self.connection;
        self.client.request(method, format!("{url}{path}")).bearer_auth(token).timeout(REQUEST_TIMEOUT)
    }

    /// Returns a request without a token, for an endpoint that requires none.
    pub(crate) fn public_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.connection.url)).timeout(REQUEST_TIMEOUT)
    }

    /// Sends the request and parses the response.
    ///
    /// # Errors
    /// Returns an error if the server does not respond, rejects the token, or fails.
    pub(crate) fn send_json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<OperatorResponse<T>> {
        match self.send_text(request)? {
            OperatorResponse::Refused(said) => Ok(OperatorResponse::Refused(said)),
            OperatorResponse::Good(body) => {
                let what = || {
                    format!(
                        "cannot parse the response of {url}; check that `drophammer serve` runs there",
                        url = self.connection.url
                    )
                };
                serde_json::from_str(&body).map(OperatorResponse::Good).context(Phase::Control, what)
            }
        }
    }

    /// Sends the request and returns the body of the response.
    ///
    /// # Errors
    /// Fails as [`OperatorClient::send_json`] does.
    pub(crate) fn send_text(&self, request: RequestBuilder) -> Result<OperatorResponse<String>> {
        let ServerConnection { url, token_origin, context, .. } = &self.connection;
        let reach = || {
            let proxy = describe_proxy(url, ProxyScope::Https);
            format!(
                "no response from {url}{proxy}; check that `drophammer serve` is running there, or set --server URL"
            )
        };
        let lost = |error: reqwest::Error| match find_scheme_mismatch(&error) {
            Some(mismatch) => {
                Error::new(Phase::Control, describe_scheme_mismatch(url, mismatch)).with_code(ErrorCode::ServerUrl)
            }
            None => Error::with_source(Phase::Control, reach() + &http::describe_clock(&error), error.without_url())
                .with_code(ErrorCode::NoAnswer),
        };
        let response = self.send(request).map_err(lost)?;
        let status = response.status();
        if status.is_success() {
            let body = http::read_response(response).context(Phase::Control, reach)?;
            return Ok(OperatorResponse::Good(String::from_utf8_lossy(&body).into_owned()));
        }
        let ErrorResponse { message: uncoded, code } = ErrorResponse::parse(http::read_error_response(response));
        // The error code is printed even if it is from a newer server, and the manual of this version does not contain
        // it.
        let add_code = |text: String| code.as_deref().map_or(text.clone(), |code| error_code::append(text, code));
        let known = code.as_deref().and_then(ErrorCode::parse);
        match status.as_u16() {
            401 => {
                let named = context.as_ref().map(|name| format!(" --name {name}")).unwrap_or_default();
                let why = format!("{url} rejects {token_origin}: {uncoded}; run `drophammer login {url}{named}`");
                Err(Error::refusal(Phase::Control, why).with_code(ErrorCode::OperatorToken))
            }
            404 if uncoded == NO_ENDPOINT => {
                let why = "check the path of the URL; if the path is right, the server may have an earlier version, which does not support this command";
                Err(Error::new(Phase::Control, format!("{url} does not have this endpoint: {why}"))
                    .with_code(ErrorCode::ServerUrl))
            }
            400 | 403 | 404 | 409 | 422 => {
                let said = add_code(self.reword_refusal(&uncoded));
                Ok(OperatorResponse::Refused(ErrorCode::ControlPlane.annotate_uncoded(said)))
            }
            _ => {
                let said = if known.is_some() { uncoded } else { add_code(uncoded) };
                let error = Error::new(Phase::Control, format!("{url} responded {status}: {said}"));
                Err(known.into_iter().fold(error, Error::with_code))
            }
        }
    }

    /// Sends the request. With `--verbose`, also prints the request and its result.
    fn send(&self, request: RequestBuilder) -> reqwest::Result<Response> {
        if !self.is_verbose {
            return request.send();
        }
        let request = request.build()?;
        let line = format!("{} {}", request.method(), request.url());
        let start = Instant::now();
        let response = self.client.execute(request);
        let result = response.as_ref().map_or_else(|_| "no response".to_owned(), describe_response);
        print_note(&format!("{line}: {result} after {} ms", start.elapsed().as_millis()));
        response
    }
}

/// Returns the status of a response, and the id with which the logs of the server mark the request.
fn describe_response(response: &Response) -> String {
    let id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = id.map(|id| format!(" (request {})", untrusted_text_limits::sanitize_name(id))).unwrap_or_default();
    format!("{}{id}", response.status())
}

/// Error message of a server, without control characters, and its error code.
#[derive(Debug, PartialEq, Eq)]
struct ErrorResponse {
    message: String,
    /// `None` if the server is from an earlier version, or the code does not have the form of a code.
    code: Option<String>,
}

impl ErrorResponse {
    /// Parses the body of a response. The message for a body in an unknown format is the body itself.
    fn parse(body: String) -> ErrorResponse {
        let (message, code) = match serde_json::from_str::<ErrorBody>(&body) {
            Ok(parsed) => (parsed.message, parsed.error_code),
            Err(_) => read_ironic_error(&body).unwrap_or((body, None)),
        };
        let code = code.filter(|code| error_code::is_code(code));
        ErrorResponse { message: untrusted_text_limits::sanitize_message(&message), code }
    }
}

/// Returns message and code of an error in Ironic's format, which the endpoint of deploy templates uses.
fn read_ironic_error(body: &str) -> Option<(String, Option<String>)> {
    let outer: Value = serde_json::from_str(body).ok()?;
    let inner: Value = serde_json::from_str(outer["error_message"].as_str()?).ok()?;
    let message = ["faultstring", "description"].into_iter().find_map(|name| inner[name].as_str())?;
    Some((message.to_owned(), outer["error_code"].as_str().map(str::to_owned)))
}

impl OperatorClient {
    /// Returns the server's message in the product's own wording. If the message contains ids of machines, requests
    /// their names.
    fn reword_refusal(&self, said: &str) -> String {
        let machines = match message_rewording::contains_ids(said) {
            false => Vec::new(),
            true => match self.send_json::<Vec<MachineSummary>>(self.request(Method::GET, "/v1/machines")) {
                Ok(OperatorResponse::Good(machines)) => machines,
                // If the names cannot be read, the ids remain in the message.
                _ => Vec::new(),
            },
        };
        message_rewording::reword_message(said, |id| {
            let named = machines.iter().find(|machine| machine.id == id && !machine.name.is_empty());
            named.map_or_else(|| id.to_owned(), |machine| machine.name.clone())
        })
    }
}

/// Describes a request that has failed because the server uses another URL scheme.
fn describe_scheme_mismatch(url: &str, mismatch: SchemeMismatch) -> String {
    match mismatch {
        SchemeMismatch::ServerLacksTls => {
            format!(
                "{url} does not respond with TLS: use the port of `drophammer serve --tls-listen`, or, if the server has no certificate, http://, which sends the token unencrypted"
            )
        }
        SchemeMismatch::ServerLacksHttp => {
            format!("{url} does not respond with HTTP: if the server has a TLS certificate, use the URL with https://")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::output_capture::recorded;
    use testing::http::{ResponseBehavior, Server};

    #[test]
    fn verbose_commands_print_each_request_but_not_the_token() {
        let server = Server::start(Vec::new(), |request| ResponseBehavior {
            headers: vec![(REQUEST_ID, "5f0c-1".to_owned())],
            ..ResponseBehavior::respond(if request.method == "GET" { 200 } else { 409 }, "{}")
        });
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("operator.token");
        std::fs::write(&token, "secret-token\n").unwrap();
        let url = server.url("").trim_end_matches('/').to_owned();
        let run = |verbose: bool| {
            let (server, token_file) = (Some(url.clone()), Some(token.clone()));
            let options = ServerOptions { server, token_file, verbose, ..ServerOptions::default() };
            recorded(|| {
                let client = OperatorClient::new(&options)?;
                client.send_json::<Value>(client.request(Method::GET, "/v1/machines"))?;
                client.send_text(client.request(Method::DELETE, "/v1/image/a%20b"))
            })
        };
        let output = run(true);
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[0], format!("server {url}, the token in {}", token.display()));
        assert!(lines[1].starts_with(&format!("GET {url}/v1/machines: 200 OK (request 5f0c-1) after ")), "{output}");
        assert!(
            lines[2].starts_with(&format!("DELETE {url}/v1/image/a%20b: 409 Conflict (request 5f0c-1) ")),
            "{output}"
        );
        assert!(lines.len() == 3 && !output.contains("secret-token"), "{output}");
        assert_eq!(run(false), "");
    }

    #[test]
    fn verbose_commands_print_requests_without_a_response() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("operator.token");
        std::fs::write(&token, "t\n").unwrap();
        // Port 1 is not in use, so the connection is refused.
        let (server, token_file) = (Some("http://127.0.0.1:1".to_owned()), Some(token));
        let options = ServerOptions { server, token_file, verbose: true, ..ServerOptions::default() };
        let output = recorded(|| {
            let client = OperatorClient::new(&options)?;
            client.send_text(client.request(Method::GET, "/v1/image"))
        });
        assert!(output.contains("\nGET http://127.0.0.1:1/v1/image: no response after "), "{output}");
        assert!(output.contains("\ndrophammer: no response from http://127.0.0.1:1"), "{output}");
    }

    #[test]
    fn errors_in_both_formats_are_read() {
        for (body, message, code) in [
            (r#"{"statuscode": 404, "message": "none", "error_code": "DH-609"}"#, "none", Some("DH-609")),
            (r#"{"statuscode": 404, "message": "none", "error_code": "DH-1\u001b"}"#, "none", None),
            (r#"{"statuscode": 404, "message": "none"}"#, "none", None),
            (
                r#"{"error_message": "{\"faultcode\": \"Client\", \"faultstring\": \"name is taken\"}"}"#,
                "name is taken",
                None,
            ),
            (
                r#"{"error_message": "{\"code\": 404, \"description\": \"none\"}", "error_code": "DH-609"}"#,
                "none",
                Some("DH-609"),
            ),
            (r#"{"error_message": "text"}"#, r#"{"error_message": "text"}"#, None),
            ("<html>", "<html>", None),
        ] {
            let expected = ErrorResponse { message: message.to_owned(), code: code.map(str::to_owned) };
            assert_eq!(ErrorResponse::parse(body.to_owned()), expected, "{body}");
        }
    }
}
