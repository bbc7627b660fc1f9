//! Pixie's configuration: address and credentials of the control plane.
//!
//! | API of pixie | address | the configuration contains |
//! |---|---|---|
//! | metal-stack's API v2 | `/config/UUID` on the host of `PIXIE_API_URL` | `client`, with a token for this one machine |
//! | v1 | `PIXIE_API_URL` itself | `address`, `metal_api_url`, and a certificate that all machines share |
//!
//! The agent first requests the address of v2. If pixie supports only API v1, this address does not exist, and the
//! agent requests `PIXIE_API_URL` itself. The fields of the response determine the version of the API.

use crate::retry::{AttemptResult, RetryPolicy};
use common::bounded_read::read_whole;
use common::error::{Error, Phase, Result};
use linux::http;
use reqwest::blocking::{Client, Response};
use reqwest::header::DATE;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum size of a response, in bytes. A certificate chain is tens of kilobytes.
const DOCUMENT_BYTES: u64 = 1 << 20;

/// Configuration from pixie.
#[derive(Clone, PartialEq, Eq)]
pub struct PixieConfig {
    pub partition: String,
    pub ntp_servers: Vec<String>,
    pub logging: Option<LoggingConfig>,
    pub api: ApiCredentials,
    /// `Date` header of pixie's response, from pixie's clock.
    pub date: Option<String>,
}

/// Address and credentials of the control plane, by API version.
#[derive(Clone, PartialEq, Eq)]
pub enum ApiCredentials {
    V1(V1Credentials),
    V2(V2Credentials),
}

/// Address and credentials of API v1: gRPC with a client certificate, and REST with a shared key.
#[derive(Clone, PartialEq, Eq)]
pub struct V1Credentials {
    /// Host and port of the gRPC server.
    pub address: String,
    /// URL of the REST server, without a trailing slash.
    pub metal_api_url: String,
    /// CA certificates in PEM; `cert` and `key` are also in PEM.
    pub ca_cert: String,
    pub cert: String,
    pub key: String,
    pub hmac: String,
}

/// Address and credentials of API v2: Connect with a token.
#[derive(Clone, PartialEq, Eq)]
pub struct V2Credentials {
    /// URL without a trailing slash.
    pub url: String,
    pub token: String,
    /// CA certificates in PEM; `None` if the system's CA certificates are used.
    pub ca_cert: Option<String>,
    /// Client certificate followed by its key, in PEM.
    pub identity: Option<String>,
}

/// Server to which the agent's logs are sent.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoggingConfig {
    pub endpoint: String,
    /// Type of the server; only `loki` is supported.
    #[serde(rename = "log_type")]
    pub kind: String,
    pub basic_auth: Option<BasicAuth>,
    pub certificate_auth: Option<CertificateAuth>,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BasicAuth {
    pub user: String,
    pub password: String,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CertificateAuth {
    pub cert: String,
    pub key: String,
    pub insecure_skip_verify: bool,
}

/// Fields of pixie's response that the agent uses, for both API versions.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PixieDocument {
    client: Option<ClientFields>,
    address: Option<String>,
    metal_api_url: Option<String>,
    ca_cert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    hmac: Option<String>,
    partition: Option<String>,
    ntp_servers: Option<Vec<String>>,
    logging: Option<LoggingConfig>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientFields {
    metal_apiserver_url: Option<String>,
    metal_hammer_token: Option<String>,
    ca_cert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// Fetches the configuration. Retries, because pixie may be restarting.
///
/// # Errors
/// Fails if pixie does not respond, or its configuration is incomplete. The message lists the missing fields.
pub fn fetch_config(pixie: &str, machine: &str, retries: RetryPolicy) -> Result<PixieConfig> {
    let client = http::new_client()?;
    retries.run_attempts(|| match fetch_any_version(&client, pixie, machine) {
        Ok(config) => AttemptResult::Done(config),
        Err(error) => AttemptResult::Transient(error),
    })
}

fn fetch_any_version(client: &Client, pixie: &str, machine: &str) -> Result<PixieConfig> {
    let own = v2_config_url(pixie, machine)?;
    if let Some(config) = fetch_config_at(client, &own)? {
        return Ok(config);
    }
    let nothing = || {
        config_error(
            pixie,
            "the configuration does not exist, and a configuration for API v2 does not exist either at ".to_owned()
                + &own,
        )
    };
    fetch_config_at(client, pixie)?.ok_or_else(nothing)
}

/// Returns the address of this machine's configuration in API v2.
fn v2_config_url(pixie: &str, machine: &str) -> Result<String> {
    let mut url: Url =
        pixie.parse().map_err(|error| Error::with_source(Phase::Settings, format!("PIXIE_API_URL={pixie}"), error))?;
    url.set_path(&format!("/config/{machine}"));
    url.set_query(None);
    Ok(url.into())
}

/// Fetches a configuration. Returns `None` if this address does not exist on the server, or the response is not a JSON
/// object.
fn fetch_config_at(client: &Client, url: &str) -> Result<Option<PixieConfig>> {
    let lost = |error: reqwest::Error| {
        Error::with_source(Phase::Control, format!("pixie's configuration at {url}: no answer"), error.without_url())
    };
    let response = client.get(url).timeout(REQUEST_TIMEOUT).send().map_err(lost)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => return Ok(None),
        status => {
            return Err(config_error(
                url,
                format!("the configuration cannot be fetched: the server answered {status}"),
            ));
        }
    }
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    let Some(document) = parse_document(response).map_err(|why| config_error(url, why))? else { return Ok(None) };
    check_document(document, date).map(Some).map_err(|why| config_error(url, why))
}

/// Parses a response. Returns `None` if it is not a JSON object, for example an HTML page of another server.
fn parse_document(response: Response) -> Result<Option<Value>, String> {
    let text =
        read_whole(response, DOCUMENT_BYTES).map_err(|error| format!("the configuration is truncated: {error}"))?;
    let too_long = || {
        format!(
            "the configuration is larger than the limit of {limit}",
            limit = common::format::format_bytes(DOCUMENT_BYTES)
        )
    };
    let text = text.ok_or_else(too_long)?;
    Ok(serde_json::from_slice(&text).ok().filter(Value::is_object))
}

/// Checks the configuration, and reports all missing fields together. The messages do not contain values, because these
/// may be secrets.
fn check_document(document: Value, date: Option<String>) -> Result<PixieConfig, String> {
    let PixieDocument { client, address, metal_api_url, ca_cert, cert, key, hmac, partition, ntp_servers, logging } =
        serde_json::from_value(document)
            .map_err(|error| format!("the configuration cannot be parsed: {}", describe_parse_error(&error)))?;
    let mut missing = Vec::new();
    let mut needed = |name: &'static str, value: Option<String>| {
        let value = value.unwrap_or_default();
        if value.trim().is_empty() {
            missing.push(name);
        }
        value
    };
    let partition = needed("partition", partition);
    let api = match client {
        Some(client) => {
            let url = needed("client.metal_apiserver_url", client.metal_apiserver_url).trim_end_matches('/').to_owned();
            let token = needed("client.metal_hammer_token", client.metal_hammer_token);
            let given = |value: Option<String>| value.filter(|value| !value.trim().is_empty());
            let identity = match (given(client.cert), given(client.key)) {
                (None, None) => None,
                (cert, key) => Some(format!("{}\n{}", needed("client.cert", cert), needed("client.key", key))),
            };
            ApiCredentials::V2(V2Credentials { url, token, ca_cert: given(client.ca_cert), identity })
        }
        None => ApiCredentials::V1(V1Credentials {
            address: needed("address", address),
            metal_api_url: needed("metal_api_url", metal_api_url).trim_end_matches('/').to_owned(),
            ca_cert: needed("ca_cert", ca_cert),
            cert: needed("cert", cert),
            key: needed("key", key),
            hmac: needed("hmac", hmac),
        }),
    };
    if !missing.is_empty() {
        return Err(format!("the configuration is incomplete: missing {}", missing.join(", ")));
    }
    Ok(PixieConfig { partition, ntp_servers: ntp_servers.unwrap_or_default(), logging, api, date })
}

/// Describes a parse error without the value that caused it.
fn describe_parse_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let expected = text.rsplit_once("expected ").map(|(_, expected)| format!("expected {expected}"));
    expected.unwrap_or_else(|| "a field has the wrong type".to_owned())
}

fn config_error(url: &str, why: String) -> Error {
    Error::new(Phase::Control, format!("pixie's configuration at {url}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::NO_RETRIES;
    use serde_json::json;
    use testing::http::Server;

    const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4e4232";

    fn v1() -> Value {
        json!({"debug": true, "address": "api:50051", "metal_api_url": "https://api/metal/", "pixie_api_url": "http://p",
               "ca_cert": "CA", "cert": "CERT", "key": "KEY", "hmac": "H", "partition": "fra",
               "ntp_servers": ["192.0.2.7"], "logging": {"endpoint": "https://loki", "log_type": "loki",
               "basic_auth": {"user": "u", "password": "p"}}})
    }

    fn v2() -> Value {
        json!({"client": {"metal_apiserver_url": "https://api/", "metal_hammer_token": "T", "ca_cert": "CA"},
               "partition": "fra"})
    }

    fn fetched(answers: &[(u16, &str)]) -> (Result<PixieConfig>, Vec<String>) {
        let server = Server::script(answers);
        let config = fetch_config(&server.url("certs?x=1"), MACHINE_ID, NO_RETRIES);
        let paths = server.requests().iter().map(|request| request.path.clone()).collect();
        (config, paths)
    }

    #[test]
    fn reads_configurations_of_api_v1_and_v2() {
        let own = format!("/config/{MACHINE_ID}");
        let (config, paths) = fetched(&[(200, &v2().to_string())]);
        let ApiCredentials::V2(V2Credentials { url, token, ca_cert, identity }) = config.ok().unwrap().api else {
            panic!("not v2")
        };
        assert_eq!(
            (url.as_str(), token.as_str(), ca_cert.as_deref(), identity),
            ("https://api", "T", Some("CA"), None)
        );
        assert_eq!(paths, [own.as_str()]);
        // Possible responses of a pixie of API v1 to this address.
        for unknown in [(404, "404 page not found"), (405, ""), (200, "<html>")] {
            let (config, paths) = fetched(&[unknown, (200, &v1().to_string())]);
            let config = config.ok().unwrap();
            let ApiCredentials::V1(v1) = config.api else { panic!("not v1") };
            assert_eq!((v1.metal_api_url.as_str(), v1.hmac.as_str()), ("https://api/metal", "H"));
            assert_eq!((config.partition.as_str(), &config.ntp_servers[..]), ("fra", &["192.0.2.7".to_owned()][..]));
            assert_eq!(config.logging.unwrap().basic_auth.unwrap().user, "u");
            assert_eq!(paths, [own.as_str(), "/certs?x=1"]);
        }
    }

    #[test]
    fn all_missing_fields_are_named_without_secrets() {
        let without = |mut document: Value, fields: &[&str]| {
            for field in fields {
                match field.split_once('.') {
                    Some((outer, inner)) => drop(document[outer].as_object_mut().unwrap().remove(inner)),
                    None => drop(document.as_object_mut().unwrap().remove(*field)),
                }
            }
            document
        };
        let with = |mut document: Value, field: &str, value: Value| {
            document["client"][field] = value;
            document
        };
        for (document, expected) in [
            (without(v1(), &["hmac", "partition"]), "is incomplete: missing partition, hmac"),
            (without(v2(), &["client.metal_hammer_token"]), "is incomplete: missing client.metal_hammer_token"),
            (with(v2(), "cert", json!("C")), "missing client.key"),
            (with(v2(), "metal_hammer_token", json!(["SECRET"])), "cannot be parsed: "),
            (json!({}), "missing partition, address, metal_api_url, ca_cert, cert, key, hmac"),
        ] {
            let (config, _) = fetched(&[(200, &document.to_string())]);
            let error = config.err().unwrap().to_string();
            assert!(error.contains(expected) && !error.contains("SECRET"), "{error}");
        }
        for (answers, expected) in [
            (&[(404, ""), (404, "")][..], "does not exist, and a configuration for API v2 does not exist either"),
            (&[(502, "")], "cannot be fetched: the server answered 502"),
        ] {
            let error = fetched(answers).0.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(
            fetch_config("http://", MACHINE_ID, NO_RETRIES)
                .err()
                .unwrap()
                .to_string()
                .contains("PIXIE_API_URL=http://")
        );
    }

    #[test]
    fn pixie_configuration_is_requested_until_complete() {
        const QUICK: RetryPolicy = RetryPolicy {
            patience: Duration::from_secs(60),
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(1),
        };
        let half = json!({"client": {}}).to_string();
        let server = Server::script(&[(503, ""), (200, &half), (200, &v2().to_string())]);
        assert!(fetch_config(&server.url("certs"), MACHINE_ID, QUICK).is_ok());
        assert_eq!(server.requests().len(), 3);
    }
}
