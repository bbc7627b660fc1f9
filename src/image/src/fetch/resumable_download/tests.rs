//! Downloads from servers with various defects, with and without mirrors.

use super::*;
use crate::testing::{noise, pace};
use linux::http;
use std::time::Duration;
use testing::http::{Request, ResponseBehavior, Server};

struct Outcome {
    bytes: io::Result<Vec<u8>>,
    start_over: Option<String>,
    resumed: u32,
}

fn fetch_as(server: &Server, size_bytes: Option<u64>, pace: &FetchRetryPolicy) -> Outcome {
    let client = http::new_streaming_client(pace.stall).unwrap();
    let etag = Some("\"one\"".to_owned());
    let image = ImagePart { url: server.url("image"), size_bytes, etag, ..ImagePart::default() };
    outcome(ResumableDownload::new(&client, &image, pace))
}

fn outcome(mut fetch: ResumableDownload) -> Outcome {
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
fn interruptions_are_resumed_at_their_offset() {
    let body = noise(300_000);
    let server = Server::start(body.clone(), |request| match request.nth {
        0 => ResponseBehavior::cut_after(100_000),
        1 => ResponseBehavior::cut_after(100_000),
        _ => ResponseBehavior::default(),
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
fn stalled_download_is_resumed() {
    let body = noise(50_000);
    let server = Server::start(body.clone(), |request| match request.nth {
        0 => ResponseBehavior::stall_after(20_000),
        1 => ResponseBehavior::stall_before_the_answer(),
        _ => ResponseBehavior::default(),
    });
    let outcome = fetch_as(&server, None, &FetchRetryPolicy { stall: Duration::from_millis(500), ..pace() });
    assert!(outcome.bytes.unwrap() == body);
    assert!(outcome.resumed >= 2, "{}", outcome.resumed);
}

#[test]
fn slow_download_with_progress_is_not_a_stall() {
    // The whole body takes longer than the stall timeout, but no pause does.
    let body = noise(2_000_000);
    let pace = FetchRetryPolicy { stall: Duration::from_secs(3), ..pace() };
    let server = Server::start(body.clone(), |_| ResponseBehavior {
        trickle: Some(Duration::from_millis(220)),
        ..ResponseBehavior::default()
    });
    let outcome = fetch_as(&server, None, &pace);
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 0);
}

#[test]
fn download_with_little_progress_is_a_stall() {
    // Sixteen pauses, together longer than twice the stall timeout, each shorter than the timeout.
    let body = noise(2_000);
    let pace = FetchRetryPolicy { stall: Duration::from_millis(600), ..pace() };
    let server = Server::start(body.clone(), |request| match request.nth {
        0 => ResponseBehavior { trickle: Some(Duration::from_millis(100)), ..ResponseBehavior::default() },
        _ => ResponseBehavior::default(),
    });
    let outcome = fetch_as(&server, None, &pace);
    assert!(outcome.bytes.unwrap() == body);
    assert!(outcome.resumed >= 1);
}

#[test]
fn server_errors_are_retried_within_limits() {
    let body = noise(1000);
    let server = Server::start(body.clone(), |request| match request.nth {
        0..=2 => ResponseBehavior::status(503),
        _ => ResponseBehavior::default(),
    });
    assert!(fetch(&server).bytes.unwrap() == body);

    let server = Server::start(body, |_| ResponseBehavior::status(500));
    let error = fetch(&server).bytes.unwrap_err().to_string();
    assert!(error.contains("500 Internal Server Error (4 attempts without progress)"), "{error}");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn server_that_disconnects_after_each_byte_is_abandoned() {
    let server = Server::start(noise(1000), |_| ResponseBehavior::cut_after(1));
    let error = fetch(&server).bytes.unwrap_err().to_string();
    assert!(error.contains("attempts without progress") && error.contains("at byte 4"), "{error}");
}

#[test]
fn interruptions_with_progress_are_not_accumulated() {
    let body = noise(700_000);
    let server = Server::start(body.clone(), |_| ResponseBehavior::cut_after(100_000));
    let outcome = fetch(&server);
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 6);
}

#[test]
fn unresumable_download_starts_over() {
    type Second = fn() -> ResponseBehavior;
    let cases: [(&str, Second); 6] = [
        ("from its beginning", || ResponseBehavior { etag: Some("\"two\"".into()), ..ResponseBehavior::default() }),
        ("from its beginning", || ResponseBehavior { ranges: false, ..ResponseBehavior::default() }),
        ("another ETag", || ResponseBehavior {
            etag: Some("\"two\"".into()),
            trust_range: true,
            ..ResponseBehavior::default()
        }),
        ("another ETag", || ResponseBehavior { etag: None, trust_range: true, ..ResponseBehavior::default() }),
        ("a different range", || ResponseBehavior {
            content_range: Some("bytes 0-99/1000".into()),
            ..ResponseBehavior::default()
        }),
        ("now shorter", || ResponseBehavior::status(416)),
    ];
    for (says, second) in cases {
        let server = Server::start(noise(1000), move |request| match request.nth {
            0 => ResponseBehavior::cut_after(400),
            _ => second(),
        });
        let outcome = fetch(&server);
        let why = outcome.start_over.unwrap_or_else(|| panic!("{says}: {:?}", outcome.bytes));
        assert!(why.contains(says) && why.contains("at byte 400"), "{says}: {why}");
    }
}

#[test]
fn nothing_is_resumed_without_a_strong_etag() {
    for etag in [None, Some("W/\"one\"".to_owned())] {
        let server = Server::start(noise(1000), move |_| ResponseBehavior {
            etag: etag.clone(),
            ..ResponseBehavior::cut_after(400)
        });
        let outcome = fetch(&server);
        assert!(outcome.start_over.unwrap().contains("did not send a strong ETag"));
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn missing_image_ends_the_download() {
    let server = Server::start(noise(1000), |request| match request.nth {
        0 => ResponseBehavior::cut_after(400),
        _ => ResponseBehavior::status(404),
    });
    let outcome = fetch(&server);
    let error = outcome.bytes.unwrap_err().to_string();
    assert!(error.contains("404 Not Found to the request for the remaining bytes"), "{error}");
    assert_eq!(outcome.start_over, None);
}

#[test]
fn known_length_is_used_without_content_length() {
    let body = noise(1000);
    let lacks_record = |_: &_| ResponseBehavior { length: false, ..ResponseBehavior::default() };
    let server = Server::start(body.clone(), lacks_record);
    assert!(fetch(&server).bytes.unwrap() == body);
    assert!(fetch_as(&server, Some(1000), &pace()).bytes.unwrap() == body);
    let error = fetch_as(&server, Some(999), &pace()).bytes.unwrap_err().to_string();
    assert!(error.contains("more data than the Content-Length of the image"), "{error}");

    let server = Server::start(body.clone(), |request| match request.nth {
        0 => ResponseBehavior { length: false, ..ResponseBehavior::cut_after(400) },
        _ => ResponseBehavior::default(),
    });
    let outcome = fetch_as(&server, Some(1000), &pace());
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 1);
}

/// Fetches the same image from several servers.
fn fetch_from(servers: &[&Server], size_bytes: u64, pace: &FetchRetryPolicy) -> Outcome {
    let client = http::new_streaming_client(pace.stall).unwrap();
    let mut urls = servers.iter().map(|server| server.url("image"));
    let etag = Some("\"one\"".to_owned());
    let (url, mirrors) = (urls.next().unwrap(), urls.collect());
    let image = ImagePart { url, mirrors, size_bytes: Some(size_bytes), etag, ..ImagePart::default() };
    outcome(ResumableDownload::new(&client, &image, pace))
}

fn good(body: &[u8]) -> Server {
    // All mirrors have another ETag than the one that `fetch_from` sets for the image.
    Server::start(body.to_vec(), |_| ResponseBehavior {
        etag: Some("\"mirror\"".into()),
        ..ResponseBehavior::default()
    })
}

fn ranges(server: &Server) -> Vec<(Option<String>, Option<String>)> {
    server.requests().into_iter().map(|request| (request.range, request.if_range)).collect()
}

#[test]
fn next_mirror_continues_at_the_failed_offset() {
    let body = noise(300_000);
    type Then = fn(&Request) -> ResponseBehavior;
    let cases: [(Then, u64); 7] = [
        (
            |request| {
                if request.nth == 0 { ResponseBehavior::cut_after(50_000) } else { ResponseBehavior::status(503) }
            },
            50_000,
        ),
        (
            |request| {
                if request.nth == 0 { ResponseBehavior::cut_after(100_000) } else { ResponseBehavior::status(404) }
            },
            100_000,
        ),
        (
            |request| {
                if request.nth == 0 { ResponseBehavior::cut_after(100_000) } else { ResponseBehavior::status(416) }
            },
            100_000,
        ),
        (|_| ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(100_000) }, 100_000),
        (|_| ResponseBehavior { etag: Some("W/\"weak\"".into()), ..ResponseBehavior::cut_after(100_000) }, 100_000),
        (|request| ResponseBehavior { ranges: request.nth == 0, ..ResponseBehavior::cut_after(100_000) }, 100_000),
        (|_| ResponseBehavior::stall_after(100_000), 100_000),
    ];
    for (number, (then, at)) in cases.into_iter().enumerate() {
        let (first, second) = (Server::start(body.clone(), then), good(&body));
        let stall = if number == 6 { Duration::from_millis(500) } else { pace().stall };
        let outcome = fetch_from(&[&first, &second], 300_000, &FetchRetryPolicy { stall, ..pace() });
        assert!(outcome.bytes.unwrap() == body, "case {number}");
        assert_eq!(ranges(&second)[0], (Some(format!("bytes={at}-")), None), "case {number}");
        assert!(outcome.resumed >= 1);
    }
}

#[test]
fn unavailable_mirror_costs_no_data() {
    let body = noise(1000);
    for status in [404, 500, 401, 301] {
        let (first, second) = (Server::start(Vec::new(), move |_| ResponseBehavior::status(status)), good(&body));
        assert!(fetch_from(&[&first, &second], 1000, &pace()).bytes.unwrap() == body);
        assert_eq!((first.requests().len(), ranges(&second)), (1, vec![(None, None)]));
    }
}

#[test]
fn interrupted_mirror_remains_in_use_while_it_makes_progress() {
    let body = noise(700_000);
    let (first, second) = (Server::start(body.clone(), |_| ResponseBehavior::cut_after(100_000)), good(&body));
    assert!(fetch_from(&[&first, &second], 700_000, &pace()).bytes.unwrap() == body);
    assert_eq!((first.requests().len(), second.requests().len()), (7, 0));
}

#[test]
fn failing_mirrors_deliver_the_image_together() {
    let body = noise(300_000);
    // Each connection delivers too little to resume at the same mirror.
    let drop = || Server::start(body.clone(), |_| ResponseBehavior::cut_after(40_000));
    let servers = [drop(), drop(), drop()];
    let outcome = fetch_from(&[&servers[0], &servers[1], &servers[2]], 300_000, &pace());
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(servers.map(|server| server.requests().len()), [3, 3, 2]);
}

#[test]
fn mirror_with_another_image_is_refused() {
    let body = noise(1000);
    let cut = |request: &Request| {
        if request.nth == 0 { ResponseBehavior::cut_after(400) } else { ResponseBehavior::status(404) }
    };
    type ResponseChoice = fn(&Request) -> ResponseBehavior;
    let lies: [(ResponseChoice, &str); 5] = [
        (
            |_| ResponseBehavior { body: Some(noise(999)), ..ResponseBehavior::default() },
            "a different range: `bytes 400-998/999`",
        ),
        (
            |_| ResponseBehavior { content_range: Some("bytes 400-999/*".into()), ..ResponseBehavior::default() },
            "a different range: `bytes 400-999/*`",
        ),
        (
            |_| ResponseBehavior { content_range: Some("bytes 0-999/1000".into()), ..ResponseBehavior::default() },
            "a different range",
        ),
        (
            |_| ResponseBehavior { content_range: Some("gibberish".into()), ..ResponseBehavior::default() },
            "a different range: `gibberish`",
        ),
        (|_| ResponseBehavior { ranges: false, ..ResponseBehavior::default() }, "from its beginning"),
    ];
    for (respond, says) in lies {
        let (first, second, third) =
            (Server::start(body.clone(), cut), Server::start(body.clone(), respond), good(&body));
        assert!(fetch_from(&[&first, &second, &third], 1000, &pace()).bytes.unwrap() == body, "{says}");

        let first = Server::start(body.clone(), cut);
        let outcome = fetch_from(&[&first, &second], 1000, &pace());
        let error = outcome.bytes.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("404 Not Found") && error.contains("at byte 400"), "{error}");
        assert!([&first, &second].iter().all(|server| error.contains(&server.url("image"))), "{error}");
        // The download can start over, because the second server may have the whole image.
        assert!(outcome.start_over.unwrap().contains("at byte 400"));
    }
}

#[test]
fn sizes_must_agree_from_the_start() {
    let body = noise(1000);
    let (first, second) = (Server::start(noise(999), |_| ResponseBehavior::default()), good(&body));
    assert!(fetch_from(&[&first, &second], 1000, &pace()).bytes.unwrap() == body);
    let short = good(&noise(998));
    let outcome = fetch_from(&[&first, &short], 1000, &pace());
    let error = outcome.bytes.unwrap_err().to_string();
    assert!(
        error.contains("999 bytes on this server, but 1000") && error.contains("998 bytes on this server"),
        "{error}"
    );
    assert_eq!(outcome.start_over, None);
}

#[test]
fn rounds_through_all_mirrors_are_limited() {
    let start = || Server::start(noise(1000), |_| ResponseBehavior::cut_after(1));
    let (first, second) = (start(), start());
    let error = fetch_from(&[&first, &second], 1000, &pace()).bytes.unwrap_err().to_string();
    assert!(
        error.contains("all mirrors have failed") && error.contains("end of file before message length"),
        "{error}"
    );
    assert_eq!((first.requests().len(), second.requests().len()), (4, 4));
}

#[test]
fn server_without_etag_may_restart_if_all_mirrors_fail() {
    let first = Server::start(noise(1000), |_| ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(400) });
    let second = Server::start(noise(1000), |_| ResponseBehavior::status(503));
    let outcome = fetch_from(&[&first, &second], 1000, &pace());
    let error = outcome.bytes.unwrap_err().to_string();
    assert!(error.contains("did not send a strong ETag") && error.contains("503"), "{error}");
    assert!(outcome.start_over.unwrap().contains("at byte 400"));
}

#[test]
fn files_and_servers_are_interchangeable_mirrors() {
    let (body, dir) = (noise(1000), tempfile::tempdir().unwrap());
    let path = dir.path().join("image");
    std::fs::write(&path, &body).unwrap();
    let (file, server) = (format!("file://{}", path.display()), good(&body));
    let (client, size_bytes) = (http::new_streaming_client(pace().stall).unwrap(), Some(1000));
    let part = |url: &str, mirrors: Vec<String>| ImagePart {
        url: url.to_owned(),
        mirrors,
        size_bytes,
        ..ImagePart::default()
    };
    let fetch = |image: ImagePart| outcome(ResumableDownload::new(&client, &image, &pace()));

    assert!(fetch(part(&file, vec![])).bytes.unwrap() == body);
    let cut = Server::start(body.clone(), |_| ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(300) });
    assert!(fetch(part(&cut.url("image"), vec![file.clone()])).bytes.unwrap() == body);
    std::fs::write(&path, &body[..900]).unwrap();
    assert!(fetch(part(&file, vec![server.url("image")])).bytes.unwrap() == body);
    let error = fetch(part(&file, vec!["file:///no/such/image".to_owned()])).bytes.unwrap_err().to_string();
    assert!(error.contains("900 bytes on this server") && error.contains("No such file"), "{error}");
}
