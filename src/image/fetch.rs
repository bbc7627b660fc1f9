//! One image over HTTP as a stream that survives drops: it goes on by Range when the server proves that the image is
//! still the same, and otherwise says that the burn has to start over.

use super::Part;
use super::retry::{Pace, is_hopeless};
use crate::error::{Error, Phase};
use crate::http::is_passing;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use std::io::{self, Read};

/// So many bytes between two drops, and the count of failures begins anew. A single byte must not be enough: a server
/// that drops after each one would never be given up.
const PROGRESS_BYTES: u64 = 64 * 1024;

/// The body of one image.
pub struct Fetch<'a> {
    client: &'a Client,
    image: &'a Part,
    pace: &'a Pace,
    response: Option<Response>,
    /// Bytes handed on so far.
    position: u64,
    total: Option<u64>,
    etag: Option<String>,
    failures: u32,
    /// Where the count of failures began.
    counted_from: u64,
    resumed: u32,
    start_over: Option<String>,
}

impl<'a> Fetch<'a> {
    /// `client` must end a read that stalls: [`crate::http::streaming_client`].
    pub fn new(client: &'a Client, image: &'a Part, pace: &'a Pace) -> Self {
        Fetch {
            client,
            image,
            pace,
            response: None,
            position: 0,
            total: image.size_bytes,
            etag: None,
            failures: 0,
            counted_from: 0,
            resumed: 0,
            start_over: None,
        }
    }

    /// How often the connection was taken up again.
    pub fn resumed(&self) -> u32 {
        self.resumed
    }

    /// Why what was read so far cannot be continued, when that is what ended the stream.
    pub fn start_over(&self) -> Option<&str> {
        self.start_over.as_deref()
    }

    /// Sends the request for the rest. `Ok(None)` when that failed in a way that may pass.
    fn connect(&mut self) -> io::Result<Option<Response>> {
        let mut request = self.client.get(&self.image.url);
        if self.position > 0 {
            // A weak ETag promises the same meaning, not the same bytes (RFC 9110 §8.8.1).
            let Some(etag) = self.etag.as_ref().filter(|etag| !etag.starts_with("W/")) else {
                return Err(self.must_start_over("the server gives no strong ETag to resume by"));
            };
            request = request.header(RANGE, format!("bytes={}-", self.position)).header(IF_RANGE, etag);
        }
        match request.send() {
            Ok(response) if is_passing(response.status()) => {
                self.dropped(&format!("the server answers {}", response.status())).map(|()| None)
            }
            Ok(response) => self.accept(response).map(Some),
            Err(error) => {
                let hopeless = is_hopeless(&error);
                let why = Error::with_source(Phase::Image, "no answer", error).to_string();
                if hopeless { Err(self.failed(&why)) } else { self.dropped(&why).map(|()| None) }
            }
        }
    }

    /// Checks that the answer is the image from where we are.
    fn accept(&mut self, response: Response) -> io::Result<Response> {
        let etag = header(&response, ETAG);
        match (self.position, response.status()) {
            (0, StatusCode::OK) => {
                self.total = header(&response, CONTENT_LENGTH).and_then(|text| text.parse().ok()).or(self.total);
                self.etag = etag;
                if self.etag != self.image.etag {
                    tracing::warn!("{}: the image changed after it was looked at; the digest decides", self.image.url);
                }
                Ok(response)
            }
            (0, status) => Err(self.failed(&format!("the server answers {status}"))),
            (_, StatusCode::PARTIAL_CONTENT) => {
                let range = header(&response, CONTENT_RANGE).unwrap_or_default();
                if etag != self.etag {
                    return Err(self.must_start_over("the image has another ETag now"));
                }
                if !self.continues(&range) {
                    return Err(self.must_start_over(&format!("the server resumes with another range: `{range}`")));
                }
                Ok(response)
            }
            (_, StatusCode::OK) => Err(self.must_start_over("the server sends the image from its start")),
            (_, StatusCode::RANGE_NOT_SATISFIABLE) => {
                Err(self.must_start_over("the image is shorter now than what came already"))
            }
            (_, status) => Err(self.failed(&format!("the server answers {status} when asked for the rest"))),
        }
    }

    /// Whether `bytes START-END/TOTAL` is exactly what is missing.
    fn continues(&self, range: &str) -> bool {
        let Some((span, total)) = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        let start = span.split_once('-').and_then(|(start, _)| start.parse().ok());
        let same_total = total == "*" || self.total.is_none() || total.parse().ok() == self.total;
        start == Some(self.position) && same_total
    }

    /// Counts a failure that may pass, says it and waits.
    fn dropped(&mut self, why: &str) -> io::Result<()> {
        self.response = None;
        if self.position - self.counted_from >= PROGRESS_BYTES {
            (self.failures, self.counted_from) = (0, self.position);
        }
        self.failures += 1;
        if self.failures >= self.pace.attempts {
            return Err(self.failed(&format!("{why} ({} attempts without progress)", self.failures)));
        }
        let pause = self.pace.pause(self.failures);
        tracing::warn!(
            "image: {why} at byte {} of {}; resuming in {:.1} s (attempt {} of {})",
            self.position,
            self.total.map_or("unknown".to_owned(), |total| total.to_string()),
            pause.as_secs_f32(),
            self.failures + 1,
            self.pace.attempts
        );
        std::thread::sleep(pause);
        self.resumed += 1;
        Ok(())
    }

    fn failed(&self, why: &str) -> io::Error {
        io::Error::other(format!("fetch {}: {why}, at byte {}", self.image.url, self.position))
    }

    fn must_start_over(&mut self, why: &str) -> io::Error {
        self.start_over = Some(format!("{why}, at byte {}", self.position));
        self.failed(why)
    }
}

impl Read for Fetch<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(response) = &mut self.response else {
                self.response = self.connect()?;
                continue;
            };
            let complete = self.total == Some(self.position);
            match response.read(buf) {
                Ok(0) if complete || self.total.is_none() => return Ok(0),
                Ok(0) => self.dropped("the connection ended early")?,
                Ok(got) => {
                    self.position += got as u64;
                    if self.total.is_some_and(|total| self.position > total) {
                        return Err(self.failed("the server sends more than the image's Content-Length"));
                    }
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // All there; how the connection ends does not matter.
                Err(_) if complete => return Ok(0),
                Err(error) => {
                    let why = Error::with_source(Phase::Image, "the connection dropped", error).to_string();
                    self.dropped(&why)?;
                }
            }
        }
    }
}

fn header(response: &Response, name: reqwest::header::HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Act, Server, noise, pace};
    use super::*;
    use crate::http;
    use std::time::Duration;

    struct Outcome {
        bytes: io::Result<Vec<u8>>,
        start_over: Option<String>,
        resumed: u32,
    }

    fn fetch_as(server: &Server, size_bytes: Option<u64>, pace: &Pace) -> Outcome {
        let client = http::streaming_client(pace.stall).unwrap();
        let etag = Some("\"one\"".to_owned());
        let image = Part { url: server.url("image"), size_bytes, etag, ..Part::default() };
        let mut fetch = Fetch::new(&client, &image, pace);
        let mut bytes = Vec::new();
        let result = fetch.read_to_end(&mut bytes);
        Outcome {
            bytes: result.map(|_| bytes),
            start_over: fetch.start_over().map(str::to_owned),
            resumed: fetch.resumed(),
        }
    }

    fn fetch(server: &Server) -> Outcome {
        fetch_as(server, None, &pace())
    }

    #[test]
    fn drops_are_resumed_where_they_happened() {
        let body = noise(300_000);
        let server = Server::start(body.clone(), |request| match request.nth {
            0 => Act::cut_after(100_000),
            1 => Act::cut_after(100_000),
            _ => Act::default(),
        });
        let outcome = fetch(&server);
        assert!(outcome.bytes.unwrap() == body);
        assert_eq!(outcome.resumed, 2);
        let ranges: Vec<_> = server.requests().into_iter().map(|request| (request.range, request.if_range)).collect();
        assert_eq!(ranges[0], (None, None));
        let from = |n: u64| (Some(format!("bytes={n}-")), Some("\"one\"".to_owned()));
        assert_eq!(ranges[1..], [from(100_000), from(200_000)]);
    }

    #[test]
    fn a_stall_ends_and_is_resumed() {
        let body = noise(50_000);
        let server = Server::start(body.clone(), |request| match request.nth {
            0 => Act::stall_after(20_000),
            1 => Act::stall_before_the_answer(),
            _ => Act::default(),
        });
        let outcome = fetch_as(&server, None, &Pace { stall: Duration::from_millis(500), ..pace() });
        assert!(outcome.bytes.unwrap() == body);
        assert!(outcome.resumed >= 2, "{}", outcome.resumed);
    }

    #[test]
    fn a_slow_body_that_moves_is_no_stall() {
        // In all longer than a stall may be, never longer between two bytes.
        let body = noise(2_000);
        let pace = Pace { stall: Duration::from_secs(3), ..pace() };
        let server =
            Server::start(body.clone(), |_| Act { trickle: Some(Duration::from_millis(220)), ..Act::default() });
        let outcome = fetch_as(&server, None, &pace);
        assert!(outcome.bytes.unwrap() == body);
        assert_eq!(outcome.resumed, 0);
    }

    #[test]
    fn errors_of_the_server_pass_within_bounds() {
        let body = noise(1000);
        let server = Server::start(body.clone(), |request| match request.nth {
            0..=2 => Act::status(503),
            _ => Act::default(),
        });
        assert!(fetch(&server).bytes.unwrap() == body);

        let server = Server::start(body, |_| Act::status(500));
        let error = fetch(&server).bytes.unwrap_err().to_string();
        assert!(error.contains("500 Internal Server Error (4 attempts without progress)"), "{error}");
        assert_eq!(server.requests().len(), 4);
    }

    #[test]
    fn a_server_that_drops_after_each_byte_is_given_up() {
        let server = Server::start(noise(1000), |_| Act::cut_after(1));
        let error = fetch(&server).bytes.unwrap_err().to_string();
        assert!(error.contains("attempts without progress") && error.contains("at byte 4"), "{error}");
    }

    #[test]
    fn drops_with_progress_between_them_are_not_counted_together() {
        let body = noise(700_000);
        let server = Server::start(body.clone(), |_| Act::cut_after(100_000));
        let outcome = fetch(&server);
        assert!(outcome.bytes.unwrap() == body);
        assert_eq!(outcome.resumed, 6);
    }

    #[test]
    fn what_cannot_be_resumed_starts_over() {
        type Second = fn() -> Act;
        let cases: [(&str, Second); 6] = [
            ("from its start", || Act { etag: Some("\"two\"".into()), ..Act::default() }),
            ("from its start", || Act { ranges: false, ..Act::default() }),
            ("another ETag", || Act { etag: Some("\"two\"".into()), trust_range: true, ..Act::default() }),
            ("another ETag", || Act { etag: None, trust_range: true, ..Act::default() }),
            ("another range", || Act { content_range: Some("bytes 0-99/1000".into()), ..Act::default() }),
            ("shorter now", || Act::status(416)),
        ];
        for (says, second) in cases {
            let server = Server::start(noise(1000), move |request| match request.nth {
                0 => Act::cut_after(400),
                _ => second(),
            });
            let outcome = fetch(&server);
            let why = outcome.start_over.unwrap_or_else(|| panic!("{says}: {:?}", outcome.bytes));
            assert!(why.contains(says) && why.contains("at byte 400"), "{says}: {why}");
        }
    }

    #[test]
    fn without_a_strong_etag_nothing_is_resumed() {
        for etag in [None, Some("W/\"one\"".to_owned())] {
            let server = Server::start(noise(1000), move |_| Act { etag: etag.clone(), ..Act::cut_after(400) });
            let outcome = fetch(&server);
            assert!(outcome.start_over.unwrap().contains("no strong ETag"));
            assert_eq!(server.requests().len(), 1);
        }
    }

    #[test]
    fn gone_is_gone() {
        let server = Server::start(noise(1000), |request| match request.nth {
            0 => Act::cut_after(400),
            _ => Act::status(404),
        });
        let outcome = fetch(&server);
        let error = outcome.bytes.unwrap_err().to_string();
        assert!(error.contains("404 Not Found when asked for the rest"), "{error}");
        assert_eq!(outcome.start_over, None);
    }

    #[test]
    fn the_length_known_before_is_used_when_the_answer_has_none() {
        let body = noise(1000);
        let unmarked = |_: &_| Act { length: false, ..Act::default() };
        let server = Server::start(body.clone(), unmarked);
        assert!(fetch(&server).bytes.unwrap() == body);
        assert!(fetch_as(&server, Some(1000), &pace()).bytes.unwrap() == body);
        let error = fetch_as(&server, Some(999), &pace()).bytes.unwrap_err().to_string();
        assert!(error.contains("more than the image's Content-Length"), "{error}");

        let server = Server::start(body.clone(), |request| match request.nth {
            0 => Act { length: false, ..Act::cut_after(400) },
            _ => Act::default(),
        });
        let outcome = fetch_as(&server, Some(1000), &pace());
        assert!(outcome.bytes.unwrap() == body);
        assert_eq!(outcome.resumed, 1);
    }
}
