//! REST requests of API v1, signed with the field `hmac` of pixie's configuration: the machine with its allocation, and
//! the record of its BMC.

use crate::metal_stack::pixie_config;
use common::bounded_read::read_whole;
use common::encoding::encode_hex;
use common::error::{Context, Error, Phase, Result};
use common::format::untrusted_text_limits;
use linux::http;
use model::allocation::AssignedMachine;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use ring::hmac;
use serde_json::Value;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response, in bytes. The largest layouts are tens of kilobytes, and user data can be 32 KiB.
const DOCUMENT_BYTES: u64 = 4 << 20;

/// Length of the salt in a signature, in characters.
const SALT_LENGTH: usize = 24;

/// Maximum length of a server's error message, in characters.
const MAXIMUM_ERROR_CHARACTERS: usize = 500;

/// Maximum number of disks that are read from a machine's registration.
const MAXIMUM_DISKS: usize = 512;

/// REST client of metal-stack's API v1.
pub(crate) struct RestClient {
    client: Client,
    /// URL without a trailing slash.
    url: String,
    key: String,
}

/// Reason why a REST request failed.
#[derive(Debug)]
pub(crate) enum RestFailure {
    /// The signature was rejected.
    Signature(Error),
    /// The requested object does not exist on the server.
    Missing(Error),
    /// Any other failure. A retry may succeed.
    Transient(Error),
    Permanent(Error),
}

impl RestFailure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            RestFailure::Signature(error)
            | RestFailure::Missing(error)
            | RestFailure::Transient(error)
            | RestFailure::Permanent(error) => error,
        }
    }
}

impl RestClient {
    /// Creates a client that trusts the CA certificates of the system, and the CA certificate in pixie's configuration.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub fn new(api: &pixie_config::V1Credentials) -> Result<RestClient> {
        let what = || "`ca_cert` of pixie's configuration";
        let roots = || reqwest::Certificate::from_pem_bundle(api.ca_cert.as_bytes()).context(Phase::Control, what);
        // Redirects are disabled, because the signature must not be sent to another host.
        let builder = || http::client_builder(None).redirect(reqwest::redirect::Policy::none());
        let client = match builder().tls_certs_merge(roots()?).build() {
            Ok(client) => client,
            // The ramdisk contains no CA certificates, so only the configured certificate is trusted.
            Err(_) => builder().tls_certs_only(roots()?).build().context(Phase::Control, what)?,
        };
        Ok(RestClient { client, url: api.metal_api_url.clone(), key: api.hmac.clone() })
    }

    /// Fetches and parses the machine.
    ///
    /// # Errors
    /// Fails if the server is unreachable, rejects the request, or sends a malformed response.
    pub(crate) fn fetch_machine<T>(
        &self,
        machine: &str,
        read: impl FnOnce(&[u8]) -> serde_json::Result<T>,
    ) -> Result<T, RestFailure> {
        self.fetch(&format!("/v1/machine/{machine}"), read)
    }

    /// Fetches and parses the record of the machine's BMC, with its credentials.
    ///
    /// # Errors
    /// Fails as [`RestClient::fetch_machine`] does.
    pub(crate) fn fetch_bmc<T>(
        &self,
        machine: &str,
        read: impl FnOnce(&[u8]) -> serde_json::Result<T>,
    ) -> Result<T, RestFailure> {
        self.fetch(&format!("/v1/machine/{machine}/ipmi"), read)
    }

    fn fetch<T>(&self, path: &str, read: impl FnOnce(&[u8]) -> serde_json::Result<T>) -> Result<T, RestFailure> {
        let url = format!("{}{path}", self.url);
        let (now, salt) = (OffsetDateTime::now_utc(), generate_salt());
        let date = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let request =
            self.client.get(&url).timeout(REQUEST_TIMEOUT).header("x-date", &date).header("x-data-salt", &salt);
        let request =
            request.header("authorization", format!("Metal-View {}", sign_request(&self.key, &date, "GET", &salt)));
        let response = request.send().map_err(|error| connection_failure(&url, error))?;
        let status = response.status();
        let text = read_bounded(response);
        if status != StatusCode::OK {
            return Err(response_failure(&url, status, &text.unwrap_or_default()));
        }
        let passing = |why: String| RestFailure::Transient(Error::new(Phase::Control, format!("{url}: {why}")));
        let text = text.map_err(|error| passing(format!("the response is truncated: {error}")))?;
        read(&text).map_err(|why| passing(format!("cannot parse the response: {why}")))
    }
}

/// Parses a machine in metal-api's format, in which absent values are null or omitted. Ignores the fields that only
/// drophammer's own server adds.
pub(crate) fn parse_machine(text: &[u8]) -> Result<AssignedMachine, serde_json::Error> {
    const OWN: [&str; 13] = [
        "order",
        "installed",
        "erase",
        "steps",
        "begun_on",
        "attempt_record",
        "former_machines",
        "definition",
        "finish",
        "network",
        "kernel_arguments",
        "approved",
        "give_up",
    ];
    let mut document: Value = serde_json::from_slice(text)?;
    remove_nulls(&mut document);
    if let Some(allocation) = document.get_mut("allocation").and_then(Value::as_object_mut) {
        OWN.iter().for_each(|name| drop(allocation.remove(*name)));
        // A console password from the server is ignored. The agent generates the password itself, and sends it to the
        // server in the report.
        allocation.remove("console_password");
        // metal-api never sets `succeeded`. It sets `boot_info` when an agent has reported an installation, so
        // `succeeded` is derived from `boot_info`.
        if allocation.contains_key("boot_info") {
            allocation.insert("succeeded".to_owned(), Value::Bool(true));
        }
    }
    serde_json::from_value(document)
}

/// Parses the sizes of the registered disks, in bytes. Omits the other devices that metal-hammer registers: optical
/// drives, virtual devices, and drives without a medium, whose size is 0.
pub(crate) fn read_registered_disks(text: &[u8]) -> Result<Vec<u64>, serde_json::Error> {
    const EXCLUDED_NAME_PREFIXES: [&str; 9] = ["sr", "fd", "loop", "ram", "zram", "nbd", "md", "dm-", "bcache"];
    let document: Value = serde_json::from_slice(text)?;
    let disks = document.get("hardware").and_then(|hardware| hardware.get("disks")).and_then(Value::as_array);
    let sizes = disks.into_iter().flatten().filter_map(|disk| {
        let name = disk.get("name").and_then(Value::as_str).unwrap_or_default();
        let name =
            name.strip_prefix("/dev/").unwrap_or(name).trim_end_matches(|character: char| character.is_ascii_digit());
        let size = disk.get("size").and_then(Value::as_u64).filter(|size| *size > 0)?;
        (!EXCLUDED_NAME_PREFIXES.contains(&name)).then_some(size)
    });
    Ok(sizes.take(MAXIMUM_DISKS).collect())
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns the signature that metal-stack's `security` package defines: the HMAC-SHA256 of date, method and salt, in
/// hexadecimal.
fn sign_request(key: &str, date: &str, method: &str, salt: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let signed = hmac::sign(&key, format!("{date}{method}{salt}").as_bytes());
    encode_hex(signed)
}

fn generate_salt() -> String {
    (0..SALT_LENGTH).map(|_| fastrand::alphabetic()).collect()
}

fn read_bounded(response: Response) -> std::io::Result<Vec<u8>> {
    read_whole(response, DOCUMENT_BYTES)?.ok_or_else(|| std::io::Error::other("the response is too long"))
}

fn response_failure(url: &str, status: StatusCode, text: &[u8]) -> RestFailure {
    let document: Value = serde_json::from_slice(text).unwrap_or_default();
    let message = document.get("message").and_then(Value::as_str).unwrap_or_default();
    let message = untrusted_text_limits::sanitize_message(&untrusted_text_limits::truncate_with_mark(
        message,
        MAXIMUM_ERROR_CHARACTERS,
    ));
    let said = format!("{url}: the control plane answered {status} {message}").trim_end().to_owned();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let why =
                "the control plane rejects the hmac of pixie's configuration, or the clock of this machine is wrong";
            RestFailure::Signature(Error::new(Phase::Control, format!("{said}: {why}")))
        }
        StatusCode::NOT_FOUND => RestFailure::Missing(Error::new(Phase::Control, said)),
        status if http::is_retryable(status) => RestFailure::Transient(Error::new(Phase::Control, said)),
        _ => RestFailure::Permanent(Error::new(Phase::Control, said)),
    }
}

fn connection_failure(url: &str, error: reqwest::Error) -> RestFailure {
    let what = match http::is_untrusted_certificate(&error) {
        true => "the CA of the server's certificate is neither in pixie's configuration nor in the ramdisk",
        false => "no answer",
    };
    RestFailure::Transient(Error::with_source(Phase::Control, format!("{url}: {what}"), error.without_url()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use testing::http::Server;

    fn rest(url: &str) -> RestClient {
        RestClient { client: http::new_client().unwrap(), url: url.to_owned(), key: "secret".to_owned() }
    }

    /// Expected value: `printf 2026-11-24T09:00:00ZGETaaaaaaaaaaaaaaaaaaaaaaaa | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn signature_matches_openssl() {
        let is = sign_request("secret", "2026-11-24T09:00:00Z", "GET", &"a".repeat(24));
        assert_eq!(is, "c0a881bc964995dd989628411386964186d69fb9de68bd9c211203d210163fdc");
    }

    #[test]
    fn request_is_signed_with_date_and_salt() {
        let server = Server::script(&[(200, r#"{"id": "m", "allocation": null}"#)]);
        assert_eq!(rest(&server.url("metal")).fetch_machine("m", parse_machine).unwrap().allocation, None);
        let request = &server.requests()[0];
        let header = |name: &str| request.header(name).unwrap().to_owned();
        let (date, salt) = (header("x-date"), header("x-data-salt"));
        assert_eq!((request.path.as_str(), salt.len(), date.len()), ("/metal/v1/machine/m", 24, 20));
        assert!(date.ends_with('Z') && OffsetDateTime::parse(&date, &Rfc3339).is_ok(), "{date}");
        assert_eq!(header("authorization"), format!("Metal-View {}", sign_request("secret", &date, "GET", &salt)));
    }

    #[test]
    fn http_errors_are_classified_and_explained() {
        for (status, body, words) in [
            (
                401,
                r#"{"message": "no"}"#,
                "401 Unauthorized no: the control plane rejects the hmac of pixie's configuration",
            ),
            (403, "", "the clock of this machine is wrong"),
            (500, "<html>", "answered 500 Internal Server Error"),
            (404, r#"{"message": "no machine"}"#, "404 Not Found no machine"),
            (400, r#"{"message": "no id"}"#, "400 Bad Request no id"),
            (200, "{", "cannot parse the response"),
            (200, "[]", "cannot parse the response"),
        ] {
            let server = Server::script(&[(status, body)]);
            let failure = rest(&server.url("metal")).fetch_machine("m", parse_machine).unwrap_err();
            let kind = match failure {
                RestFailure::Signature(_) => [401, 403].contains(&status),
                RestFailure::Transient(_) => [500, 200].contains(&status),
                RestFailure::Missing(_) => status == 404,
                RestFailure::Permanent(_) => status == 400,
            };
            let error = failure.into_error().to_string();
            assert!(kind && error.contains(words), "{status}: {error}");
        }
    }

    #[test]
    fn null_fields_are_absent_and_drophammer_fields_ignored() {
        let document = json!({
            "id": "m", "name": null, "size": {"id": "c1", "name": null}, "liveliness": "Alive", "events": {"log": null},
            "allocation": {
                "allocationuuid": "a", "hostname": "h", "project": "p", "role": "machine", "reinstall": true, "succeeded": false,
                "image": {"id": "debian-12.0.20261101", "url": "http://i/img.tar.lz4", "features": ["machine"]},
                "filesystemlayout": {"id": "l", "disks": [{"device": "/dev/sda", "partitions": null, "wipeonreinstall": true}]},
                "networks": null, "ssh_pub_keys": null, "user_data": null, "vpn": null, "boot_info": null, "creator": "c",
                "order": {"id": "7"}, "installed": {"machine": "m"}, "begun_on": [{"device": "/dev/sda"}], "steps": [1],
                "console_password": "old", "erase": "none", "approved": 1,
            },
        });
        let machine = parse_machine(document.to_string().as_bytes()).unwrap();
        let allocation = machine.allocation.unwrap();
        assert_eq!((allocation.id.as_str(), allocation.reinstall, allocation.succeeded), ("a", true, false));
        assert_eq!((allocation.order, allocation.installed, allocation.begun_on.len()), (None, None, 0));
        assert_eq!((allocation.ssh_pub_keys.len(), allocation.console_password.as_str()), (0, ""));
        assert_eq!(allocation.filesystemlayout["disks"][0].get("partitions"), None);
        assert_eq!(parse_machine(br#"{"id": "m"}"#).unwrap().allocation, None);
    }

    /// metal-api sets `boot_info` when any agent reports the machine as installed, and never sets `succeeded`.
    #[test]
    fn an_allocation_with_boot_info_is_installed() {
        for (boot_info, succeeded, is_installed) in [
            (json!(null), false, false),
            (
                json!({"image_id": "debian-12", "primary_disk": "", "kernel": "/tmp/kernel", "bootloaderid": "b"}),
                false,
                true,
            ),
            (json!({"image_id": "", "kernel": ""}), false, true),
            (json!({}), false, true),
            (json!(null), true, true),
        ] {
            let document = json!({"id": "m", "allocation": {
                "allocationuuid": "a", "hostname": "h", "image": {"id": "i", "url": "http://i"}, "filesystemlayout": {"id": "l"},
                "succeeded": succeeded, "boot_info": boot_info,
            }});
            let allocation = parse_machine(document.to_string().as_bytes()).unwrap().allocation.unwrap();
            assert_eq!(allocation.succeeded, is_installed, "{document}");
        }
    }

    #[test]
    fn registered_disks_are_read_by_their_sizes() {
        let disk = |name: &str, size: i64| json!({"name": name, "size": size});
        for (hardware, sizes) in [
            (json!(null), vec![]),
            (json!({"disks": null}), vec![]),
            (json!({"disks": [disk("/dev/sda", 10), disk("/dev/nvme0n1", 20), disk("sdb", 10)]}), vec![10, 20, 10]),
            (
                json!({"disks": [disk("/dev/sr0", 2048), disk("/dev/sdc", 0), disk("/dev/sdd", -1), {"size": 5}, 7]}),
                vec![5],
            ),
            (json!({"disks": [disk("/dev/md127", 1), disk("dm-0", 1), disk("/dev/bcache0", 1)]}), vec![]),
        ] {
            let document = json!({"id": "m", "hardware": hardware});
            assert_eq!(read_registered_disks(document.to_string().as_bytes()).unwrap(), sizes, "{document}");
        }
        assert!(read_registered_disks(b"{").is_err());
    }
}
