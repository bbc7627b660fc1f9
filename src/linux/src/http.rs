//! HTTP clients, blocking unless their name contains `async`: rustls with ring, and the system's CA certificates.

pub mod privileged_port;
pub mod proxies;
pub mod scheme_mismatch;

use common::bounded_read::read_whole;
use common::error::{Context, Phase, Result};
use proxies::{ProxyScope, use_proxies};
use reqwest::blocking::{Client, ClientBuilder, Response};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};
use rustls::CertificateError;
use std::error::Error as StdError;
use std::io::{self, Read};
use std::net::IpAddr;
use std::time::Duration;
use time::OffsetDateTime;

const CONNECT: Duration = Duration::from_secs(10);

/// Maximum size of a control plane's response, in bytes. For comparison: a list of ten thousand machines takes several
/// million bytes.
const ANSWER_BYTES: u64 = 64 << 20;
/// Maximum number of bytes that are read from an error response.
const REFUSAL_BYTES: u64 = 64 << 10;

/// Reads the body of a response.
///
/// # Errors
/// Returns an error if the connection is interrupted, or the response exceeds the limit.
pub fn read_response(response: Response) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::other(format!("the response has more than {ANSWER_BYTES} bytes"));
    read_whole(response, ANSWER_BYTES)?.ok_or_else(too_long)
}

/// Reads the beginning of an error response. An unreadable body is ignored, because the HTTP status is sufficient for
/// an error message.
pub fn read_error_response(response: Response) -> String {
    let mut body = Vec::new();
    let _ = response.take(REFUSAL_BYTES).read_to_end(&mut body);
    String::from_utf8_lossy(&body).into_owned()
}

/// Reads the body of a response to an asynchronous request.
///
/// # Errors
/// The same errors as for [`read_response`].
pub async fn read_async_response(response: reqwest::Response) -> io::Result<Vec<u8>> {
    let (body, is_complete) = read_up_to(response, ANSWER_BYTES).await?;
    let too_long = || io::Error::other(format!("the response has more than {ANSWER_BYTES} bytes"));
    is_complete.then_some(body).ok_or_else(too_long)
}

/// Reads the body of a response to an asynchronous request. The body may be at most `limit` bytes long.
///
/// # Errors
/// Returns an error if the connection is interrupted, or the response exceeds the limit.
pub async fn read_async_response_up_to(response: reqwest::Response, limit: u64) -> io::Result<Vec<u8>> {
    let (body, is_complete) = read_up_to(response, limit).await?;
    is_complete.then_some(body).ok_or_else(|| io::Error::other(format!("the response has more than {limit} bytes")))
}

/// Asynchronous form of [`read_error_response`].
pub async fn read_async_error_response(response: reqwest::Response) -> String {
    let (body, _) = read_up_to(response, REFUSAL_BYTES).await.unwrap_or_default();
    String::from_utf8_lossy(&body).into_owned()
}

/// Returns at most `limit` bytes of the body, and whether these are all bytes.
async fn read_up_to(mut response: reqwest::Response, limit: u64) -> io::Result<(Vec<u8>, bool)> {
    let (mut body, limit) = (Vec::new(), usize::try_from(limit).unwrap_or(usize::MAX));
    while let Some(chunk) = response.chunk().await.map_err(io::Error::other)? {
        body.extend_from_slice(&chunk);
        if body.len() > limit {
            body.truncate(limit);
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

/// Returns the pause before the next attempt that the server requests in the header `Retry-After`. Returns `None` if
/// the response lacks this header, or the value of the header is not a number of seconds.
pub fn requested_pause(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Returns a client for requests with small responses. The client does not use proxies. It has no timeout: callers set
/// a timeout for each request with `RequestBuilder::timeout`.
///
/// # Errors
/// Returns an error if TLS cannot be set up. Missing CA certificates are not an error: `http://` works without them.
pub fn new_client() -> Result<Client> {
    build_client(&|| client_builder(None))
}

/// Returns a client for requests from operators. These requests contain a token, so the client uses the environment's
/// proxies only for https.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_operator_client() -> Result<Client> {
    build_client(&|| use_proxies(client_builder(None), ProxyScope::Https))
}

/// Returns a client for downloading images, which uses the environment's proxies. `stall` has the same meaning as for
/// [`new_streaming_client`].
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_download_client(stall: Option<Duration>) -> Result<Client> {
    build_client(&|| use_proxies(client_builder(stall), ProxyScope::All))
}

/// Returns a client for requests with registry credentials. The client does not follow redirects, and uses the
/// environment's proxies only for https.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_login_client() -> Result<Client> {
    build_client(&|| use_proxies(client_builder(None), ProxyScope::Https).redirect(Policy::none()))
}

/// Returns a client for requests that contain a secret. The client does not follow redirects.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_client_without_redirects() -> Result<Client> {
    build_client(&|| client_builder(None).redirect(Policy::none()))
}

/// Returns a client for devices that require a password. The client does not follow redirects. It uses a new connection
/// for each request, because some devices close connections without notice. If `insecure` is true, the client accepts
/// any certificate.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_device_client(insecure: bool) -> Result<Client> {
    let builder = || client_builder(None).redirect(Policy::none()).pool_max_idle_per_host(0);
    build_client(&|| builder().tls_danger_accept_invalid_certs(insecure))
}

/// Returns a client for long bodies. The response headers, and each read of the body, may take up to `stall`; there is
/// no time limit for the whole body.
///
/// Do not also set `RequestBuilder::timeout` of reqwest's blocking client, which would limit the time for the whole
/// body.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_streaming_client(stall: Duration) -> Result<Client> {
    build_client(&|| client_builder(Some(stall)))
}

fn build_client(builder: &dyn Fn() -> ClientBuilder) -> Result<Client> {
    match builder().build() {
        Ok(client) => Ok(client),
        Err(error) => {
            warn_of_missing_tls(error);
            build_without_roots(builder())
        }
    }
}

fn warn_of_missing_tls(error: reqwest::Error) {
    let why = common::error::Error::with_source(Phase::Control, "TLS", error);
    tracing::warn!("https is not available, so the agent can use only http: {why}");
}

/// Appends `suffix` to the path of a URL. The query of the URL, if any, stays at the end.
pub fn append_to_path(url: &str, suffix: &str) -> String {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    format!("{path}{suffix}{query}")
}

/// Returns an asynchronous client for requests with small responses, with the properties of [`new_client`]. The client
/// connects from the address `source`, if it is set. It does not follow redirects: a POST would become a GET, and the
/// response of another server would count as the response of the control plane.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_async_client(source: Option<IpAddr>) -> Result<reqwest::Client> {
    let builder = || async_client_builder().local_address(source).redirect(Policy::none());
    let client = builder().build().or_else(|error| {
        warn_of_missing_tls(error);
        builder().tls_certs_only([]).build()
    });
    client.context(Phase::Control, || "set up an HTTP client")
}

/// Returns an asynchronous client for requests to an identity provider. If `authorities` (certificates in PEM) are
/// specified, the client trusts them instead of the host's CA certificates. The client does not follow redirects, and
/// uses the environment's proxies only for https.
///
/// # Errors
/// The same errors as for [`new_client`].
pub fn new_async_login_client(authorities: Option<&[u8]>) -> Result<reqwest::Client> {
    let what = || "set up a client for the identity provider";
    let builder = || proxies::use_async_proxies(async_client_builder(), ProxyScope::Https).redirect(Policy::none());
    if let Some(pem) = authorities {
        let trusted = reqwest::Certificate::from_pem_bundle(pem).context(Phase::Control, what)?;
        return builder().tls_certs_only(trusted).build().context(Phase::Control, what);
    }
    let client = builder().build().or_else(|error| {
        warn_of_missing_tls(error);
        builder().tls_certs_only([]).build()
    });
    client.context(Phase::Control, what)
}

/// Returns a builder with the settings that all clients share. The client does not use a proxy unless the caller adds
/// [`proxies`] to the builder.
pub fn client_builder(timeout: Option<Duration>) -> ClientBuilder {
    ClientBuilder::from(async_client_builder()).timeout(timeout)
}

fn async_client_builder() -> reqwest::ClientBuilder {
    // An error is ignored: it only means that an earlier call has already installed the cryptographic provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let agent = concat!("drophammer/", env!("CARGO_PKG_VERSION"));
    // No Referer header is sent: on a redirect, it would disclose the URL and its query, which may be secret, to the
    // other host. HTTP/2 is not used: all ranges of an image would be sent over one connection, and fetching the ranges
    // in parallel would have no benefit.
    let client = reqwest::Client::builder().user_agent(agent).connect_timeout(CONNECT).referer(false);
    let client = client.no_proxy();
    client.http1_only().redirect(Policy::custom(|attempt| match attempt.previous().last() {
        Some(before) if is_downgrade(before, attempt.url()) => attempt.error("refused a redirect from https to http"),
        _ => Policy::default().redirect(attempt),
    }))
}

/// Returns whether a redirect leads from TLS to an unencrypted connection.
fn is_downgrade(before: &Url, next: &Url) -> bool {
    before.scheme() == "https" && next.scheme() != "https"
}

/// Returns whether the error is caused by an untrusted certificate of the peer. A retry would fail with the same error.
/// Returns false for a certificate that is not yet valid: this machine's clock may be slow, and may be corrected before
/// a retry.
pub fn is_untrusted_certificate(error: &(dyn StdError + 'static)) -> bool {
    use CertificateError::{NotValidYet, NotValidYetContext};
    find_certificate_error(error).is_some_and(|error| !matches!(error, NotValidYet | NotValidYetContext { .. }))
}

/// Returns text with the current time of this machine's clock, for use in a message, if the error is caused by a
/// certificate that has expired or is not yet valid. Returns an empty string for other errors.
pub fn describe_clock(error: &(dyn StdError + 'static)) -> String {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    match find_certificate_error(error) {
        Some(NotValidYet | NotValidYetContext { .. } | Expired | ExpiredContext { .. }) => {
            let now = OffsetDateTime::now_utc();
            let (date, [hour, minute, _]) = (now.date(), <[u8; 3]>::from(now.to_hms()));
            format!(" (this machine's clock, which may be wrong, shows {date} {hour:02}:{minute:02} UTC)")
        }
        _ => String::new(),
    }
}

fn find_certificate_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
        return Some(why);
    }
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.and_then(|inner| find_certificate_error(inner)).or_else(|| find_certificate_error(error.source()?))
}

/// Returns a client without CA certificates, which can be used for plain HTTP. Without installed CA certificates, the
/// platform's certificate verifier fails, so the normal client cannot be built.
fn build_without_roots(builder: ClientBuilder) -> Result<Client> {
    builder.tls_certs_only([]).build().context(Phase::Control, || "create an HTTP client")
}

/// Returns whether a retry of the request may succeed. A retry after status 501 or 505 is useless, because these errors
/// are permanent properties of the server.
pub fn is_retryable(status: StatusCode) -> bool {
    let for_good = [StatusCode::NOT_IMPLEMENTED, StatusCode::HTTP_VERSION_NOT_SUPPORTED];
    let asked_to_wait = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    (status.is_server_error() && !for_good.contains(&status)) || asked_to_wait.contains(&status)
}

/// Returns a random duration between half of `pause` and `pause`, so that machines that have lost the connection to the
/// same server do not retry simultaneously.
pub fn add_jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::http::{ResponseBehavior, Server};

    fn ok() -> Server {
        Server::start(b"ok".to_vec(), |_| ResponseBehavior::default())
    }

    #[test]
    fn client_sends_its_name_and_version() {
        let server = ok();
        assert_eq!(new_client().unwrap().get(server.url("")).send().unwrap().text().unwrap(), "ok");
        let who = concat!("drophammer/", env!("CARGO_PKG_VERSION"));
        let request = &server.requests()[0];
        assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with(who)), "{request:?}");
    }

    #[test]
    fn http_works_without_any_ca_certificate() {
        new_client().unwrap();
        let client = build_without_roots(Client::builder()).unwrap();
        assert_eq!(client.get(ok().url("")).send().unwrap().text().unwrap(), "ok");
    }

    #[test]
    fn redirects_from_https_to_other_schemes_are_downgrades() {
        for (before, next, is) in [
            ("https://h/a", "http://h/a", true),
            ("https://h/a", "https://other/a", false),
            ("http://h/a", "https://h/a", false),
            ("http://h/a", "http://other/a", false),
            ("https://h/a", "ftp://h/a", true),
        ] {
            assert_eq!(is_downgrade(&before.parse().unwrap(), &next.parse().unwrap()), is, "{before} {next}");
        }
    }

    #[test]
    fn untrusted_certificate_is_found_in_wrapped_errors() {
        let tls = |error: rustls::Error| std::io::Error::other(error);
        let unknown = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(is_untrusted_certificate(&unknown()) && is_untrusted_certificate(&tls(unknown())));
        let wrapped = common::error::Error::with_source(Phase::Image, "x", std::io::Error::other(tls(unknown())));
        assert!(is_untrusted_certificate(&wrapped));
        assert!(!is_untrusted_certificate(&tls(rustls::Error::HandshakeNotComplete)));
        assert!(!is_untrusted_certificate(&std::io::Error::other("connection reset")));
        // The certificate may become valid once the clock is corrected.
        let early = || rustls::Error::InvalidCertificate(CertificateError::NotValidYet);
        let late = || rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(!is_untrusted_certificate(&tls(early())) && is_untrusted_certificate(&tls(late())));
        for (error, names_the_clock) in [(early(), true), (late(), true), (unknown(), false)] {
            let text = describe_clock(&tls(error));
            assert_eq!(
                text.starts_with(" (this machine's clock, which may be wrong, shows 2"),
                names_the_clock,
                "{text}"
            );
            assert_eq!(text.ends_with(" UTC)"), names_the_clock, "{text}");
        }
    }

    #[test]
    fn retryable_status_codes_are_recognized() {
        for code in [500, 502, 503, 504, 408, 429] {
            assert!(is_retryable(StatusCode::from_u16(code).unwrap()), "{code}");
        }
        for code in [200, 206, 301, 400, 401, 403, 404, 405, 410, 416, 501, 505] {
            assert!(!is_retryable(StatusCode::from_u16(code).unwrap()), "{code}");
        }
    }

    #[test]
    fn retry_after_is_parsed_in_seconds() {
        let pause = |text: &str| requested_pause(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]));
        assert_eq!([pause("5"), pause(" 120 ")], [5, 120].map(|seconds| Some(Duration::from_secs(seconds))));
        for other in ["", "-1", "1.5", "soon", "Fri, 31 Dec 1999 23:59:59 GMT", "99999999999999999999"] {
            assert_eq!(pause(other), None, "{other}");
        }
        assert_eq!(requested_pause(&HeaderMap::new()), None);
    }
}
