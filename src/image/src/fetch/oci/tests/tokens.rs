//! Registries that require a token for manifests, blobs or both.

use super::*;

/// Token service that returns the tokens `t0`, `t1`, …, and stores the last one.
pub(super) fn tokens(field: &'static str) -> (Server, Arc<Mutex<String>>) {
    let last = Arc::new(Mutex::new(String::new()));
    let keep = last.clone();
    let server = Server::start(Vec::new(), move |request| {
        let token = format!("t{}", request.nth);
        *keep.lock().unwrap() = format!("Bearer {token}");
        ResponseBehavior {
            body: Some(json!({field: token, "expires_in": 60}).to_string().into_bytes()),
            ..ResponseBehavior::default()
        }
    });
    (server, last)
}

pub(super) fn unauthorized(challenge: &str) -> ResponseBehavior {
    ResponseBehavior { headers: vec![("WWW-Authenticate", challenge.to_owned())], ..ResponseBehavior::status(401) }
}

/// Registry that requires the last token that the token service has returned.
fn guarded(contents: Contents, tokens: &Server, last: &Arc<Mutex<String>>) -> Server {
    let challenge = format!("Bearer realm=\"{}\",service=\"r.example\"", tokens.url("token?account=x"));
    let last = last.clone();
    Server::start(Vec::new(), move |request| match &request.authorization {
        Some(token) if *token == *last.lock().unwrap() => contents.act(request),
        _ => unauthorized(&challenge),
    })
}

#[test]
fn token_is_requested_if_the_registry_requires_one() {
    for field in ["token", "access_token"] {
        let (tokens, last) = tokens(field);
        let server = guarded(image().0, &tokens, &last);
        let reached = reach_at(url(&server, ":12"), None).unwrap();
        assert_eq!(
            reached.parts[0].authorization.as_ref().map(model::secret_text::SecretText::reveal),
            Some("Bearer t0")
        );
        let paths: Vec<_> = tokens.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["/token?account=x&service=r.example&scope=repository%3Aos%2Fdebian%3Apull"]);
        let root = tempfile::tempdir().unwrap();
        IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())
            .unwrap()
            .burn_to_root(root.path(), &Default::default(), &|_| ())
            .unwrap();
        assert!(root.path().join("etc/hostname").exists());
        assert!(tokens.requests().iter().all(|request| request.authorization.is_none()));
    }
}

#[test]
fn token_that_expires_before_the_burn_is_renewed() {
    let (tokens, last) = tokens("token");
    let server = guarded(image().0, &tokens, &last);
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    *last.lock().unwrap() = "none".to_owned();
    let root = tempfile::tempdir().unwrap();
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())
        .unwrap()
        .burn_to_root(root.path(), &Default::default(), &|_| ())
        .unwrap();
    let paths: Vec<_> = tokens.requests().into_iter().map(|request| request.path).collect();
    assert_eq!((paths.len(), &paths[0]), (2, &paths[1]));
}

#[test]
fn registry_refusing_every_token_is_asked_twice() {
    let (tokens, _) = tokens("token");
    let server = guarded(image().0, &tokens, &Arc::new(Mutex::new("none".to_owned())));
    let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
    assert!(error.contains("the registry responded with 401"), "{error}");
    assert_eq!((server.requests().len(), tokens.requests().len()), (2, 1));

    // The registry rejects all tokens from the start of the burn on. The burn requests one more token, and then fails.
    let last = Arc::new(Mutex::new(String::new()));
    let (tokens, _) = self::tokens("token");
    let open = last.clone();
    let (contents, challenge) = (image().0, format!("Bearer realm=\"{}\"", tokens.url("token")));
    let server = Server::start(Vec::new(), move |request| match (&request.authorization, &open.lock().unwrap()[..]) {
        (Some(_), "") => contents.act(request),
        _ => unauthorized(&challenge),
    });
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    *last.lock().unwrap() = "closed".to_owned();
    let root = tempfile::tempdir().unwrap();
    let burned = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().burn_to_root(
        root.path(),
        &Default::default(),
        &|_| (),
    );
    let error = burned.unwrap_err().to_string();
    assert!(error.contains("the server responded with 401"), "{error}");
    assert_eq!(tokens.requests().len(), 2);
}

#[test]
fn registry_without_obtainable_token_is_named() {
    for (challenge, says) in [
        ("Basic realm=\"r\"", "requires authentication with user and password (scheme: Basic)"),
        ("Negotiate", "requires authentication with user and password (scheme: Negotiate)"),
        ("Bearer", "does not specify a valid token service"),
        ("Bearer realm=\"/token\"", "does not specify a valid token service"),
        ("Bearer realm=\"file:///etc/passwd\"", "does not specify a valid token service"),
    ] {
        let server = Server::start(Vec::new(), move |_| unauthorized(challenge));
        let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
    let silent = Server::start(Vec::new(), |_| ResponseBehavior::status(401));
    let error = reach_at(url(&silent, ":12"), None).unwrap_err().to_string();
    assert!(
        error.contains("requires authentication with user and password (scheme: none that is supported)"),
        "{error}"
    );

    let body = |text: &str| ResponseBehavior { body: Some(text.as_bytes().to_vec()), ..ResponseBehavior::default() };
    for (answer, says) in [
        (ResponseBehavior::status(403), "the server responded with 403"),
        (body("<html>"), "request a token at"),
        (body("{}"), "the response contains no token"),
        (body("{\"token\": \"\"}"), "the response contains no token"),
        (body("{\"token\": \"a\\r\\nb\"}"), "failed to parse header value"),
        (body(&"[".repeat(60_000)), "request a token at"),
        (body(&" ".repeat(70_000)), "longer than 65536 bytes"),
    ] {
        let tokens = Server::start(Vec::new(), move |_| answer.clone());
        let server = guarded(image().0, &tokens, &Arc::new(Mutex::new("none".to_owned())));
        let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

/// Registry that serves manifests without authentication. `blob` may answer requests for blobs.
fn open_manifests(
    contents: Contents,
    blob: impl Fn(&Request) -> Option<ResponseBehavior> + Send + Sync + 'static,
) -> Server {
    Server::start(Vec::new(), move |request| match request.path.contains("/blobs/") {
        true => blob(request).unwrap_or_else(|| contents.act(request)),
        false => contents.act(request),
    })
}

#[test]
fn token_is_requested_if_only_blobs_require_one() {
    let (mut contents, _) = image();
    let layers =
        ["lower", "upper"].map(|name| contents.layer(LAYER, &compress("zstd", &Tar::new().file(name, b"").end())));
    contents.manifest("12", &json!({"mediaType": MANIFEST, "layers": layers}));
    // The registry rejects the HEAD request or, if it does not support HEAD, the GET request that follows.
    for head in [true, false] {
        let (tokens, last) = tokens("token");
        let challenge = format!("Bearer realm=\"{}\"", tokens.url("token"));
        let server = open_manifests(contents.clone(), move |request| match &request.authorization {
            _ if !head && request.method == "HEAD" => Some(ResponseBehavior::status(405)),
            Some(token) if *token == *last.lock().unwrap() => None,
            _ => Some(unauthorized(&challenge)),
        });
        let reached = reach_at(url(&server, ":12"), None).unwrap();
        let root = tempfile::tempdir().unwrap();
        IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())
            .unwrap()
            .burn_to_root(root.path(), &Default::default(), &|_| ())
            .unwrap();
        assert!(root.path().join("lower").exists() && root.path().join("upper").exists());
        let paths: Vec<_> = tokens.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["/token?scope=repository%3Aos%2Fdebian%3Apull"]);
        // The first request was sent without a token.
        assert_eq!(server.requests()[0].authorization, None);
    }
}

#[test]
fn registry_refusing_every_blob_token_is_asked_twice() {
    let (tokens, _) = tokens("token");
    let challenge = format!("Bearer realm=\"{}\"", tokens.url("token"));
    let server = open_manifests(image().0, move |_| Some(unauthorized(&challenge)));
    let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
    assert!(error.contains("/blobs/sha256:") && error.contains("the server responded with 401"), "{error}");
    assert_eq!((server.requests().len(), tokens.requests().len()), (3, 1));

    let closed = open_manifests(image().0, |_| Some(unauthorized("Basic realm=\"r\"")));
    let error = reach_at(url(&closed, ":12"), None).unwrap_err().to_string();
    assert!(error.contains("requires authentication with user and password (scheme: Basic)"), "{error}");
}

#[test]
fn challenge_of_another_host_causes_no_token_request() {
    let (tokens, _) = tokens("token");
    let challenge = format!("Bearer realm=\"{}\"", tokens.url("token"));
    let storage = Server::start(Vec::new(), move |_| unauthorized(&challenge));
    let elsewhere = storage.url("blob");
    let lead_on =
        move || ResponseBehavior { headers: vec![("Location", elsewhere.clone())], ..ResponseBehavior::status(307) };
    let whole = lead_on.clone();
    for server in [open_manifests(image().0, move |_| Some(lead_on())), Server::start(Vec::new(), move |_| whole())] {
        let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
        assert!(error.contains("fetch") && error.contains("responded with 401"), "{error}");
    }
    assert_eq!((storage.requests().len(), tokens.requests().len()), (2, 0));
    assert!(storage.requests().iter().all(|request| request.authorization.is_none()));
}
