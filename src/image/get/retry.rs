//! How patient the image stages are: pauses that grow, with jitter, and an end.

use super::lanes::Rules;
use crate::error::{Error, Phase, Result};
use crate::http::{is_certificate, is_passing, jittered};
use reqwest::StatusCode;
use reqwest::blocking::{RequestBuilder, Response};
use std::io::{self, Read};
use std::time::Duration;

/// Timings of one image; tests make them short.
#[derive(Debug, Clone)]
pub struct Pace {
    /// No byte for so long counts as a drop.
    pub stall: Duration,
    /// Failures in a row, without a byte in between that counts, until giving up.
    pub attempts: u32,
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// When several ranges are fetched at once.
    pub lanes: Rules,
}

impl Default for Pace {
    /// The pauses add up to about three minutes, in which a switch or a server restarts.
    fn default() -> Self {
        Pace {
            stall: Duration::from_secs(30),
            attempts: 8,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            lanes: Rules::default(),
        }
    }
}

impl Pace {
    /// How long to wait after this many failures in a row, from 1. Doubles each time.
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        jittered(doubled.min(self.longest_pause))
    }

    /// Sends a request until there is an answer that will not change by asking again.
    ///
    /// # Errors
    /// No such answer within the attempts, or the request cannot be sent at all.
    pub fn ask(&self, what: &str, request: impl Fn() -> RequestBuilder) -> Result<Response> {
        self.until_final(what, request, Ok)
    }

    /// The same for a small document, of which all is read: an answer may break off behind its head.
    ///
    /// # Errors
    /// As [`Self::ask`], or there are more than `most_bytes`.
    pub fn read(&self, what: &str, most_bytes: u64, request: impl Fn() -> RequestBuilder) -> Result<Answer> {
        let answer = self.until_final(what, request, |response| match response.status() {
            StatusCode::OK => at_most(response, most_bytes).map(Answer::Document),
            _ => Ok(Answer::Other(response)),
        })?;
        match answer {
            Answer::Document(bytes) if bytes.len() as u64 > most_bytes => {
                Err(Error::new(Phase::Image, format!("{what}: it is longer than {most_bytes} bytes")))
            }
            answer => Ok(answer),
        }
    }

    /// The same for any answer that will not change by asking again, of which `take` reads what is wanted.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn take<T>(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder,
        take: impl Fn(Response) -> io::Result<T>,
    ) -> Result<T> {
        self.until_final(what, request, take)
    }

    fn until_final<T>(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder,
        take: impl Fn(Response) -> io::Result<T>,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            let why = match request().timeout(self.stall).send() {
                Ok(response) if !is_passing(response.status()) => match take(response) {
                    Ok(taken) => return Ok(taken),
                    Err(error) => Error::with_source(Phase::Image, what, error).to_string(),
                },
                Ok(response) => format!("{what}: the server answers {}", response.status()),
                Err(error) if is_hopeless(&error) => {
                    return Err(Error::with_source(Phase::Image, what, error.without_url()));
                }
                Err(error) => Error::with_source(Phase::Image, what, error.without_url()).to_string(),
            };
            failures += 1;
            if failures >= self.attempts {
                return Err(Error::new(Phase::Image, format!("{why} ({failures} attempts)")));
            }
            let pause = self.pause(failures);
            tracing::warn!("{why}; attempt {} of {} in {:.1} s", failures + 1, self.attempts, pause.as_secs_f32());
            std::thread::sleep(pause);
        }
    }
}

/// What a server says when it is asked for a small document.
pub enum Answer {
    /// 200, and all of it.
    Document(Vec<u8>),
    /// Another status that will not change by asking again.
    Other(Response),
}

/// All of it, or one byte more than `most_bytes`.
pub fn at_most(source: impl Read, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most_bytes + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Errors that lie in the URL or in the server's certificate, not in the network.
pub fn is_hopeless(error: &reqwest::Error) -> bool {
    error.is_builder() || error.is_redirect() || is_certificate(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::testing::pace;
    use crate::testing::http::{Act, Server};

    #[test]
    fn pauses_double_up_to_the_longest_and_are_never_exact() {
        let pace = Pace::default();
        for (failures, longest) in [(1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (40, 60.0)] {
            let pause = pace.pause(failures).as_secs_f64();
            assert!(pause >= longest / 2.0 && pause <= longest, "{failures}: {pause}");
        }
        let different: std::collections::HashSet<_> = (0..20).map(|_| pace.pause(3)).collect();
        assert!(different.len() > 1);
    }

    #[test]
    fn a_small_document_that_breaks_off_is_read_again() {
        let server =
            Server::start(b"twenty bytes of text".to_vec(), |request| match (request.path.as_str(), request.nth) {
                ("/cut", 0 | 1) | ("/always", _) => Act::cut_after(7),
                ("/gone", _) => Act::status(404),
                _ => Act::default(),
            });
        let client = crate::http::client().unwrap();
        let read = |path: &str, most: u64| pace().read("read it", most, || client.get(server.url(path)));
        let Ok(Answer::Document(text)) = read("cut", 20) else { panic!("it is there the third time") };
        assert_eq!((text, server.requests().len()), (b"twenty bytes of text".to_vec(), 3));
        assert!(matches!(read("gone", 20), Ok(Answer::Other(response)) if response.status() == 404));
        let says = |path: &str, most: u64| read(path, most).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(says("whole", 19).contains("longer than 19 bytes"));
        assert!(says("always", 20).contains("attempts)"), "{}", says("always", 20));
    }
}
