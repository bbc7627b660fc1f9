//! HTTP clients: blocking, rustls with ring, the system's CA certificates.

#[cfg(feature = "agent")]
pub mod privileged;

use crate::error::{Context, Phase, Result};
use reqwest::blocking::{Client, ClientBuilder, Response};
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};
use std::error::Error as StdError;
use std::io::{self, Read};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);

/// Longest answer of a control plane, in bytes. A list of ten thousand machines has some million.
const ANSWER_BYTES: u64 = 64 << 20;
/// Bytes of a refusal that are read.
const REFUSAL_BYTES: u64 = 64 << 10;

/// Reads the body of an answer.
///
/// # Errors
/// The connection breaks off, or the answer is too long.
pub fn read_answer(response: Response) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    response.take(ANSWER_BYTES + 1).read_to_end(&mut body)?;
    match body.len() as u64 > ANSWER_BYTES {
        true => Err(io::Error::other(format!("the answer has more than {ANSWER_BYTES} bytes"))),
        false => Ok(body),
    }
}

/// Reads the beginning of a refusal. The status says enough if the body cannot be read.
pub fn read_refusal(response: Response) -> String {
    let mut body = Vec::new();
    let _ = response.take(REFUSAL_BYTES).read_to_end(&mut body);
    String::from_utf8_lossy(&body).into_owned()
}

/// For requests with small answers. It has no deadline of its own: set one with `RequestBuilder::timeout`.
///
/// # Errors
/// TLS cannot be set up. Missing CA certificates are no error: `http://` works without them.
pub fn client() -> Result<Client> {
    build(&|| builder(None))
}

/// For requests with a secret in them: what they answer with a redirect is told as it is, and nothing is sent on.
///
/// # Errors
/// As [`client`].
#[cfg(feature = "agent")]
pub fn client_that_stays() -> Result<Client> {
    build(&|| builder(None).redirect(Policy::none()))
}

/// For a device that is asked with a password, which is sent on to nobody. Where that is said, any certificate is good.
///
/// # Errors
/// As [`client`].
#[cfg(feature = "serve")]
pub fn client_for_device(insecure: bool) -> Result<Client> {
    build(&|| builder(None).redirect(Policy::none()).tls_danger_accept_invalid_certs(insecure))
}

/// For long bodies: the answer's header, and then each single read of the body, may take `stall`; the body as a whole
/// may take as long as it likes.
///
/// Not the same as `RequestBuilder::timeout`, which in reqwest's blocking client also ends the body as a whole.
///
/// # Errors
/// As [`client`].
pub fn streaming_client(stall: Duration) -> Result<Client> {
    build(&|| builder(Some(stall)))
}

fn build(builder: &dyn Fn() -> ClientBuilder) -> Result<Client> {
    match builder().build() {
        Ok(client) => Ok(client),
        Err(error) => {
            let why = crate::error::Error::with_source(Phase::Control, "TLS", error);
            tracing::warn!("https will not work here, http does: {why}");
            without_roots(builder())
        }
    }
}

/// All that the clients have in common, whatever certificates they take.
pub(crate) fn builder(timeout: Option<Duration>) -> ClientBuilder {
    // Fails only when a provider is installed already, by an earlier call.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let agent = concat!("drophammer/", env!("CARGO_PKG_VERSION"));
    // No referer: a redirect would carry the address with its query, which may be a secret, to the other host.
    // HTTP/2 would put all ranges of an image on one connection, which is what several are to get around.
    let client = Client::builder().user_agent(agent).connect_timeout(CONNECT).timeout(timeout).referer(false);
    client.http1_only().redirect(Policy::custom(|attempt| match attempt.previous().last() {
        Some(before) if is_downgrade(before, attempt.url()) => attempt.error("https does not lead to http"),
        _ => Policy::default().redirect(attempt),
    }))
}

/// What was to come over TLS would come over nothing.
fn is_downgrade(before: &Url, next: &Url) -> bool {
    before.scheme() == "https" && next.scheme() != "https"
}

/// Is the other end's certificate not one that is trusted here? To ask again changes nothing.
pub fn is_certificate(error: &(dyn StdError + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let is_it = matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)));
    is_it || inner.is_some_and(|inner| is_certificate(inner)) || error.source().is_some_and(is_certificate)
}

/// The platform's verifier refuses to exist without any CA certificate, which would take plain http with it.
fn without_roots(builder: ClientBuilder) -> Result<Client> {
    builder.tls_certs_only([]).build().context(Phase::Control, || "set up an HTTP client")
}

/// Whether the same request may be answered otherwise later. 501 and 505 say what the server is, not how it feels.
pub fn is_passing(status: StatusCode) -> bool {
    let for_good = [StatusCode::NOT_IMPLEMENTED, StatusCode::HTTP_VERSION_NOT_SUPPORTED];
    let asked_to_wait = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    (status.is_server_error() && !for_good.contains(&status)) || asked_to_wait.contains(&status)
}

/// Between half of the pause and all of it: a rack of machines that lost the same server must not come back in one instant.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::http::{Act, Server};

    fn ok() -> Server {
        Server::start(b"ok".to_vec(), |_| Act::default())
    }

    #[test]
    fn the_client_says_who_it_is() {
        let server = ok();
        assert_eq!(client().unwrap().get(server.url("")).send().unwrap().text().unwrap(), "ok");
        let who = concat!("drophammer/", env!("CARGO_PKG_VERSION"));
        let request = &server.requests()[0];
        assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with(who)), "{request:?}");
    }

    #[test]
    fn http_works_without_any_ca_certificate() {
        client().unwrap();
        let client = without_roots(Client::builder()).unwrap();
        assert_eq!(client.get(ok().url("")).send().unwrap().text().unwrap(), "ok");
    }

    #[test]
    fn https_leads_to_https_only() {
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
    fn a_certificate_that_is_not_trusted_is_found_wherever_it_is_wrapped() {
        let tls = |error: rustls::Error| std::io::Error::other(error);
        let unknown = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(is_certificate(&unknown()) && is_certificate(&tls(unknown())));
        let wrapped = crate::error::Error::with_source(Phase::Image, "x", std::io::Error::other(tls(unknown())));
        assert!(is_certificate(&wrapped));
        assert!(!is_certificate(&tls(rustls::Error::HandshakeNotComplete)));
        assert!(!is_certificate(&std::io::Error::other("connection reset")));
    }

    #[test]
    fn which_answers_may_change() {
        for code in [500, 502, 503, 504, 408, 429] {
            assert!(is_passing(StatusCode::from_u16(code).unwrap()), "{code}");
        }
        for code in [200, 206, 301, 400, 401, 403, 404, 405, 410, 416, 501, 505] {
            assert!(!is_passing(StatusCode::from_u16(code).unwrap()), "{code}");
        }
    }
}
