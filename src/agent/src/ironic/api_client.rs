//! Client of Ironic's API for lookup, heartbeat and inspection. Uses versions 1.62 and 1.68, which every Ironic since
//! 2020 supports.

use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};
use linux::http;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// Timeout of a request to Ironic.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Placeholder that Ironic returns instead of the token if it has already issued the token.
const TOKEN_PLACEHOLDER: &str = "******";

const VERSION: &str = "X-OpenStack-Ironic-API-Version";

/// Maximum size of a response, in bytes. The data of nodes with long histories is several hundred kilobytes.
const ANSWER_BYTES: u64 = 16 << 20;

/// Result of a request to Ironic.
#[derive(Debug)]
pub(crate) enum IronicResult<T> {
    Success(T),
    /// No node has these MACs, or the node does not currently expect an agent. Ironic does not distinguish the two
    /// cases.
    Unknown,
    /// Another operation on the node is in progress.
    Locked,
    /// Ironic has rejected the token, or another value that this agent sent.
    Refused(Error),
    /// No response, or a transient error.
    Unavailable(Error),
}

/// Node that represents this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundIronicNode {
    pub uuid: String,
    /// Token of the agent; `None` if Ironic has already issued the token in an earlier response.
    pub token: Option<String>,
    /// Time that the conductor waits for the next heartbeat.
    pub heartbeat: Duration,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct HeartbeatRequest {
    /// Base URL of the agent, `https://HOST:PORT`.
    pub callback_url: String,
    pub agent_token: String,
    pub agent_version: String,
    /// Certificate of the agent in PEM.
    pub agent_verify_ca: String,
}

/// Client of Ironic.
pub(crate) struct IronicClient {
    client: Client,
    urls: Vec<String>,
}

#[derive(Deserialize)]
struct LookupResponse {
    node: LookupNode,
    config: LookupConfig,
}

#[derive(Deserialize)]
struct LookupNode {
    uuid: String,
}

#[derive(Deserialize)]
struct LookupConfig {
    heartbeat_timeout: u64,
    agent_token: Option<String>,
}

impl From<LookupResponse> for FoundIronicNode {
    fn from(found: LookupResponse) -> FoundIronicNode {
        let token = found.config.agent_token.filter(|token| token != TOKEN_PLACEHOLDER && !token.is_empty());
        FoundIronicNode { uuid: found.node.uuid, token, heartbeat: Duration::from_secs(found.config.heartbeat_timeout) }
    }
}

impl IronicClient {
    /// Creates a client.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub(crate) fn new(urls: &[String]) -> Result<IronicClient> {
        // Redirects are disabled, since the token must not be sent elsewhere.
        Ok(IronicClient { client: http::new_client_without_redirects()?, urls: urls.to_vec() })
    }

    /// Looks up the node with these MACs. Ironic issues the token only once.
    pub(crate) fn look_up_node(&self, macs: &[String]) -> IronicResult<FoundIronicNode> {
        let addresses = macs.join(",");
        let what = "look up this machine";
        let response = self.request_first_available(what, |url| {
            self.client.get(format!("{url}/v1/lookup?addresses={addresses}")).header(VERSION, "1.62")
        });
        parse_response::<LookupResponse>(what, response).try_map(|found| Ok(FoundIronicNode::from(found)))
    }

    /// Sends a heartbeat.
    pub(crate) fn send_heartbeat(&self, node: &str, heartbeat: &HeartbeatRequest) -> IronicResult<()> {
        let response = self.request_first_available("heartbeat", |url| {
            self.client.post(format!("{url}/v1/heartbeat/{node}")).json(heartbeat).header(VERSION, "1.68")
        });
        response.try_map(|_| Ok(()))
    }

    /// Sends the inventory of this machine. If an inspection of this machine is in progress, Ironic returns the node
    /// and issues the token.
    pub(crate) fn send_inventory(&self, callbacks: &[String], found: &Value) -> IronicResult<Option<FoundIronicNode>> {
        let what = "send the inventory";
        let response = request_first(what, callbacks, |url| self.client.post(url).json(found).header(VERSION, "1.84"));
        // If the response cannot be parsed as a lookup, it counts as a success without a node: older versions of Ironic
        // return only the id of the node.
        let parse = |text: Vec<u8>| serde_json::from_slice::<LookupResponse>(&text).ok().map(FoundIronicNode::from);
        response.try_map(|response| read_body(what, response).map(parse))
    }

    fn request_first_available(&self, what: &str, request: impl Fn(&str) -> RequestBuilder) -> IronicResult<Response> {
        request_first(what, &self.urls, request)
    }

    /// Returns the hosts and ports of Ironic, to determine the route to Ironic.
    pub(crate) fn hosts_and_ports(&self) -> Vec<(String, u16)> {
        hosts_and_ports(&self.urls)
    }
}

/// Returns host and port of each URL.
pub(crate) fn hosts_and_ports(urls: &[String]) -> Vec<(String, u16)> {
    let of = |url: &String| {
        let url = Url::parse(url).ok()?;
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        Some((host, url.port_or_known_default()?))
    };
    urls.iter().filter_map(of).collect()
}

impl<T> IronicResult<T> {
    /// Converts the value of a successful response with `convert`. If the conversion fails, returns
    /// [`IronicResult::Unavailable`], as for a missing response.
    fn try_map<U>(self, convert: impl FnOnce(T) -> Result<U>) -> IronicResult<U> {
        match self {
            IronicResult::Success(value) => {
                convert(value).map_or_else(IronicResult::Unavailable, IronicResult::Success)
            }
            IronicResult::Unknown => IronicResult::Unknown,
            IronicResult::Locked => IronicResult::Locked,
            IronicResult::Refused(error) => IronicResult::Refused(error),
            IronicResult::Unavailable(error) => IronicResult::Unavailable(error),
        }
    }
}

/// Sends a request to the first URL that responds.
fn request_first(what: &str, urls: &[String], request: impl Fn(&str) -> RequestBuilder) -> IronicResult<Response> {
    let mut away = None;
    for url in urls {
        match evaluate_response(what, url, request(url).timeout(REQUEST_TIMEOUT).send()) {
            IronicResult::Unavailable(error) => away = Some(error),
            told => return told,
        }
    }
    IronicResult::Unavailable(
        away.unwrap_or_else(|| Error::new(Phase::Control, format!("{what}: no URL of Ironic is configured"))),
    )
}

fn evaluate_response(what: &str, url: &str, answered: reqwest::Result<Response>) -> IronicResult<Response> {
    let response = match answered {
        Ok(response) => response,
        Err(error) => {
            let what = format!("{what}: no answer from {url}");
            return IronicResult::Unavailable(Error::with_source(Phase::Control, what, error.without_url()));
        }
    };
    let status = response.status();
    match status {
        _ if status.is_success() => IronicResult::Success(response),
        StatusCode::NOT_FOUND => IronicResult::Unknown,
        StatusCode::CONFLICT => IronicResult::Locked,
        _ => {
            let said = read_body(what, response).map(|body| parse_fault(&body)).unwrap_or_default();
            let error = Error::new(Phase::Control, format!("{what}: {url} answered {status}: {said}"));
            if http::is_retryable(status) { IronicResult::Unavailable(error) } else { IronicResult::Refused(error) }
        }
    }
}

fn parse_response<T: for<'de> Deserialize<'de>>(what: &str, response: IronicResult<Response>) -> IronicResult<T> {
    response.try_map(|response| {
        let text = read_body(what, response)?;
        serde_json::from_slice(&text).context(Phase::Control, || format!("{what}: cannot parse the response"))
    })
}

fn read_body(what: &str, response: Response) -> Result<Vec<u8>> {
    read_prefix(response, ANSWER_BYTES).context(Phase::Control, || format!("{what}: the response is truncated"))
}

/// Extracts the message of an error response. The body is a JSON object that contains the message as JSON encoded in a
/// string.
fn parse_fault(body: &[u8]) -> String {
    let inner = || {
        let body: Value = serde_json::from_slice(body).ok()?;
        let message = body.get("error_message")?;
        let inner: Value = match message {
            Value::String(text) => serde_json::from_str(text).ok()?,
            other => other.clone(),
        };
        Some(common::format::untrusted_text_limits::sanitize_message(inner.get("faultstring")?.as_str()?))
    };
    inner().unwrap_or_else(|| common::format::replace_hidden(&String::from_utf8_lossy(&body[..body.len().min(300)])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::http::{ResponseBehavior, Server};

    /// Response of Ironic 39, without the fields that the agent does not read.
    const FOUND: &str = r#"{"node": {"uuid": "91a8fc0b-89b9-4d3d-b293-f9c52ced0e52", "properties": {}, "instance_info": {}},
        "config": {"metrics": {"backend": "noop"}, "heartbeat_timeout": 300, "agent_token": "TOKEN", "tls_min_version": "1.3"}}"#;

    fn api(
        act: impl Fn(&testing::http::Request) -> ResponseBehavior + Send + Sync + 'static,
    ) -> (IronicClient, Server) {
        let server = Server::start(Vec::new(), act);
        (IronicClient::new(&[server.url("").trim_end_matches('/').to_owned()]).unwrap(), server)
    }

    #[test]
    fn node_is_looked_up_by_all_macs() {
        let (api, server) = api(|_| ResponseBehavior::respond(200, &FOUND.replace("TOKEN", "ophF")));
        let IronicResult::Success(node) = api.look_up_node(&["52:54:00:aa:00:06".into(), "52:54:00:aa:00:07".into()])
        else {
            panic!()
        };
        assert_eq!((node.uuid.as_str(), node.token.as_deref()), ("91a8fc0b-89b9-4d3d-b293-f9c52ced0e52", Some("ophF")));
        assert_eq!(node.heartbeat, Duration::from_secs(300));
        let request = &server.requests()[0];
        let line = "GET /v1/lookup?addresses=52:54:00:aa:00:06,52:54:00:aa:00:07";
        assert_eq!((request.line().as_str(), request.header("x-openstack-ironic-api-version")), (line, Some("1.62")));
    }

    #[test]
    fn masked_token_counts_as_missing() {
        for words in ["******", ""] {
            let (api, _server) = api(move |_| ResponseBehavior::respond(200, &FOUND.replace("TOKEN", words)));
            assert!(matches!(api.look_up_node(&[]), IronicResult::Success(FoundIronicNode { token: None, .. })));
        }
    }

    #[test]
    fn heartbeat_has_all_fields_for_the_conductor() {
        let (api, server) = api(|_| ResponseBehavior::respond(202, ""));
        let heartbeat = HeartbeatRequest {
            callback_url: "https://127.0.0.1:9999".into(),
            agent_token: "t".into(),
            agent_version: "v".into(),
            agent_verify_ca: "pem".into(),
        };
        assert!(matches!(api.send_heartbeat("n", &heartbeat), IronicResult::Success(())));
        let request = &server.requests()[0];
        assert_eq!(
            (request.line().as_str(), request.header("x-openstack-ironic-api-version")),
            ("POST /v1/heartbeat/n", Some("1.68"))
        );
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["agent_token", "agent_verify_ca", "agent_version", "callback_url"]);
    }

    #[test]
    fn responses_of_ironic_are_distinguished() {
        let fault = r#"{"error_message": "{\"faultcode\": \"Client\", \"faultstring\": \"Invalid or missing agent token received.\", \"debuginfo\": null}"}"#;
        for (status, body, expected) in [
            (404, "", "Unknown"),
            (409, "", "Locked"),
            (400, fault, "Invalid or missing agent token received."),
            (503, "busy", "Unavailable"),
            (200, "no json", "Unavailable"),
            (301, "", "Refused"),
        ] {
            let (api, _server) = api(move |_| ResponseBehavior::respond(status, body));
            let told = format!("{:?}", api.look_up_node(&["m".into()]));
            assert!(told.contains(expected), "{status}: {told}");
        }
        let nobody = IronicClient::new(&["http://127.0.0.1:1".into()]).unwrap().look_up_node(&["m".into()]);
        assert!(matches!(nobody, IronicResult::Unavailable(_)), "{nobody:?}");
        assert!(matches!(IronicClient::new(&[]).unwrap().look_up_node(&[]), IronicResult::Unavailable(_)));
    }

    #[test]
    fn next_url_is_used_if_the_first_is_unreachable() {
        let (_, server) = api(|_| ResponseBehavior::respond(404, ""));
        let urls = ["http://127.0.0.1:1".to_owned(), server.url("").trim_end_matches('/').to_owned()];
        assert!(matches!(IronicClient::new(&urls).unwrap().look_up_node(&[]), IronicResult::Unknown));
        assert_eq!(
            hosts_and_ports(&["http://[::1]:6385/x".to_owned(), "https://h".to_owned()]),
            [("::1".into(), 6385), ("h".into(), 443)]
        );
    }
}
