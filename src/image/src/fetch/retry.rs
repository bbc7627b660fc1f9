//! Retry policy for fetching images: exponential backoff with jitter, and a limit on attempts.

use super::parallel_ranges::LaneRules;
use common::bounded_read::read_prefix;
use common::error::{Error, Phase, Result};
use linux::http::proxies::{ProxyScope, check_proxy};
use linux::http::{add_jitter, is_retryable, is_untrusted_certificate};
use reqwest::StatusCode;
use reqwest::blocking::{RequestBuilder, Response};
use std::io;
use std::time::Duration;

/// Timeouts and retries for one image. Tests use short timeouts.
#[derive(Debug, Clone)]
pub(crate) struct FetchRetryPolicy {
    /// Time without data after which a connection is treated as dropped.
    pub stall: Duration,
    /// Number of consecutive failures without sufficient progress after which the download fails.
    pub attempts: u32,
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// Thresholds and limits of parallel ranges.
    pub lanes: LaneRules,
}

impl Default for FetchRetryPolicy {
    /// Returns a policy with pauses of one to two minutes in total, enough for a switch or a server to restart.
    fn default() -> Self {
        FetchRetryPolicy {
            stall: Duration::from_secs(30),
            attempts: 8,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            lanes: LaneRules::default(),
        }
    }
}

impl FetchRetryPolicy {
    /// Returns the pause after `failures` consecutive failures (1 or more). The pause doubles with each failure, up to
    /// `longest_pause`, and is then randomized.
    pub(crate) fn pause_after(&self, failures: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        add_jitter(doubled.min(self.longest_pause))
    }

    /// Sends a request and repeats it after temporary failures. Returns the first response whose status is not
    /// temporary.
    ///
    /// # Errors
    /// Returns an error if all attempts fail, or if the failure is permanent, such as an untrusted certificate.
    pub(crate) fn send_request(&self, what: &str, request: impl Fn() -> RequestBuilder) -> Result<Response> {
        self.retry_until_final(what, request, Ok)
    }

    /// Sends a request for a small document and reads it completely. If the connection drops while the document is
    /// read, the request is repeated.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::send_request`], or an error if the document is longer than `most_bytes`
    /// bytes.
    pub(crate) fn read_document(
        &self,
        what: &str,
        most_bytes: u64,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<DocumentAnswer> {
        let answer = self.retry_until_final(what, request, |response| match response.status() {
            StatusCode::OK => read_prefix(response, most_bytes + 1).map(DocumentAnswer::Document),
            _ => Ok(DocumentAnswer::Other(response)),
        })?;
        match answer {
            DocumentAnswer::Document(bytes) if bytes.len() as u64 > most_bytes => {
                Err(Error::new(Phase::Image, format!("{what}: the document is longer than {most_bytes} bytes")))
            }
            answer => Ok(answer),
        }
    }

    /// Sends a request like [`Self::send_request`], and reads the response with `take`. If `take` fails, the request is
    /// repeated.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::send_request`].
    pub(crate) fn read_with<T>(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder,
        take: impl Fn(Response) -> io::Result<T>,
    ) -> Result<T> {
        self.retry_until_final(what, request, take)
    }

    fn retry_until_final<T>(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder,
        take: impl Fn(Response) -> io::Result<T>,
    ) -> Result<T> {
        if let Ok(request) = request().build() {
            check_proxy(request.url().as_str(), ProxyScope::All)?;
        }
        let mut failures = 0;
        loop {
            let why = match request().timeout(self.stall).send() {
                Ok(response) if !is_retryable(response.status()) => match take(response) {
                    Ok(taken) => return Ok(taken),
                    Err(error) => Error::with_source(Phase::Image, what, error).to_string(),
                },
                Ok(response) => format!("{what}: the server responded with {status}", status = response.status()),
                Err(error) if is_hopeless(&error) => {
                    return Err(Error::with_source(Phase::Image, what, error.without_url()));
                }
                Err(error) => Error::with_source(Phase::Image, what, error.without_url()).to_string(),
            };
            failures += 1;
            if failures >= self.attempts {
                return Err(Error::new(Phase::Image, format!("{why} ({failures} attempts)")));
            }
            let pause = self.pause_after(failures);
            tracing::warn!(
                "{why}; attempt {attempt} of {attempts} in {pause:.1} s",
                attempt = failures + 1,
                attempts = self.attempts,
                pause = pause.as_secs_f32()
            );
            std::thread::sleep(pause);
        }
    }
}

/// Response to a request for a small document.
pub(crate) enum DocumentAnswer {
    /// Status 200, with the complete body.
    Document(Vec<u8>),
    /// Response with an error status that a retry would not change.
    Other(Response),
}

/// Returns whether the error is permanent, because it is caused by the URL, a redirect or the server's certificate and
/// not by the network.
pub(crate) fn is_hopeless(error: &reqwest::Error) -> bool {
    error.is_builder() || error.is_redirect() || is_untrusted_certificate(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pace;
    use testing::http::{ResponseBehavior, Server};

    #[test]
    fn pauses_double_up_to_the_maximum_with_jitter() {
        let pace = FetchRetryPolicy::default();
        for (failures, longest) in [(1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (40, 60.0)] {
            let pause = pace.pause_after(failures).as_secs_f64();
            assert!(pause >= longest / 2.0 && pause <= longest, "{failures}: {pause}");
        }
        let different: std::collections::HashSet<_> = (0..20).map(|_| pace.pause_after(3)).collect();
        assert!(different.len() > 1);
    }

    #[test]
    fn truncated_document_is_requested_again() {
        let server =
            Server::start(b"twenty bytes of text".to_vec(), |request| match (request.path.as_str(), request.nth) {
                ("/cut", 0 | 1) | ("/always", _) => ResponseBehavior::cut_after(7),
                ("/gone", _) => ResponseBehavior::status(404),
                _ => ResponseBehavior::default(),
            });
        let client = linux::http::new_client().unwrap();
        let read = |path: &str, most: u64| pace().read_document("read it", most, || client.get(server.url(path)));
        let Ok(DocumentAnswer::Document(text)) = read("cut", 20) else { panic!("the third request succeeds") };
        assert_eq!((text, server.requests().len()), (b"twenty bytes of text".to_vec(), 3));
        assert!(matches!(read("gone", 20), Ok(DocumentAnswer::Other(response)) if response.status() == 404));
        let says = |path: &str, most: u64| read(path, most).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(says("whole", 19).contains("longer than 19 bytes"));
        assert!(says("always", 20).contains("attempts)"), "{}", says("always", 20));
    }
}
