//! Servers that send wrong data, fail, or change the image while lanes are active.

use super::*;
use std::collections::BTreeSet;

#[test]
fn wrong_response_replaces_lanes_by_one_stream() {
    let body = noise(500_000);
    let two = || Some("\"two\"".to_owned());
    let says = |range: &str| ResponseBehavior { content_range: Some(range.to_owned()), ..ResponseBehavior::default() };
    let cases = [
        ResponseBehavior::status(503),
        ResponseBehavior::status(404),
        ResponseBehavior::status(401),
        ResponseBehavior::status(416),
        ResponseBehavior { ranges: false, ..ResponseBehavior::default() },
        ResponseBehavior { etag: two(), ..ResponseBehavior::default() },
        ResponseBehavior { etag: two(), trust_range: true, ..ResponseBehavior::default() },
        ResponseBehavior { etag: None, trust_range: true, ..ResponseBehavior::default() },
        says("bytes 0-9999/500000"),
        says("bytes */500000"),
        says(""),
        ResponseBehavior { body: Some(noise(500_001)), ..ResponseBehavior::default() },
        ResponseBehavior { body: Some(noise(300)), ..ResponseBehavior::default() },
        ResponseBehavior::cut_after(0),
        ResponseBehavior::cut_after(4000),
        ResponseBehavior { length: false, ..ResponseBehavior::cut_after(4000) },
        ResponseBehavior { length: false, more: true, ..ResponseBehavior::default() },
        ResponseBehavior {
            length: false,
            headers: vec![("Content-Length", "5".to_owned())],
            ..ResponseBehavior::default()
        },
    ];
    for (number, act) in cases.into_iter().enumerate() {
        for wrong in [0, 1, 5] {
            let act = act.clone();
            let server = server(&body, move |nth| if nth == wrong { act.clone() } else { ResponseBehavior::default() });
            let outcome = fetch_part(&part(&[&server]), &eager(0.0));
            assert!(outcome.bytes.unwrap() == body, "case {number}, {wrong}");
            assert_eq!(outcome.resumed, 1, "case {number}, {wrong}");
            let plain: Vec<_> = server.requests().into_iter().filter(|request| span(request).is_none()).collect();
            assert_eq!(plain.len(), 2, "case {number}, {wrong}");
            assert_eq!(plain[1].if_range.as_deref(), Some("\"one\""));
        }
    }
}

#[test]
fn stalled_lane_times_out() {
    let body = noise(500_000);
    for stalls in [ResponseBehavior::stall_after(3000), ResponseBehavior::stall_before_the_answer()] {
        let server = server(&body, move |nth| if nth == 3 { stalls.clone() } else { ResponseBehavior::default() });
        let pace = FetchRetryPolicy { stall: Duration::from_millis(700), ..eager(0.0) };
        let client = http::new_streaming_client(pace.stall).unwrap();
        let outcome = fetch_by(&client, &part(&[&server]), &pace);
        assert!(outcome.bytes.unwrap() == body);
        assert!(outcome.resumed >= 1);
    }
}

#[test]
fn lane_failures_report_the_errors_of_the_single_stream() {
    let body = noise(300_000);
    type Then = fn() -> ResponseBehavior;
    let cases: [(Then, &str, bool); 4] = [
        (
            || ResponseBehavior { etag: Some("\"two\"".to_owned()), ..ResponseBehavior::default() },
            "from its beginning",
            true,
        ),
        (
            || ResponseBehavior { etag: Some("\"two\"".to_owned()), trust_range: true, ..ResponseBehavior::default() },
            "another ETag",
            true,
        ),
        (|| ResponseBehavior::status(404), "404 Not Found to the request for the remaining bytes", false),
        (|| ResponseBehavior::status(503), "503 Service Unavailable (4 attempts without progress)", false),
    ];
    for (then, says, starts_over) in cases {
        let server = Server::start(body.clone(), move |request| match request.nth {
            0..=4 => ResponseBehavior::default(),
            _ => then(),
        });
        let outcome = fetch_part(&part(&[&server]), &eager(0.0));
        let error = outcome.bytes.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert_eq!(outcome.start_over.is_some(), starts_over, "{says}");
    }
}

#[test]
fn mirror_continues_after_lanes() {
    let body = noise(500_000);
    let first = Server::start(body.clone(), |request| match request.nth {
        0..=6 => ResponseBehavior::default(),
        _ => ResponseBehavior::status(503),
    });
    let second = Server::start(body.clone(), |_| ResponseBehavior {
        etag: Some("\"mirror\"".into()),
        ..ResponseBehavior::default()
    });
    let outcome = fetch_part(&part(&[&first, &second]), &eager(0.0));
    assert!(outcome.bytes.unwrap() == body);
    let requests = second.requests();
    assert_eq!((requests.len(), requests[0].if_range.as_deref()), (1, None));
    assert!(requests[0].range.as_deref().unwrap().ends_with('-'), "{requests:?}");
    assert_eq!(outcome.resumed, 2);
}

#[test]
fn randomly_failing_server_yields_correct_bytes_or_an_error() {
    let (body, other) = (noise(300_000), altered(&noise(300_000), 200_000));
    let mut ends = BTreeSet::new();
    for seed in 0..80 {
        let (random, later) = (Mutex::new(fastrand::Rng::with_seed(seed)), other.clone());
        let server = Server::start(body.clone(), move |request| {
            let mut random = random.lock().unwrap();
            let changed = || ResponseBehavior {
                etag: Some("\"two\"".to_owned()),
                body: Some(later.clone()),
                ..ResponseBehavior::default()
            };
            match random.u32(..if span(request).is_some() { 60 } else { 14 }) {
                0 => ResponseBehavior::status(500),
                1 => ResponseBehavior::status([404, 416, 401, 301][random.usize(..4)]),
                2 => ResponseBehavior { length: random.bool(), ..ResponseBehavior::cut_after(random.usize(..12_000)) },
                3 => ResponseBehavior { ranges: false, ..ResponseBehavior::default() },
                4 => changed(),
                5 => ResponseBehavior { trust_range: true, ..changed() },
                6 => ResponseBehavior {
                    content_range: Some("bytes 10000-19999/300000".to_owned()),
                    ..ResponseBehavior::default()
                },
                7 => ResponseBehavior { length: false, more: true, ..ResponseBehavior::default() },
                _ => ResponseBehavior::default(),
            }
        });
        let image = ImagePart { size_bytes: Some(300_000), ..part(&[&server]) };
        let outcome = fetch_part(&image, &eager([0.0, 1.0, f64::INFINITY][seed as usize % 3]));
        match &outcome.bytes {
            // The result is the old image or, if the image changed before the first byte, the new image, but never a
            // mixture of both.
            Ok(bytes) => assert!(*bytes == body || *bytes == other, "seed {seed}"),
            Err(error) => assert!(error.to_string().contains("fetch http://"), "seed {seed}: {error}"),
        }
        ends.insert(outcome.bytes.is_ok());
    }
    assert_eq!(ends.len(), 2);
}
