//! Requests that the agent accepts, and the responses of the agent. This module does not contain network code.
//!
//! The token is checked before the body is read, so requests without a token cost almost nothing.

use super::commands::CommandList;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// Response to a request. The JSON body is null if the response has no body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentResponse {
    pub status: u16,
    pub body: Value,
    /// Path that the client is redirected to; `None` if the response is not a redirect.
    pub location: Option<&'static str>,
}

impl AgentResponse {
    fn new_ok(body: Value) -> AgentResponse {
        AgentResponse { status: 200, body, location: None }
    }

    /// Creates an error response. A conductor reads `faultstring`.
    pub(crate) fn new_fault(status: u16, words: impl Into<String>) -> AgentResponse {
        let code = if status < 500 { "Client" } else { "Server" };
        AgentResponse { status, body: json!({ "faultcode": code, "faultstring": words.into() }), location: None }
    }
}

/// Accepted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcceptedRequest {
    /// Request that does not have a body.
    Now(ApiResource),
    Order {
        wait: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiResource {
    Root,
    Version,
    Status,
    Commands,
    Command(String),
}

/// Request handler.
pub(crate) struct RequestHandler {
    commands: Arc<CommandList>,
    token: RwLock<Option<String>>,
    since: OffsetDateTime,
}

impl RequestHandler {
    pub(crate) fn new(commands: Arc<CommandList>) -> RequestHandler {
        RequestHandler { commands, token: RwLock::default(), since: SystemTime::now().into() }
    }

    /// Sets the token that authorizes commands.
    pub(crate) fn set_token(&self, token: &str) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token.to_owned());
    }

    /// Checks method, path and query of a request.
    ///
    /// # Errors
    /// Returns the response to a rejected request, whose body is not read.
    pub(crate) fn check_head(&self, method: &str, path: &str, query: &str) -> Result<AcceptedRequest, AgentResponse> {
        let page = match path {
            "/" => ApiResource::Root,
            "/v1/" => ApiResource::Version,
            "/v1/status" => ApiResource::Status,
            "/v1/commands/" => ApiResource::Commands,
            "/v1" => {
                return Err(AgentResponse {
                    location: Some("/v1/"),
                    ..AgentResponse::new_fault(308, "308 Permanent Redirect")
                });
            }
            "/v1/commands" => {
                return Err(AgentResponse {
                    location: Some("/v1/commands/"),
                    ..AgentResponse::new_fault(308, "308 Permanent Redirect")
                });
            }
            _ => match path.strip_prefix("/v1/commands/") {
                Some(id) if !id.contains('/') => ApiResource::Command(id.to_owned()),
                _ => return Err(AgentResponse::new_fault(404, "404 Not Found: there is nothing at this path.")),
            },
        };
        let of_commands = matches!(page, ApiResource::Commands | ApiResource::Command(_));
        match method {
            "GET" | "HEAD" if !of_commands || self.has_token(query) => Ok(AcceptedRequest::Now(page)),
            "POST" if page == ApiResource::Commands && self.has_token(query) => {
                let wait = last_query_value(query, "wait").is_some_and(|wait| wait.eq_ignore_ascii_case("true"));
                Ok(AcceptedRequest::Order { wait })
            }
            "GET" | "HEAD" => Err(missing_token_response()),
            "POST" if page == ApiResource::Commands => Err(missing_token_response()),
            _ => Err(AgentResponse::new_fault(405, "405 Method Not Allowed: this path does not support the method.")),
        }
    }

    pub(crate) fn read_resource(&self, page: &ApiResource) -> AgentResponse {
        let version = json!({ "id": "v1", "links": [] });
        match page {
            ApiResource::Root => AgentResponse::new_ok(json!({
                "name": concat!("drophammer ", env!("CARGO_PKG_VERSION")),
                "description": "Speaks the protocol of ironic-python-agent.",
                "versions": [version], "default_version": version,
            })),
            ApiResource::Version => AgentResponse::new_ok(version),
            ApiResource::Status => AgentResponse::new_ok(json!({
                "version": env!("CARGO_PKG_VERSION"),
                "started_at": self.since.format(&Rfc3339).unwrap_or_default(),
            })),
            ApiResource::Commands => AgentResponse::new_ok(json!({ "commands": self.commands.all_results() })),
            ApiResource::Command(id) => {
                let found = id.parse::<Uuid>().ok().and_then(|id| self.commands.find_result(id));
                let absent =
                    || AgentResponse::new_fault(404, format!("Not found: Command Result with id {id} not found."));
                found.map_or_else(absent, |found| AgentResponse::new_ok(json!(found)))
            }
        }
    }

    /// Executes a command request. If `wait` is set, returns only after the command has finished.
    pub(crate) fn accept_command(&self, wait: bool, body: &[u8]) -> AgentResponse {
        let body: Value = match serde_json::from_slice(body) {
            Ok(body) => body,
            Err(error) => {
                return AgentResponse::new_fault(
                    400,
                    format!("400 Bad Request: Failed to decode JSON object: {error}"),
                );
            }
        };
        let Some((name, params)) = parse_command_body(body) else {
            return AgentResponse::new_fault(400, "400 Bad Request: Missing or invalid name or params");
        };
        match self.commands.accept_command(&name, params, wait) {
            Ok(result) => AgentResponse::new_ok(json!(result)),
            Err(refused) => {
                let (status, words) = refused.http_response();
                AgentResponse::new_fault(status, words)
            }
        }
    }

    pub(crate) fn has_token(&self, query: &str) -> bool {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(token), Some(given)) = (token.as_deref(), last_query_value(query, "agent_token")) else {
            return false;
        };
        // Digests of the tokens are compared instead of the tokens themselves, so that the duration of the comparison
        // does not reveal a part of the expected token.
        Sha256::digest(token) == Sha256::digest(given)
    }
}

fn parse_command_body(body: Value) -> Option<(String, Map<String, Value>)> {
    let Value::Object(mut body) = body else { return None };
    match (body.remove("name")?, body.remove("params")?) {
        (Value::String(name), Value::Object(params)) => Some((name, params)),
        _ => None,
    }
}

fn missing_token_response() -> AgentResponse {
    AgentResponse::new_fault(401, "401 Unauthorized: Token invalid.")
}

/// Returns the value of a query parameter, or the last value if the parameter is repeated. Percent-encoded tokens are
/// accepted, even though tokens are URL-safe base64 and need no encoding.
fn last_query_value(query: &str, name: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://agent/?{query}")).ok()?;
    url.query_pairs().filter(|(key, _)| key == name).last().map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::commands::tests::gated_executor;
    use super::*;
    use proptest::prelude::*;

    fn routes() -> RequestHandler {
        let (work, _) = gated_executor();
        let routes = RequestHandler::new(CommandList::new(work));
        routes.set_token("wk56bY3h3cTPPZStDlqEixaQUjWvCzilPdrlrJ0FAbM");
        routes
    }

    const TOKEN: &str = "agent_token=wk56bY3h3cTPPZStDlqEixaQUjWvCzilPdrlrJ0FAbM";

    #[test]
    fn requests_without_the_token_are_rejected() {
        let routes = routes();
        for query in ["", "agent_token=", "agent_token=wk56", "wait=true", &format!("{TOKEN}&agent_token=x")] {
            for method in ["GET", "POST"] {
                let answer = routes.check_head(method, "/v1/commands/", query).unwrap_err();
                let words = json!({"faultcode": "Client", "faultstring": "401 Unauthorized: Token invalid."});
                assert_eq!((answer.status, answer.body), (401, words), "{method} {query}");
            }
            assert_eq!(routes.check_head("GET", "/v1/commands/x", query).unwrap_err().status, 401);
        }
        let (work, _) = gated_executor();
        let nobody = RequestHandler::new(CommandList::new(work));
        assert_eq!(nobody.check_head("GET", "/v1/commands/", "agent_token=").unwrap_err().status, 401);
    }

    #[test]
    fn paths_and_methods_match_ironic_python_agent() {
        let routes = routes();
        for (method, path, status) in [
            ("GET", "/v1/commands", 308),
            ("POST", "/v1/commands", 308),
            ("GET", "/v1", 308),
            ("GET", "/v2/", 404),
            ("GET", "/v1/commands/a/b", 404),
            ("DELETE", "/v1/commands/", 405),
            ("POST", "/v1/status", 405),
            ("POST", "/v1/commands/x", 405),
        ] {
            let answer = routes.check_head(method, path, TOKEN).unwrap_err();
            assert_eq!(answer.status, status, "{method} {path}");
            assert!(answer.body["faultstring"].is_string(), "{method} {path}");
        }
        for path in ["/", "/v1/", "/v1/status"] {
            let Ok(AcceptedRequest::Now(page)) = routes.check_head("GET", path, "") else { panic!("{path}") };
            assert_eq!(routes.read_resource(&page).status, 200, "{path}");
        }
        let wanted = routes.check_head("POST", "/v1/commands/", &format!("wait=True&{TOKEN}"));
        assert_eq!(wanted, Ok(AcceptedRequest::Order { wait: true }));
        let wanted = routes.check_head("POST", "/v1/commands/", &format!("wait=false&{TOKEN}"));
        assert_eq!(wanted, Ok(AcceptedRequest::Order { wait: false }));
        assert_eq!(routes.read_resource(&ApiResource::Commands).body, json!({"commands": []}));
        let absent = routes.read_resource(&ApiResource::Command("7".into()));
        assert_eq!(absent.body["faultstring"], "Not found: Command Result with id 7 not found.");
    }

    #[test]
    fn refuses_invalid_commands_as_ironic_python_agent_does() {
        let routes = routes();
        for (body, status, words) in [
            ("", 400, "400 Bad Request: Failed to decode JSON object: "),
            ("{", 400, "400 Bad Request: Failed to decode JSON object: "),
            ("[]", 400, "400 Bad Request: Missing or invalid name or params"),
            ("{\"name\": \"a.b\"}", 400, "400 Bad Request: Missing or invalid name or params"),
            ("{\"name\": 7, \"params\": {}}", 400, "400 Bad Request: Missing or invalid name or params"),
            ("{\"name\": \"a.b\", \"params\": []}", 400, "400 Bad Request: Missing or invalid name or params"),
            ("{\"name\": \"sync\", \"params\": {}}", 400, "Invalid command: Command name must be of the form"),
            ("{\"name\": \"a.b\", \"params\": {}}", 404, "Not found: Extension with id a not found."),
            ("{\"name\": \"log.b\", \"params\": {}}", 400, "Invalid command: Unknown command: b"),
        ] {
            let answer = routes.accept_command(false, body.as_bytes());
            assert_eq!(answer.status, status, "{body}");
            assert!(answer.body["faultstring"].as_str().unwrap().starts_with(words), "{body}: {answer:?}");
        }
    }

    proptest! {
        /// Every refusal has the field that a conductor reads, and invalid requests never create a command.
        #[test]
        fn any_request_gets_a_response(method in "GET|POST|PUT|[A-Z]{0,5}", path in "/?(v1/)?(commands/?)?\\PC{0,20}",
            query in "(agent_token=)?\\PC{0,20}", body in "\\PC{0,60}|\\{\"name\": \"\\PC{0,9}\", \"params\": \\{\\}\\}") {
            let routes = routes();
            let answers = [routes.check_head(&method, &path, &query).err(), Some(routes.accept_command(false, body.as_bytes()))];
            for answer in answers.into_iter().flatten() {
                prop_assert!(answer.status >= 300 && answer.body["faultstring"].is_string(), "{:?}", answer);
            }
            prop_assert_eq!(routes.read_resource(&ApiResource::Commands).body, json!({"commands": []}));
        }
    }
}
