//! Servers that send wrong data, fail, or change the image while lanes are active.

use super::*;
use std::collections::BTreeSet;

#[test]
fn wrong_response_replaces_lanes_by_one_stream() {
    let body = noise(500_000);
    let two = || Some("\"two\"".to_owned());
    let says = |range: &str| Act { content_range: Some(range.to_owned()), ..Act::default() };
    let cases = [
        Act::status(503),
        Act::status(404),
        Act::status(401),
        Act::status(416),
        Act { ranges: false, ..Act::default() },
        Act { etag: two(), ..Act::default() },
        Act { etag: two(), trust_range: true, ..Act::default() },
        Act { etag: None, trust_range: true, ..Act::default() },
        says("bytes 0-9999/500000"),
        says("bytes */500000"),
        says(""),
        Act { body: Some(noise(500_001)), ..Act::default() },
        Act { body: Some(noise(300)), ..Act::default() },
        Act::cut_after(0),
        Act::cut_after(4000),
        Act { length: false, ..Act::cut_after(4000) },
        Act { length: false, more: true, ..Act::default() },
        Act { length: false, headers: vec![("Content-Length", "5".to_owned())], ..Act::default() },
    ];
    for (number, act) in cases.into_iter().enumerate() {
        for wrong in [0, 1, 5] {
            let act = act.clone();
            let server = server(&body, move |nth| if nth == wrong { act.clone() } else { Act::default() });
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
    for stalls in [Act::stall_after(3000), Act::stall_before_the_answer()] {
        let server = server(&body, move |nth| if nth == 3 { stalls.clone() } else { Act::default() });
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
    type Then = fn() -> Act;
    let cases: [(Then, &str, bool); 4] = [
        (|| Act { etag: Some("\"two\"".to_owned()), ..Act::default() }, "from its beginning", true),
        (|| Act { etag: Some("\"two\"".to_owned()), trust_range: true, ..Act::default() }, "another ETag", true),
        (|| Act::status(404), "404 Not Found to the request for the remaining bytes", false),
        (|| Act::status(503), "503 Service Unavailable (4 attempts without progress)", false),
    ];
    for (then, says, starts_over) in cases {
        let server = Server::start(body.clone(), move |request| match request.nth {
            0..=4 => Act::default(),
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
        0..=6 => Act::default(),
        _ => Act::status(503),
    });
    let second = Server::start(body.clone(), |_| Act { etag: Some("\"mirror\"".into()), ..Act::default() });
    let outcome = fetch_part(&part(&[&first, &second]), &eager(0.0));
    assert!(outcome.bytes.unwrap() == body);
    let asked = second.requests();
    assert_eq!((asked.len(), asked[0].if_range.as_deref()), (1, None));
    assert!(asked[0].range.as_deref().unwrap().ends_with('-'), "{asked:?}");
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
            let changed = || Act { etag: Some("\"two\"".to_owned()), body: Some(later.clone()), ..Act::default() };
            match random.u32(..if span(request).is_some() { 60 } else { 14 }) {
                0 => Act::status(500),
                1 => Act::status([404, 416, 401, 301][random.usize(..4)]),
                2 => Act { length: random.bool(), ..Act::cut_after(random.usize(..12_000)) },
                3 => Act { ranges: false, ..Act::default() },
                4 => changed(),
                5 => Act { trust_range: true, ..changed() },
                6 => Act { content_range: Some("bytes 10000-19999/300000".to_owned()), ..Act::default() },
                7 => Act { length: false, more: true, ..Act::default() },
                _ => Act::default(),
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
