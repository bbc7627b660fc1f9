//! Registries that require user and password, and other servers that must not receive them.

use super::*;
use base64::prelude::{BASE64_STANDARD, Engine};
use model::registry_auth::PullSecret;
use model::secret_text::SecretText;

const PASSWORD: &str = "hunter2";

fn basic() -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("robot:{PASSWORD}")))
}

/// Pull secret for this server.
fn secret(server: &Server) -> PullSecret {
    let registry = model::registry_auth::registry_of(&url(server, ":12")).unwrap();
    PullSecret { registry, username: "robot".to_owned(), password: SecretText::new(PASSWORD), ..PullSecret::default() }
}

fn reach_with(server: &Server, secret: PullSecret) -> Result<ResolvedImage> {
    let source = ImageSource { url: url(server, ":12"), pull_secrets: vec![secret], ..ImageSource::default() };
    resolve_image(&http::new_client()?, &source, &pace())
}

fn burn(reached: ResolvedImage) -> Result<bool> {
    let root = tempfile::tempdir().unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())?;
    incoming.burn_to_root(root.path(), &Default::default(), &|_| ())?;
    Ok(root.path().join("etc/hostname").exists())
}

/// All requests that the server has received, as text that is searched for passwords and identity tokens.
fn sent(server: &Server) -> String {
    format!("{:?}", server.requests())
}

fn is_told(text: &str) -> bool {
    [PASSWORD, "refresh-me", &BASE64_STANDARD.encode(format!("robot:{PASSWORD}"))]
        .iter()
        .any(|word| text.contains(word))
}

/// Registry that requires exactly this `Authorization` header.
fn wants(contents: Contents, header: String, challenge: String) -> Server {
    Server::start(Vec::new(), move |request| match &request.authorization {
        Some(given) if *given == header => contents.act(request),
        _ => unauthorized(&challenge),
    })
}

#[test]
fn registry_receives_the_password_only_after_a_challenge() {
    let server = wants(image().0, basic(), "Basic realm=\"registry\"".to_owned());
    let reached = reach_with(&server, secret(&server)).unwrap();
    assert!(!is_told(&format!("{reached:?}")), "the debug output, which is logged, contains a secret");
    assert!(burn(reached).unwrap());
    let with_authorization: Vec<bool> =
        server.requests().iter().map(|request| request.authorization.is_some()).collect();
    assert!(!with_authorization[0] && with_authorization[1..].iter().all(|with| *with), "{with_authorization:?}");

    let open = image().0.serve();
    assert!(burn(reach_with(&open, secret(&open)).unwrap()).unwrap());
    assert!(open.requests().iter().all(|request| request.authorization.is_none()));
}

#[test]
fn missing_or_wrong_password_names_the_registry() {
    let server = wants(image().0, basic(), "Basic realm=\"registry\"".to_owned());
    let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
    assert!(
        error.contains("requires authentication with user and password (scheme: Basic); configure a pull secret"),
        "{error}"
    );
    let other = PullSecret { password: SecretText::new("other"), ..secret(&server) };
    let error = reach_with(&server, other).unwrap_err().to_string();
    assert!(
        error.contains("the registry responded with 401 Unauthorized; the registry does not accept the pull secret"),
        "{error}"
    );
    let elsewhere = PullSecret { registry: "127.0.0.1:1".to_owned(), ..secret(&server) };
    let error = reach_with(&server, elsewhere).unwrap_err().to_string();
    assert!(error.contains("requires authentication with user and password"), "{error}");
    assert!(!is_told(&error));
}

/// Token service that returns the tokens `t0`, `t1`, … to clients with the password or the identity token.
fn guarded_tokens(last: &Arc<Mutex<String>>) -> Server {
    let last = last.clone();
    Server::start(Vec::new(), move |request| {
        let refreshed = request.method == "POST" && request.body.contains("refresh_token=refresh-me");
        if !refreshed && request.authorization != Some(basic()) {
            return ResponseBehavior::status(401);
        }
        let token = format!("t{}", request.nth);
        *last.lock().unwrap() = format!("Bearer {token}");
        ResponseBehavior::body(json!({ "access_token": token }).to_string())
    })
}

fn guarded(contents: Contents, challenge: String, last: &Arc<Mutex<String>>) -> Server {
    let last = last.clone();
    Server::start(Vec::new(), move |request| match &request.authorization {
        Some(token) if *token == *last.lock().unwrap() => contents.act(request),
        _ => unauthorized(&challenge),
    })
}

#[test]
fn registry_receives_only_the_token() {
    for identity in ["", "refresh-me"] {
        let last = Arc::new(Mutex::new("none".to_owned()));
        let tokens = guarded_tokens(&last);
        let server = guarded(image().0, format!("Bearer realm=\"{}\",service=\"r\"", tokens.url("token")), &last);
        let token_service = model::registry_auth::registry_of(&url(&tokens, ":12")).unwrap();
        let secret = PullSecret { identitytoken: SecretText::new(identity), token_service, ..secret(&server) };
        let reached = reach_with(&server, secret).unwrap();
        assert!(!is_told(&format!("{reached:?}")));
        // The token expires before the burn, so a new one is requested.
        *last.lock().unwrap() = "none".to_owned();
        assert!(burn(reached).unwrap());
        assert!(!is_told(&sent(&server)), "{}", sent(&server));
        let token_requests: Vec<_> =
            tokens.requests().iter().map(|request| (request.line(), request.body.clone())).collect();
        let scope = "service=r&scope=repository%3Aos%2Fdebian%3Apull";
        let expected = match identity {
            "" => (format!("GET /token?{scope}"), String::new()),
            _ => (
                "POST /token".to_owned(),
                format!("grant_type=refresh_token&client_id=drophammer&refresh_token=refresh-me&{scope}"),
            ),
        };
        assert_eq!(token_requests, [expected.clone(), expected]);
    }
}

#[test]
fn redirect_target_of_a_blob_receives_no_credentials() {
    let (contents, _) = image();
    let blobs = contents.clone();
    // Separate storage server of the registry, which serves blobs without credentials.
    let storage = Arc::new(Server::start(Vec::new(), move |request| blobs.act(request)));
    let (to, open) = (storage.clone(), contents.clone());
    let lead_on = move |request: &Request| match (&request.authorization, request.path.contains("/blobs/")) {
        (Some(given), true) if *given == basic() => {
            let place = to.url(request.path.trim_start_matches('/'));
            ResponseBehavior { headers: vec![("Location", place)], ..ResponseBehavior::status(307) }
        }
        (Some(given), false) if *given == basic() => open.act(request),
        _ => unauthorized("Basic realm=\"registry\""),
    };
    let server = Server::start(Vec::new(), lead_on);
    assert!(burn(reach_with(&server, secret(&server)).unwrap()).unwrap());
    assert!(storage.requests().len() >= 2);
    assert!(storage.requests().iter().all(|request| request.authorization.is_none()), "{}", sent(&storage));
}

#[test]
fn redirect_target_cannot_request_the_password_during_the_burn() {
    let thief = Arc::new(Server::start(Vec::new(), |_| ResponseBehavior::body("{\"token\": \"t\"}")));
    let realm = format!("Bearer realm=\"{}\"", thief.url("token"));
    let storage = Arc::new(Server::start(Vec::new(), move |_| unauthorized(&realm)));
    let leads_on = Arc::new(Mutex::new(false));
    let (contents, to, leads) = (image().0, storage.clone(), leads_on.clone());
    let server = Server::start(Vec::new(), move |request| match &request.authorization {
        Some(_) if *leads.lock().unwrap() => {
            ResponseBehavior { headers: vec![("Location", to.url("b"))], ..ResponseBehavior::status(307) }
        }
        Some(_) => contents.act(request),
        None => unauthorized("Basic realm=\"registry\""),
    });
    let reached = reach_with(&server, secret(&server)).unwrap();
    *leads_on.lock().unwrap() = true;
    let error = burn(reached).unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("the registry redirected the request to"), "{error}");
    assert!(thief.requests().is_empty() && !is_told(&sent(&storage)) && !is_told(&error));
    assert!(!storage.requests().is_empty());
}

#[test]
fn foreign_realm_receives_no_password() {
    for realm in ["http://192.0.2.1/token", "http://localhost.example/token", "http://[::1]:1/token"] {
        let server = wants(image().0, basic(), format!("Bearer realm=\"{realm}\""));
        let error = reach_with(&server, secret(&server)).unwrap_err().to_string();
        assert!(error.contains("neither on the registry's host and port nor the token_service"), "{error}");
        assert!(error.contains(realm) && !is_told(&error), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn another_port_of_the_registry_host_receives_no_password() {
    for identity in ["", "refresh-me"] {
        let thief = Server::start(Vec::new(), |_| ResponseBehavior::body("{\"token\": \"t\"}"));
        let server = wants(image().0, basic(), format!("Bearer realm=\"{}\"", thief.url("token")));
        let secret = PullSecret { identitytoken: SecretText::new(identity), ..secret(&server) };
        let error = reach_with(&server, secret).unwrap_err().to_string();
        assert!(thief.requests().is_empty(), "{}", sent(&thief));
        assert!(error.contains("add `token_service: 127.0.0.1:") && !is_told(&error), "{error}");
    }
}

#[test]
fn realm_cannot_redirect_the_password() {
    for identity in ["", "refresh-me"] {
        let thief = Arc::new(Server::start(Vec::new(), |_| ResponseBehavior::body("{\"token\": \"t\"}")));
        let to = thief.clone();
        let tokens = Server::start(Vec::new(), move |_| ResponseBehavior {
            headers: vec![("Location", to.url("token"))],
            ..ResponseBehavior::status(307)
        });
        let server = wants(image().0, basic(), format!("Bearer realm=\"{}\"", tokens.url("token")));
        let token_service = model::registry_auth::registry_of(&url(&tokens, ":12")).unwrap();
        let secret = PullSecret { identitytoken: SecretText::new(identity), token_service, ..secret(&server) };
        let error = reach_with(&server, secret).unwrap_err().to_string();
        assert!(error.contains("the server responded with 307") && !is_told(&error), "{error}");
        assert!(thief.requests().is_empty());
    }
}

#[test]
fn password_is_sent_neither_over_http_nor_to_mirrors() {
    let source = ImageSource {
        url: "oci+http://192.0.2.1/os/debian:12".to_owned(),
        pull_secrets: vec![PullSecret { registry: "192.0.2.1".to_owned(), ..PullSecret::default() }],
        ..ImageSource::default()
    };
    let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err();
    assert!(
        error.is_refusal() && error.to_string().contains("registry credentials are only sent over https"),
        "{error}"
    );

    let first = wants(image().0, "nobody".to_owned(), "Basic realm=\"registry\"".to_owned());
    let mirror = wants(image().0, "nobody".to_owned(), "Basic realm=\"registry\"".to_owned());
    let source = ImageSource {
        url: url(&first, ":12"),
        mirrors: vec![url(&mirror, ":12")],
        pull_secrets: vec![secret(&first)],
        ..ImageSource::default()
    };
    let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err().to_string();
    assert!(is_told(&sent(&first)) && !is_told(&sent(&mirror)) && !is_told(&error), "{error}");
}
