//! Chunks that are intact, wrong only at first, and always wrong.

use super::*;
use crate::testing::{noise, pace};
use linux::http;
use proptest::prelude::*;
use testing::http::{ResponseBehavior, Server};

const CHUNK: u32 = 1000;

fn manifest(body: &[u8]) -> ImageManifest {
    let chunks = body.chunks(CHUNK as usize).map(|chunk| Sha256::digest(chunk).into()).collect();
    ImageManifest { version: 1, size_bytes: body.len() as u64, chunk_bytes: CHUNK, chunks, ..ImageManifest::default() }
}

struct Outcome {
    /// All bytes that were passed on, including those before an error.
    bytes: Vec<u8>,
    end: io::Result<()>,
    start_over: Option<String>,
}

fn fetch(servers: &[&Server], body: &[u8]) -> Outcome {
    let client = http::new_streaming_client(pace().stall).unwrap();
    let mut urls = servers.iter().map(|server| server.url("image"));
    let (url, mirrors, manifest) = (urls.next().unwrap(), urls.collect(), Some(Arc::new(manifest(body))));
    let image = ImagePart { url, mirrors, manifest, ..ImagePart::default() };
    let mut verified = open_source(&client, &image, &pace());
    let mut bytes = Vec::new();
    let end = verified.read_to_end(&mut bytes).map(|_| ());
    Outcome { bytes, end, start_over: verified.start_over().map(str::to_owned) }
}

fn altered(body: &[u8], at: usize) -> Vec<u8> {
    let mut altered = body.to_vec();
    altered[at] ^= 1;
    altered
}

fn good(body: &[u8]) -> Server {
    Server::start(body.to_vec(), |_| ResponseBehavior::default())
}

fn ranges(server: &Server) -> Vec<Option<String>> {
    server.requests().into_iter().map(|request| request.range).collect()
}

#[test]
fn complete_chunks_and_shorter_last_chunk_pass() {
    for length in [0, 1, 999, 1000, 1001, 5000, 5432] {
        let body = noise(length);
        let server = good(&body);
        let outcome = fetch(&[&server], &body);
        outcome.end.unwrap();
        assert!(outcome.bytes == body, "{length}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn invalid_chunk_is_fetched_from_the_next_mirror() {
    let body = noise(5432);
    for at in [0, 1500, 5000, 5431] {
        let (first, second) = (good(&altered(&body, at)), good(&body));
        let outcome = fetch(&[&first, &second], &body);
        outcome.end.unwrap();
        assert!(outcome.bytes == body, "{at}");
        let start = at / 1000 * 1000;
        let range = (start > 0).then(|| format!("bytes={start}-"));
        assert_eq!(ranges(&second), [range], "{at}");
    }
}

#[test]
fn single_server_is_asked_for_the_chunk_again() {
    let body = noise(5432);
    let bad = altered(&body, 2345);
    let server = Server::start(body.clone(), move |request| match request.nth {
        0..=2 => ResponseBehavior { body: Some(bad.clone()), ..ResponseBehavior::default() },
        _ => ResponseBehavior::default(),
    });
    let outcome = fetch(&[&server], &body);
    outcome.end.unwrap();
    assert!(outcome.bytes == body);
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn persistently_invalid_chunk_is_reported_with_range_and_urls() {
    let body = noise(5432);
    let (first, second) = (good(&altered(&body, 5010)), good(&altered(&body, 5020)));
    let outcome = fetch(&[&first, &second], &body);
    assert!(outcome.bytes == body[..5000]);
    let error = outcome.end.unwrap_err().to_string();
    assert!(
        error.contains(
            "chunk 5 (bytes 5000 to 5431) does not match the manifest, although the chunk was fetched 4 times"
        ),
        "{error}"
    );
    assert!([&first, &second].iter().all(|server| error.contains(&server.url("image"))), "{error}");
    assert_eq!(outcome.start_over, None);
    assert_eq!((first.requests().len(), second.requests().len()), (2, 2));
}

#[test]
fn manifest_allows_resuming_without_etag() {
    let body = noise(300_000);
    let server = Server::start(body.clone(), |request| match request.nth {
        0 => ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(100_500) },
        1 => ResponseBehavior { etag: Some("\"two\"".into()), ..ResponseBehavior::cut_after(100_500) },
        _ => ResponseBehavior { etag: Some("\"three\"".into()), ..ResponseBehavior::default() },
    });
    let outcome = fetch(&[&server], &body);
    outcome.end.unwrap();
    assert!(outcome.bytes == body);
    assert_eq!(ranges(&server), [None, Some("bytes=100500-".into()), Some("bytes=201000-".into())]);
    assert!(server.requests().iter().all(|request| request.if_range.is_none()));
}

#[test]
fn refuses_length_that_differs_from_the_manifest() {
    let body = noise(5432);
    for (served, says) in [(5431, "5431 bytes on this server, but 5432"), (5433, "5433 bytes on this server, but 5432")]
    {
        let outcome = fetch(&[&good(&noise(served))], &body);
        let error = outcome.end.unwrap_err().to_string();
        assert!(error.contains(says) && outcome.bytes.is_empty(), "{error}");
    }
    let longer = Server::start(noise(6000), |_| ResponseBehavior { length: false, ..ResponseBehavior::default() });
    let error = fetch(&[&longer], &body).end.unwrap_err().to_string();
    assert!(error.contains("sent more data than the Content-Length of the image"), "{error}");
}

/// Possible responses of a server to one request.
fn acts(body: &[u8]) -> Vec<ResponseBehavior> {
    let length = body.len();
    let with = |bytes: Vec<u8>| ResponseBehavior { body: Some(bytes), ..ResponseBehavior::default() };
    vec![
        ResponseBehavior::default(),
        ResponseBehavior::cut_after(0),
        ResponseBehavior::cut_after(700),
        ResponseBehavior::cut_after(2500),
        ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(1999) },
        ResponseBehavior { etag: Some("\"two\"".into()), ..ResponseBehavior::default() },
        ResponseBehavior { ranges: false, ..ResponseBehavior::default() },
        ResponseBehavior { length: false, ..ResponseBehavior::cut_after(1200) },
        ResponseBehavior {
            content_range: Some(format!("bytes 0-{}/{length}", length - 1)),
            ..ResponseBehavior::default()
        },
        ResponseBehavior::status(503),
        ResponseBehavior::status(404),
        ResponseBehavior::status(416),
        with(altered(body, 10 % length)),
        with(altered(body, length - 1)),
        with(body[..length - 1].to_vec()),
        with([body, b"x"].concat()),
        with(Vec::new()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn only_verified_bytes_are_passed_on(
        length in 1..4000_usize,
        plans in proptest::collection::vec(proptest::collection::vec(0..17_usize, 1..6), 1..4),
    ) {
        let body = noise(length);
        let servers: Vec<Server> = plans
            .into_iter()
            .map(|plan| {
                let acts = acts(&body);
                Server::start(body.clone(), move |request| acts[plan[request.nth % plan.len()]].clone())
            })
            .collect();
        let outcome = fetch(&servers.iter().collect::<Vec<_>>(), &body);
        prop_assert!(body.starts_with(&outcome.bytes));
        match outcome.end {
            Ok(()) => prop_assert_eq!(outcome.bytes.len(), length),
            Err(error) => {
                let whole_pieces = outcome.bytes.len().is_multiple_of(CHUNK as usize) || outcome.bytes.len() == length;
                prop_assert!(whole_pieces && !error.to_string().is_empty());
            }
        }
    }
}
