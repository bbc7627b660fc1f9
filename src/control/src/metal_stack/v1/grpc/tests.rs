//! Tests of the gRPC client against a scripted server.

mod server;

use super::super::messages;
use super::*;
use h2::Reason;
use server::{GrpcServer, ServerTls, Step, TRUSTED, read_pem};

const PATIENCE: Duration = Duration::from_secs(20);
const METHOD: &str = "api.v1.BootService/Register";

fn client(address: &str) -> GrpcClient {
    GrpcClient::new(address, &read_pem("ca.pem"), &read_pem("server.pem"), &read_pem("server.key")).unwrap()
}

/// Registers a machine, and returns its size.
fn register(client: &GrpcClient, patience: Duration) -> Result<String, GrpcFailure> {
    let answer = client.call_unary(METHOD, messages::encode_machine_id("m"), patience)?;
    Ok(messages::read_size(&answer).unwrap_or_default())
}

fn call(steps: &[Step]) -> Result<String, GrpcFailure> {
    register(&client(&GrpcServer::start(steps.to_vec()).address.to_string()), PATIENCE)
}

fn start_wait(server: &GrpcServer) -> GrpcCall {
    let client = client(&server.address.to_string());
    client.start_call("api.v1.BootService/Wait", messages::encode_machine_id("m"), PATIENCE).unwrap()
}

fn head(headers: &[(&'static str, &str)]) -> Step {
    Step::Head(200, headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

fn trailers(headers: &[(&'static str, &str)]) -> Step {
    Step::Trailers(headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

fn only(status: u16, headers: &[(&'static str, &str)]) -> Step {
    Step::Only(status, headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Returns the response to a registration, with its gRPC frame.
fn size(size: &str) -> Vec<u8> {
    frame(&[&[0x0a, 1, b'm', 0x12, u8::try_from(size.len()).unwrap()][..], size.as_bytes()].concat())
}

const OK: (&str, &str) = ("grpc-status", "0");

#[derive(Debug, PartialEq, Eq)]
enum FailureKind {
    Certificate,
    Unknown,
    Transient,
}

fn classify(failure: GrpcFailure) -> (FailureKind, String) {
    let kind = match failure {
        GrpcFailure::Certificate(_) => FailureKind::Certificate,
        GrpcFailure::Unknown(_) => FailureKind::Unknown,
        GrpcFailure::Transient(_) => FailureKind::Transient,
    };
    (kind, failure.into_error().to_string())
}

#[track_caller]
fn check_failure(steps: &[Step], expected: FailureKind, words: &str) {
    let (kind, text) = classify(call(steps).expect_err(&format!("{steps:?}")));
    assert_eq!(kind, expected, "{steps:?}: {text}");
    assert!(text.starts_with(&format!("{METHOD}: 127.0.0.1:")) && text.contains(words), "{steps:?}: {text}");
}

#[test]
fn malformed_credentials_are_named() {
    let (ca, cert, key) = (read_pem("ca.pem"), read_pem("server.pem"), read_pem("server.key"));
    assert!(GrpcClient::new("[::1]:50051", &ca, &cert, &key).is_ok());
    for (ca, cert, key, words) in [
        ("x", cert.as_str(), key.as_str(), "ca_cert of pixie's configuration contains no certificate"),
        (&ca, "x", &key, "cert of pixie's configuration contains no certificate"),
        (&ca, &cert, "x", "key of pixie's configuration"),
        (&ca, &cert, &read_pem("stranger.key"), "cert and key of pixie's configuration"),
    ] {
        let error = GrpcClient::new("api:50051", ca, cert, key).err().unwrap().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    assert!(GrpcClient::new("a b:1", &ca, &cert, &key).is_err());
}

#[test]
fn requests_follow_the_protocol() {
    let server = GrpcServer::start(vec![head(&[]), Step::Data(size("c1")), trailers(&[OK])]);
    assert_eq!(register(&client(&server.address.to_string()), PATIENCE).unwrap(), "c1");
    let requests = server.requests.lock().unwrap();
    let [(head, body)] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((head.method.as_str(), head.uri.to_string()), ("POST", format!("https://{}/{METHOD}", server.address)));
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("content-type"), Some("application/grpc"));
    assert_eq!(header("te"), Some("trailers"));
    assert_eq!(header("user-agent"), Some(concat!("drophammer/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(header("grpc-timeout").or(header("grpc-accept-encoding")), None);
    assert_eq!(body, &frame(b"\x0a\x01m"));
}

#[test]
fn the_last_message_is_the_response() {
    for (bodies, expected) in [
        (vec![], ""),
        (vec![frame(b"")], ""),
        (vec![size("a"), size("b")], "b"),
        (vec![[size("a"), size("b")].concat()], "b"),
        (size("abc").chunks(1).map(<[u8]>::to_vec).collect(), "abc"),
    ] {
        let data = bodies.into_iter().map(Step::Data);
        let steps: Vec<_> = [head(&[])].into_iter().chain(data).chain([trailers(&[OK])]).collect();
        assert_eq!(call(&steps).unwrap(), expected, "{steps:?}");
    }
    assert_eq!(call(&[only(200, &[OK])]).unwrap(), "");
    // The message contains a field that this version does not know, and has the maximum length.
    let longest = [&[0x7a, 0xfc, 0xff, 0x3f][..], &vec![0; (1 << 20) - 4]].concat();
    assert_eq!(call(&[head(&[]), Step::Data(frame(&longest)), trailers(&[OK])]).unwrap(), "");
}

/// While the server is unreachable, a proxy may respond with other HTTP statuses.
#[test]
fn other_http_statuses_are_retryable() {
    for (status, words) in [
        (404, "answered 404 Not Found, which is not gRPC"),
        (401, "answered 401 Unauthorized, which is not gRPC"),
        (503, "answered 503 Service Unavailable, which is not gRPC"),
    ] {
        check_failure(&[only(status, &[])], FailureKind::Transient, words);
        let page = [Step::Head(status, vec![]), Step::Data(b"<html>not found</html>".to_vec())];
        check_failure(&page, FailureKind::Transient, words);
        check_failure(&[only(status, &[("grpc-status", "12")])], FailureKind::Transient, words);
    }
}

#[test]
fn statuses_are_classified() {
    for (status, message, kind, words) in [
        ("12", "", FailureKind::Unknown, "does not have this method"),
        ("12", "%ff", FailureKind::Unknown, "does not have this method"),
        ("14", "is being started", FailureKind::Transient, "is not available: is being started"),
        ("2", "no%20database", FailureKind::Transient, "answered: no database (gRPC status 2)"),
        ("16", "", FailureKind::Transient, "(gRPC status 16)"),
        ("x", "m", FailureKind::Transient, "answered: m (gRPC status "),
    ] {
        let headers = [("grpc-status", status), ("grpc-message", message)];
        check_failure(&[only(200, &headers)], kind, words);
    }
    for steps in [
        vec![head(&[]), trailers(&[("grpc-status", "12")])],
        vec![head(&[]), Step::Data(size("a")), trailers(&[("grpc-status", "12")])],
    ] {
        check_failure(&steps, FailureKind::Unknown, "does not have this method");
    }
}

#[test]
fn error_messages_are_decoded_and_sanitized() {
    for (message, expected) in [
        ("plain", "plain"),
        ("a%20b%C3%A4%", "a bä%"),
        ("%zz %4", "%zz %4"),
        ("%0aline%1b[31m", " line [31m"),
        ("%+1x", "%+1x"),
        ("%ff", "\u{fffd}"),
        ("tab\tand%7f", "tab and "),
    ] {
        let expected = format!("answered: {expected} (gRPC status 2)");
        for steps in [
            vec![only(200, &[("grpc-status", "2"), ("grpc-message", message)])],
            vec![head(&[]), trailers(&[("grpc-status", "2"), ("grpc-message", message)])],
        ] {
            check_failure(&steps, FailureKind::Transient, &expected);
        }
    }
    let long = "%C3%A4".repeat(2000);
    let expected = format!("answered: {} (gRPC status 2)", "ä".repeat(500));
    check_failure(&[only(200, &[("grpc-status", "2"), ("grpc-message", &long)])], FailureKind::Transient, &expected);
}

#[test]
fn malformed_responses_are_retryable() {
    let compressed = [&[1][..], &size("a")[1..]].concat();
    let too_long = [0, 0, 0x10, 0, 1];
    for steps in [
        vec![head(&[]), Step::Data(size("a"))],
        vec![head(&[]), Step::Data(size("a")), trailers(&[("x", "y")])],
        vec![head(&[]), Step::Data(size("abc")[..7].to_vec()), trailers(&[OK])],
        vec![head(&[]), Step::Data(compressed.clone()), trailers(&[OK])],
        vec![head(&[("grpc-encoding", "gzip")]), Step::Data(compressed), trailers(&[OK])],
        vec![head(&[]), Step::Data([&[7][..], &size("a")[1..]].concat()), trailers(&[OK])],
        vec![head(&[]), Step::Data(too_long.to_vec()), trailers(&[OK])],
    ] {
        check_failure(&steps, FailureKind::Transient, "");
    }
}

#[test]
fn malformed_details_are_ignored() {
    let details = [OK, ("grpc-status-details-bin", "%%%")];
    assert_eq!(call(&[head(&[details[1]]), Step::Data(size("a")), trailers(&details)]).unwrap(), "a");
    assert_eq!(call(&[only(200, &details)]).unwrap(), "");
}

#[test]
fn an_encoding_without_compressed_messages_is_ignored() {
    let steps = [head(&[("grpc-encoding", "gzip")]), Step::Data(size("a")), trailers(&[OK])];
    assert_eq!(call(&steps).unwrap(), "a");
}

#[test]
fn connection_closed_without_response_suggests_rejected_certificate() {
    let words = " closed the connection without a response, possibly because it rejects this machine's certificate";
    for steps in [[Step::Close], [Step::Reset(Reason::NO_ERROR)], [Step::GoAway(Reason::ENHANCE_YOUR_CALM)]] {
        check_failure(&steps, FailureKind::Certificate, words);
    }
    for reason in [Reason::CANCEL, Reason::REFUSED_STREAM, Reason::ENHANCE_YOUR_CALM, Reason::INTERNAL_ERROR] {
        check_failure(&[Step::Reset(reason)], FailureKind::Transient, "closed the stream");
    }
}

#[test]
fn a_connection_that_ends_during_the_response_is_retryable() {
    for end in [
        Step::Close,
        Step::Reset(Reason::NO_ERROR),
        Step::Reset(Reason::CANCEL),
        Step::Reset(Reason::INTERNAL_ERROR),
        Step::GoAway(Reason::ENHANCE_YOUR_CALM),
    ] {
        let server = GrpcServer::start(vec![head(&[]), Step::Data(size("a")), Step::Pause, end.clone()]);
        let mut call = start_wait(&server);
        assert!(matches!(call.next_event(PATIENCE).unwrap(), StreamEvent::Message(_)));
        server.resume();
        let (kind, text) = classify(call.next_event(PATIENCE).unwrap_err());
        assert_eq!(kind, FailureKind::Transient, "{end:?}: {text}");
    }
}

#[test]
fn silent_stream_remains_open() {
    let silence = Duration::from_millis(100);
    let steps = [Step::Pause, head(&[]), Step::Data(frame(b"")), Step::Pause, Step::Data(frame(b"")), trailers(&[OK])];
    let server = GrpcServer::start(steps.to_vec());
    let mut call = start_wait(&server);
    for _ in 0..2 {
        assert!(matches!(call.next_event(silence).unwrap(), StreamEvent::Silence));
        server.resume();
        assert!(matches!(call.next_event(PATIENCE).unwrap(), StreamEvent::Message(_)));
    }
    assert!(matches!(call.next_event(PATIENCE).unwrap(), StreamEvent::End));
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}

#[test]
fn calls_have_a_timeout() {
    for steps in [vec![Step::Pause], vec![head(&[]), Step::Data(size("a")), Step::Pause]] {
        let server = GrpcServer::start(steps);
        let client = client(&server.address.to_string());
        // On a busy host, the connection may take more than a second.
        let (seconds, (kind, text)) = (1..)
            .map(|seconds| (seconds, classify(register(&client, Duration::from_secs(seconds)).unwrap_err())))
            .find(|(_, (_, text))| !text.contains("no connection"))
            .unwrap();
        let expected = format!("{METHOD}: no answer from {} within {seconds} s", server.address);
        assert_eq!((kind, text), (FailureKind::Transient, expected));
    }
    // The kernel accepts connections, but no server performs the handshake.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (kind, text) = classify(register(&client(&address), Duration::from_secs(1)).unwrap_err());
    assert_eq!((kind, text), (FailureKind::Transient, format!("{METHOD}: no connection to {address}")));
    drop(silent);
    let (kind, text) = classify(register(&client(&address), PATIENCE).unwrap_err());
    assert_eq!(kind, FailureKind::Transient);
    assert!(text.starts_with(&format!("{METHOD}: no connection to {address}: Connection refused")), "{text}");
}

#[test]
fn untrusted_certificates_are_named() {
    let untrusted = ": the server has a certificate from a CA that is not in pixie's configuration, or a certificate for another host";
    let rejected = " closed the connection without a response, possibly because it rejects this machine's certificate";
    for (tls, address, words) in [
        (ServerTls { name: "stranger", ..TRUSTED }, "127.0.0.1:0", untrusted),
        (TRUSTED, "127.0.0.2:0", untrusted),
        (ServerTls { clients: "stranger.pem", ..TRUSTED }, "127.0.0.1:0", rejected),
    ] {
        let server = GrpcServer::start_with(&tls, address, vec![only(200, &[OK])]);
        let (kind, text) = classify(register(&client(&server.address.to_string()), PATIENCE).unwrap_err());
        assert_eq!(kind, FailureKind::Certificate, "{text}");
        assert!(text.starts_with(&format!("{METHOD}: {}{words}", server.address)), "{text}");
    }
    let server = GrpcServer::start(vec![only(200, &[OK])]);
    assert!(register(&client(&format!("localhost:{}", server.address.port())), PATIENCE).is_ok());
}
