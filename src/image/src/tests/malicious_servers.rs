//! Malicious servers. Whatever a server sends, either the correct image is unpacked, or nothing is unpacked and an
//! error message gives the reason.

use super::*;
use reqwest::Certificate;
use std::sync::mpsc;
use std::time::Duration;
use testing::http::{Request, tls_file};

/// Timeout of a burn. No burn of these tests takes as long on a slow machine, so a burn that exceeds the timeout hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Maximum number of requests of one burn: the checks and all starts, each with all attempts.
const MOST_REQUESTS: usize = 30;

/// Stall timeout of the burns from servers that stall. These burns are expected to fail, so the tests also pass if the
/// machine is so slow that it exceeds this timeout.
const STALL: Duration = Duration::from_millis(50);

type ResponseChoice = Box<dyn Fn(&Request) -> ResponseBehavior + Send + Sync>;

struct MaliciousServer {
    name: &'static str,
    respond: ResponseChoice,
    /// Part of the expected error message; `None` if the image is unpacked nevertheless.
    says: Option<&'static str>,
    stalls: bool,
    over_tls: bool,
    /// Whether the allocation specifies the digest. Otherwise the server provides it.
    given: bool,
}

const STARTS: Option<&str> =
    Some("in 3 attempts: it changed during the download, or the download could not be resumed. Last reason: ");
const ATTEMPTS: Option<&str> = Some("(4 attempts");

/// Returns a server that sends a wrong image, but the correct size and digest.
fn malicious_server(
    name: &'static str,
    says: Option<&'static str>,
    respond: impl Fn(&Request) -> ResponseBehavior + Send + Sync + 'static,
) -> MaliciousServer {
    fully_malicious_server(name, says, move |request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/image") => respond(request),
        ("GET", _) => ResponseBehavior::status(404),
        _ => ResponseBehavior::default(),
    })
}

fn fully_malicious_server(
    name: &'static str,
    says: Option<&'static str>,
    respond: impl Fn(&Request) -> ResponseBehavior + Send + Sync + 'static,
) -> MaliciousServer {
    MaliciousServer { name, respond: Box::new(respond), says, stalls: false, over_tls: false, given: true }
}

fn stalling(malicious_server: MaliciousServer) -> MaliciousServer {
    MaliciousServer { stalls: true, ..malicious_server }
}

/// Returns a server that sends the same response to every request.
fn on_the_wire(name: &'static str, says: Option<&'static str>, head: &str, body: &[u8]) -> MaliciousServer {
    let wire = [head.as_bytes(), b"\r\n\r\n", body].concat();
    malicious_server(name, says, move |_| ResponseBehavior::wire(wire.clone()))
}

/// Returns a server that drops the connection, and answers the request for the rest with `rest`.
fn then(
    name: &'static str,
    says: Option<&'static str>,
    rest: impl Fn() -> ResponseBehavior + Send + Sync + 'static,
) -> MaliciousServer {
    malicious_server(
        name,
        says,
        move |request| if request.range.is_none() { ResponseBehavior::cut_after(100_000) } else { rest() },
    )
}

fn leads_to(url: &str) -> ResponseBehavior {
    ResponseBehavior { headers: vec![("Location", url.to_owned())], ..ResponseBehavior::status(302) }
}

/// Returns servers with wrong redirects, lengths and transfer encodings.
fn servers_with_faulty_transfers(image: &[u8], honest: String) -> Vec<MaliciousServer> {
    let length = image.len();
    let ok = |length: usize| format!("HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: {length}");
    let chunked = "HTTP/1.1 200 OK\r\nETag: \"one\"\r\nTransfer-Encoding: chunked";
    let chunk = [format!("{length:x}\r\n").as_bytes(), &image[..100_000]].concat();
    let looks = |length: usize| {
        move |request: &Request| match request.method.as_str() {
            "HEAD" => ResponseBehavior { body: Some(vec![0; length]), ..ResponseBehavior::default() },
            _ if request.path != "/image" => ResponseBehavior::status(404),
            _ => ResponseBehavior::default(),
        }
    };
    let others = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8";
    let pages = "X-Page: 0123456789012345678901234567890123456789\r\n".repeat(20_000);
    vec![
        fully_malicious_server("looks shorter than it is", None, looks(length - 1)),
        fully_malicious_server("looks longer than it is", None, looks(length + 1)),
        on_the_wire("less than it announces", STARTS, &ok(length + 10), image),
        on_the_wire("more than it announces", Some("it ends within a frame"), &ok(length - 10), image),
        on_the_wire("two lengths", ATTEMPTS, others, image),
        on_the_wire("a length below zero", ATTEMPTS, "HTTP/1.1 200 OK\r\nContent-Length: -1", image),
        on_the_wire("a length beyond all numbers", ATTEMPTS, &format!("{}0000000000000000", ok(length)), image),
        malicious_server("a byte more, of no length", Some("more data than the Content-Length of the image"), |_| {
            ResponseBehavior { length: false, more: true, ..ResponseBehavior::default() }
        }),
        on_the_wire("chunks that end early", STARTS, chunked, &chunk),
        on_the_wire("a chunk of no size", ATTEMPTS, chunked, b"zz\r\n"),
        on_the_wire("a chunk beyond all sizes", ATTEMPTS, chunked, b"fffffffffffffffff\r\n"),
        on_the_wire("no chunk at all", ATTEMPTS, chunked, b"0\r\n\r\n"),
        on_the_wire("headers without end", ATTEMPTS, &format!("HTTP/1.1 200 OK\r\n{pages}"), b""),
        on_the_wire(
            "more headers than anybody reads",
            ATTEMPTS,
            &format!("{}\r\n{}A: b", ok(length), &pages[..10_200]),
            image,
        ),
        on_the_wire("speaks something else", ATTEMPTS, "SSH-2.0-OpenSSH_9.2", b""),
        malicious_server("says nothing and goes", ATTEMPTS, |_| ResponseBehavior::wire("")),
        stalling(malicious_server("never answers", ATTEMPTS, |_| ResponseBehavior::stall_before_the_answer())),
        stalling(fully_malicious_server("never answers to anything", ATTEMPTS, |_| {
            ResponseBehavior::stall_before_the_answer()
        })),
        stalling(malicious_server("a byte, and then silence", ATTEMPTS, |_| ResponseBehavior::stall_after(1))),
        malicious_server("a byte for each connection", ATTEMPTS, |_| ResponseBehavior::cut_after(1)),
        malicious_server("to be asked again in a year", ATTEMPTS, |_| ResponseBehavior {
            headers: vec![("Retry-After", "31536000".to_owned())],
            ..ResponseBehavior::status(503)
        }),
        malicious_server("leads in a circle", Some("too many redirects"), |_| leads_to("/image")),
        fully_malicious_server("leads in circles at once", Some("too many redirects"), |_| leads_to("/other")),
        malicious_server("leads to a file of ours", Some("fetch http://"), |_| leads_to("file:///etc/passwd")),
        malicious_server("leads nowhere", Some("fetch http://"), |_| leads_to("http://")),
        MaliciousServer {
            over_tls: true,
            ..malicious_server("from https to http", Some("refused a redirect from https to http"), move |_| {
                leads_to(&honest)
            })
        },
        malicious_server("no content", Some("the server responded with 204"), |_| ResponseBehavior::status(204)),
        malicious_server("nothing new", Some("the server responded with 304"), |_| ResponseBehavior::status(304)),
        malicious_server("wants a password", Some("the server responded with 401"), |_| ResponseBehavior::status(401)),
    ]
}

fn ranged(range: &str) -> ResponseBehavior {
    ResponseBehavior { content_range: Some(range.to_owned()), ..ResponseBehavior::default() }
}

/// Returns servers with wrong contents, and with wrong responses to the request for the remaining bytes.
fn servers_with_faulty_images(image: &[u8]) -> Vec<MaliciousServer> {
    let (length, whole) = (image.len(), image.to_vec());
    let mut other = whole.clone();
    other[150_000] ^= 1;
    let another = compress("zstd", &Tar::new().file("evil", b"evil").end());
    let (rest, packed) = (whole[100_000..].to_vec(), compress("gzip", &whole));
    let part = format!("HTTP/1.1 206 Part\r\nContent-Range: bytes 0-{}/{length}", length - 1);
    let part = format!("{part}\r\nContent-Length: {length}");
    let encoded = || vec![("Content-Encoding", "gzip".to_owned())];
    let beside = |body: Vec<u8>| {
        move |request: &Request| match request.path.as_str() {
            "/image" => ResponseBehavior::default(),
            "/image.sha256" => ResponseBehavior { body: Some(body.clone()), ..ResponseBehavior::default() },
            _ => ResponseBehavior::status(404),
        }
    };
    let sum = format!("{}  image\n", "0a".repeat(32)).into_bytes();
    let (shifted, larger) =
        (format!("bytes 99999-{}/{length}", length - 2), format!("bytes 100000-{0}/{0}", length + 1));
    vec![
        malicious_server("a part that nobody asked for", Some("the server responded with 206"), move |_| {
            ResponseBehavior::wire([part.as_bytes(), b"\r\n\r\n", &whole].concat())
        }),
        then("no ranges", STARTS, || ResponseBehavior { ranges: false, ..ResponseBehavior::default() }),
        then("the rest as if it were all", STARTS, move || ResponseBehavior {
            ranges: false,
            body: Some(rest.clone()),
            ..ResponseBehavior::default()
        }),
        then("a range of its own", STARTS, move || ranged(&shifted)),
        then("a range of something larger", STARTS, move || ranged(&larger)),
        then("a range in no words", STARTS, || ranged("gibberish")),
        then("has become shorter", STARTS, || ResponseBehavior::status(416)),
        then("has gone", Some("404 Not Found to the request for the remaining bytes"), || {
            ResponseBehavior::status(404)
        }),
        then("the rest of another image", Some("the zstd stream is damaged near byte"), move || ResponseBehavior {
            body: Some(other.clone()),
            ..ResponseBehavior::default()
        }),
        malicious_server("another ETag each time", STARTS, |request| ResponseBehavior {
            etag: Some(format!("\"{}\"", request.nth)),
            ..ResponseBehavior::cut_after(100_000)
        }),
        malicious_server("an ETag that proves nothing", STARTS, |_| ResponseBehavior {
            etag: Some("W/\"one\"".to_owned()),
            ..ResponseBehavior::cut_after(100_000)
        }),
        malicious_server("packed, as it says, and is not", None, move |_| ResponseBehavior {
            headers: encoded(),
            ..ResponseBehavior::default()
        }),
        malicious_server("packed once more", Some("the tar "), move |_| ResponseBehavior {
            body: Some(packed.clone()),
            headers: encoded(),
            ..ResponseBehavior::default()
        }),
        malicious_server("another image", Some("digest mismatch for"), move |_| ResponseBehavior {
            body: Some(another.clone()),
            ..ResponseBehavior::default()
        }),
        malicious_server("a page for people", Some("unknown compression"), |_| ResponseBehavior {
            body: Some(b"<!DOCTYPE html>".to_vec()),
            ..ResponseBehavior::default()
        }),
        malicious_server("nothing at all", Some("the image is empty"), |_| ResponseBehavior {
            body: Some(Vec::new()),
            ..ResponseBehavior::default()
        }),
        MaliciousServer {
            given: false,
            ..fully_malicious_server("another digest", Some("digest mismatch for"), beside(sum))
        },
        MaliciousServer {
            given: false,
            ..fully_malicious_server(
                "a page for a digest",
                Some("does not contain a sha256 digest"),
                beside(b"<html>".to_vec()),
            )
        },
        MaliciousServer {
            given: false,
            ..fully_malicious_server(
                "a digest without end",
                Some("longer than 4096 bytes"),
                beside(vec![b'a'; 1 << 20]),
            )
        },
    ]
}

/// Resolves and burns an image, with a client that trusts the CA of the tests.
fn burn_by(stall: Duration, url: String, given: Option<Digest>, root: &Path) -> Result<BurnResult> {
    let authority = Certificate::from_pem(&fs::read(tls_file("ca.pem")).unwrap()).unwrap();
    let client = http::client_builder(Some(stall)).tls_certs_only([authority]).build().unwrap();
    let pace = FetchRetryPolicy { stall, ..pace() };
    let source = ImageSource { url, digest: given, ..ImageSource::default() };
    let reached = fetch::resolve_image(&client, &source, &pace)?;
    let incoming = IncomingImage { reached, client, pace, plain: PayloadKind::Tar, first: None, among_others: false };
    incoming.burn_to_root(root, &MountsBelow::default(), &|_| ())
}

#[test]
fn malicious_server_yields_the_image_or_one_error() {
    let (tar, digest_of) = (small_tar(), |image: &[u8]| digest(DigestKind::Sha256, image));
    let image = compress("zstd", &tar);
    let honest = Server::start(image.clone(), |_| ResponseBehavior::default());
    let mut malicious_servers = servers_with_faulty_transfers(&image, honest.url("image"));
    malicious_servers.extend(servers_with_faulty_images(&image));
    let (count, mut came, mut wrongs) = (malicious_servers.len(), 0, Vec::new());
    for MaliciousServer { name, respond, says, stalls, over_tls, given } in malicious_servers {
        let start: fn(Vec<u8>, ResponseChoice) -> Server = if over_tls { Server::start_tls } else { Server::start };
        let server = start(image.clone(), respond);
        let (url, given) = (server.url("image"), given.then(|| digest_of(&image)));
        let directory = tempfile::tempdir().unwrap();
        let (root, (done, end)) = (directory.path().to_owned(), mpsc::channel());
        let stall = if stalls { STALL } else { pace().stall };
        std::thread::spawn(move || done.send(burn_by(stall, url, given, &root)));
        let burned = end.recv_timeout(HANGS).unwrap_or_else(|_| panic!("{name}: it never ends"));
        let wrong = match (burned, says) {
            (Ok(_), None) if fs::read(directory.path().join("data")).unwrap() == noise(200_000) => {
                came += 1;
                None
            }
            (Err(error), Some(says)) => {
                let error = error.to_string();
                let is_clear = error.contains(says) && error.contains("/image") && error.len() < 600;
                let left = names(directory.path());
                (!is_clear || !left.is_empty()).then(|| format!("{error}; there is {left:?}"))
            }
            (burned, _) => Some(format!("{:?}", burned.map_err(|error| error.to_string()))),
        };
        wrongs.extend(wrong.map(|wrong| format!("{name}: {wrong}")));
        let requests = server.requests().len();
        wrongs.extend((requests > MOST_REQUESTS).then(|| format!("{name}: {requests} requests")));
    }
    assert_eq!(wrongs, Vec::<String>::new(), "{}", wrongs.join("\n"));
    assert_eq!(honest.requests().len(), 0, "a redirect was followed");
    println!("{count} lying servers: {came} gave the image, {} an error", count - came);
}
