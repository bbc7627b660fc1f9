//! Parallel ranges from correct servers, and images that are never fetched in ranges. The thresholds are set so that
//! lanes are always or never added, so the tests do not depend on timing.

use super::*;
use crate::fetch::open_source;
use crate::fetch::resumable_download::ResumableDownload;
use crate::fetch::retry::FetchRetryPolicy;
use crate::pipeline::{Digest, StreamSource};
use crate::testing::{Tar, noise, pace};
use crate::{ImageManifest, ImagePart, IncomingImage, MountsBelow, PayloadKind, ResolvedImage};
use linux::http;
use std::sync::atomic::AtomicUsize;
use std::sync::{Barrier, LazyLock, Mutex};
use testing::http::{Request, ResponseBehavior, Server};

mod faulty_servers;

/// Policy that adds lanes from the second read on. The lanes are kept if `growth` is 0, and removed if `growth` is
/// unreachably high.
fn eager(growth: f64) -> FetchRetryPolicy {
    let rules = LaneRules { window: Duration::ZERO, least_bytes: 1, memory_bytes: 50_000, reading: 0.0, growth };
    FetchRetryPolicy { lanes: rules, ..pace() }
}

struct Outcome {
    bytes: io::Result<Vec<u8>>,
    start_over: Option<String>,
    resumed: u32,
}

/// Client that all tests share, because reading the CA certificates takes longer than most of these tests.
fn client() -> Client {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| http::new_streaming_client(pace().stall).unwrap());
    CLIENT.clone()
}

fn fetch_part(image: &ImagePart, pace: &FetchRetryPolicy) -> Outcome {
    fetch_by(&client(), image, pace)
}

fn fetch_by(client: &Client, image: &ImagePart, pace: &FetchRetryPolicy) -> Outcome {
    let mut fetch = ResumableDownload::new(client, image, pace);
    let mut bytes = Vec::new();
    let result = fetch.read_to_end(&mut bytes);
    let start_over = fetch.start_over().map(str::to_owned);
    Outcome { bytes: result.map(|_| bytes), start_over, resumed: fetch.resumed() }
}

fn part(servers: &[&Server]) -> ImagePart {
    let mut urls = servers.iter().map(|server| server.url("image"));
    let (url, mirrors) = (urls.next().unwrap(), urls.collect());
    ImagePart { url, mirrors, etag: Some("\"one\"".to_owned()), ..ImagePart::default() }
}

/// Returns the first and last byte of a requested range; `None` unless both are specified. Only requests of lanes
/// specify both.
fn span(request: &Request) -> Option<(usize, usize)> {
    let (first, last) = request.range.as_deref()?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn spans(server: &Server) -> Vec<(usize, usize)> {
    let mut spans: Vec<_> = server.requests().iter().filter_map(span).collect();
    spans.sort_unstable();
    spans
}

fn good(body: &[u8]) -> Server {
    Server::start(body.to_vec(), |_| ResponseBehavior::default())
}

/// Server that answers the requests of the single stream correctly. `lane` answers the requests of the lanes; its
/// parameter is the number of the request, counted from 0 over all lanes.
fn server(body: &[u8], lane: impl Fn(usize) -> ResponseBehavior + Send + Sync + 'static) -> Server {
    let count = AtomicUsize::new(0);
    Server::start(body.to_vec(), move |request| match span(request) {
        Some(_) => lane(count.fetch_add(1, Ordering::Relaxed)),
        None => ResponseBehavior::default(),
    })
}

#[test]
fn one_stream_becomes_two_and_four_ranges_without_overlap() {
    let body = noise(1_000_000);
    let server = good(&body);
    let outcome = fetch_part(&part(&[&server]), &eager(0.0));
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 0);

    let spans = spans(&server);
    assert!(spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{spans:?}");
    assert_eq!(spans.last().unwrap().1, body.len() - 1);
    let mut lengths: Vec<_> = spans.iter().map(|(first, last)| last - first + 1).collect();
    lengths.pop();
    lengths.dedup();
    assert_eq!(lengths, [50_000 / 5, 50_000 / 9]);
    for (nth, request) in server.requests().into_iter().enumerate() {
        assert_eq!(request.if_range.as_deref(), (nth > 0).then_some("\"one\""));
    }
}

#[test]
fn ineffective_lanes_are_replaced_by_one_stream() {
    let body = noise(1_000_000);
    let server = good(&body);
    let outcome = fetch_part(&part(&[&server]), &eager(f64::INFINITY));
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 0);
    let spans = spans(&server);
    assert!(spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{spans:?}");
    let rest = format!("bytes={}-", spans.last().unwrap().1 + 1);
    assert_eq!(server.requests().last().unwrap().range, Some(rest));
    // After the lanes have been replaced, no other number of lanes is tried.
    assert_eq!(server.requests().len(), spans.len() + 2);
}

#[test]
fn measured_rates_select_the_lane_count() {
    // The response to a request for the whole image pauses 16 times for half a second. Responses to range requests do
    // not pause, and are about a hundred times as fast.
    let body = noise(3_000_000);
    let server = Server::start(body.clone(), move |request| {
        let pause = span(request).is_none().then_some(Duration::from_millis(500));
        ResponseBehavior { trickle: pause, ..ResponseBehavior::default() }
    });
    let lanes = LaneRules {
        window: Duration::from_millis(120),
        memory_bytes: 500_000,
        least_bytes: 1_000_000,
        reading: 0.1,
        ..LaneRules::default()
    };
    assert!(fetch_part(&part(&[&server]), &FetchRetryPolicy { lanes, ..pace() }).bytes.unwrap() == body);
    assert_eq!(spans(&server).last().unwrap().1, 3_000_000 - 1);
}

#[test]
fn each_lane_has_a_separate_connection() {
    let body = noise(300_000);
    // The first two requests are answered only after both have arrived.
    let both = Barrier::new(2);
    let server = server(&body, move |nth| {
        if nth < 2 {
            both.wait();
        }
        ResponseBehavior::default()
    });
    let outcome = fetch_part(&part(&[&server]), &eager(0.0));
    assert!(outcome.bytes.unwrap() == body);
    assert_eq!(outcome.resumed, 0);
}

#[test]
fn small_or_unprovable_images_use_one_stream() {
    let body = noise(300_000);
    let only_plain = |server: &Server, pace: &FetchRetryPolicy| {
        assert!(fetch_part(&part(&[server]), pace).bytes.unwrap() == body);
        assert_eq!(server.requests().len(), 1);
    };
    let large = LaneRules { least_bytes: 300_000, ..eager(0.0).lanes };
    only_plain(&good(&body), &FetchRetryPolicy { lanes: large, ..pace() });
    only_plain(&good(&body), &pace());
    for etag in [None, Some("W/\"one\"".to_owned())] {
        let server = Server::start(body.clone(), move |_| ResponseBehavior {
            etag: etag.clone(),
            ..ResponseBehavior::default()
        });
        only_plain(&server, &eager(0.0));
    }
    only_plain(
        &Server::start(body.clone(), |_| ResponseBehavior { length: false, ..ResponseBehavior::default() }),
        &eager(0.0),
    );

    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("image"), &body).unwrap();
    let url = format!("file://{}/image", directory.path().display());
    let outcome = fetch_part(&ImagePart { url, ..ImagePart::default() }, &eager(0.0));
    assert!(outcome.bytes.unwrap() == body);
}

#[test]
fn lanes_send_the_authorization_of_the_first_url() {
    let body = noise(300_000);
    let server = good(&body);
    let image =
        ImagePart { authorization: Some(model::secret_text::SecretText::new("Bearer token")), ..part(&[&server]) };
    assert!(fetch_part(&image, &eager(0.0)).bytes.unwrap() == body);
    let requests = server.requests();
    assert!(requests.len() > 10);
    assert!(requests.iter().all(|request| request.authorization.as_deref() == Some("Bearer token")));
}

fn altered(body: &[u8], at: usize) -> Vec<u8> {
    let mut altered = body.to_vec();
    altered[at] ^= 1;
    altered
}

fn verified(image: &ImagePart, body: &[u8]) -> io::Result<Vec<u8>> {
    let manifest = Some(Arc::new(ImageManifest::compute(body, body.len() as u64).unwrap()));
    let (pace, image) = (eager(0.0), ImagePart { manifest, etag: None, ..image.clone() });
    let (client, mut bytes) = (client(), Vec::new());
    open_source(&client, &image, &pace).read_to_end(&mut bytes).map(|_| bytes)
}

#[test]
fn manifest_replaces_etag_and_verifies_lanes() {
    let body = noise(4 << 20);
    let no_etag = || ResponseBehavior { etag: None, ..ResponseBehavior::default() };
    let server = Server::start(body.clone(), move |_| no_etag());
    assert!(verified(&part(&[&server]), &body).unwrap() == body);
    assert!(spans(&server).len() > 50 && server.requests().iter().all(|request| request.if_range.is_none()));

    // Range requests return one wrong byte, and the single stream the right one.
    let bad = altered(&body, 3_000_000);
    let server = Server::start(body.clone(), move |request| match span(request) {
        Some(_) => ResponseBehavior { body: Some(bad.clone()), ..no_etag() },
        None => no_etag(),
    });
    assert!(verified(&part(&[&server]), &body).unwrap() == body);
    let plain: Vec<_> = server.requests().into_iter().filter(|request| span(request).is_none()).collect();
    assert_eq!(plain.len(), 2);
    assert_eq!(plain[1].range.as_deref(), Some(format!("bytes={}-", 2 << 20).as_str()));

    let bad = Server::start(altered(&body, 3_000_000), move |_| no_etag());
    let error = verified(&part(&[&bad]), &body).unwrap_err().to_string();
    assert!(error.contains("does not match the manifest, although the chunk was fetched 4 times"), "{error}");
}

#[test]
fn data_of_lanes_pass_the_digest_check() {
    let tar = Tar::new().file("data", &noise(1_000_000)).end();
    let digest = Digest::of_bytes(&tar);
    let burn = |server: &Server| {
        let image = ImagePart { digest: digest.clone(), size_bytes: Some(tar.len() as u64), ..part(&[server]) };
        let root = tempfile::tempdir().unwrap();
        let reached = ResolvedImage { parts: vec![image], ..ResolvedImage::default() };
        let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, eager(0.0)).unwrap();
        let burned = incoming.burn_to_root(root.path(), &MountsBelow::default(), &|_| ());
        assert!(spans(server).len() > 50);
        burned.map(|burned| (burned.bytes, burned.resumed, std::fs::read(root.path().join("data")).unwrap()))
    };
    let (bytes, resumed, data) = burn(&good(&tar)).unwrap();
    assert_eq!((bytes, resumed), (tar.len() as u64, 0));
    assert!(data == noise(1_000_000));
    let bad = altered(&tar, 900_000);
    let error =
        burn(&server(&tar, move |_| ResponseBehavior { body: Some(bad.clone()), ..ResponseBehavior::default() }))
            .unwrap_err();
    assert!(error.to_string().contains("digest mismatch"), "{error}");
}

/// Starts lanes without a reader.
fn lanes(server: &Server, total: u64, count: u64) -> ParallelRanges {
    let (stall, etag) = (pace().stall, Some("\"one\"".to_owned()));
    let range_request =
        RangeRequest { client: client(), url: server.url("image"), authorization: None, etag, start: 0, total, stall };
    ParallelRanges::start(range_request, count, 50_000).unwrap()
}

fn wait_for(what: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if what() {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("in vain");
}

#[test]
fn lanes_stop_at_the_buffer_limit_without_a_reader() {
    let body = noise(500_000);
    for count in [1, 2, 4] {
        let server = good(&body);
        let mut lanes = lanes(&server, 500_000, count);
        let most = 2 * count as usize;
        wait_for(|| server.requests().len() >= most);
        thread::sleep(Duration::from_millis(50));
        let bytes: usize = spans(&server).iter().map(|(first, last)| last - first + 1).sum();
        assert!(server.requests().len() == most && bytes <= 50_000, "{bytes}");
        // When the reader has read one byte of a piece, it holds that piece, and the lane of the piece fetches another.
        assert_eq!(lanes.read(&mut [0]).unwrap(), 1);
        wait_for(|| server.requests().len() > most);
        thread::sleep(Duration::from_millis(50));
        let bytes: usize = spans(&server).iter().map(|(first, last)| last - first + 1).sum();
        assert!(server.requests().len() == most + 1 && bytes <= 50_000, "{bytes}");
        let mut rest = Vec::new();
        lanes.read_to_end(&mut rest).unwrap();
        assert!(rest == body[1..]);
    }
}

#[test]
fn lanes_end_when_dropped() {
    let body = noise(500_000);
    let server = good(&body);
    let running = lanes(&server, 500_000, 4);
    wait_for(|| server.requests().len() >= 8);
    let work = Arc::downgrade(&running.work);
    drop(running);
    wait_for(|| work.upgrade().is_none());
    assert_eq!(server.requests().len(), 8);
}

#[test]
fn stopped_lanes_end_at_a_range_boundary() {
    let body = noise(200_000);
    for rounds in 1..12 {
        let server = good(&body);
        let mut lanes = lanes(&server, 200_000, 2);
        let mut bytes = vec![0; rounds * 20_000];
        let most = bytes.len().min(body.len());
        lanes.read_exact(&mut bytes[..most]).unwrap();
        bytes.truncate(most);
        assert!(lanes.is_round_over());
        lanes.wind_down();
        lanes.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), (most + 40_000).min(body.len()), "{rounds}");
        assert!(bytes == body[..bytes.len()]);
        assert_eq!(spans(&server).len(), bytes.len() / 10_000);
    }
}
