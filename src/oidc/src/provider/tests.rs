use super::*;
use crate::testing::{SigningKey, TestProvider};
use serde_json::json;
use std::path::Path;

const CALLBACK: &str = "http://127.0.0.1:8080/oidc/callback";

fn client(provider: &TestProvider, more: &str) -> OidcProvider {
    let text = format!("{}{more}", provider.settings_file());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "s e:cret\n").unwrap();
    std::fs::copy(::testing::http::tls_file("ca.pem"), dir.path().join("ca.pem")).unwrap();
    OidcProvider::with_pause(OidcSettings::parse_text(&text, dir.path()).unwrap(), Duration::ZERO).unwrap()
}

fn cookie() -> LoginCookie {
    LoginCookie::new(1000, [7; 32])
}

fn query(text: &str) -> CallbackQuery {
    serde_urlencoded::from_str(text).unwrap()
}

/// Logs in at the provider, and returns the query of the callback.
async fn authorize(provider: &TestProvider, client: &OidcProvider, login: &LoginCookie) -> String {
    provider.authorize(&client.authorization_url(CALLBACK, login).await.unwrap())
}

#[tokio::test]
async fn a_login_is_completed_once() {
    let provider = TestProvider::start();
    let client = client(&provider, "");
    let callback = authorize(&provider, &client, &cookie()).await;
    let identity = client.complete_login(&query(&callback), &cookie(), CALLBACK).await.unwrap();
    assert_eq!((identity.issuer, identity.subject.as_str()), (provider.issuer(), "subject-1"));
    let replayed = client.complete_login(&query(&callback), &cookie(), CALLBACK).await.unwrap_err();
    assert!(matches!(&replayed, ProviderFault::Refused(why) if why.contains("invalid_grant")), "{replayed}");
    assert_eq!(provider.requests("/jwks").len(), 1, "the keys are cached");
}

#[tokio::test]
async fn foreign_callbacks_are_refused_before_the_code_is_sent() {
    let provider = TestProvider::start();
    let client = client(&provider, "");
    let callback = authorize(&provider, &client, &cookie()).await;
    let other = LoginCookie::new(1000, [8; 32]);
    for (text, login, expected) in [
        (callback.clone(), other, "belongs to another login"),
        ("code=x".to_owned(), cookie(), "belongs to another login"),
        (format!("code=x&state={}", cookie().nonce()), cookie(), "belongs to another login"),
        (format!("{callback}&iss=https%3A%2F%2Fevil"), cookie(), "another identity provider"),
        (format!("state={}", cookie().state()), cookie(), "contains no code"),
        (
            format!("state={}&error=access_denied&error_description=no%0Aone", cookie().state()),
            cookie(),
            "refuses the login: access_denied: noone",
        ),
    ] {
        let why = client.complete_login(&query(&text), &login, CALLBACK).await.unwrap_err();
        assert!(matches!(&why, ProviderFault::Refused(why) if why.contains(expected)), "{text}: {why}");
    }
    assert!(provider.requests("/token").is_empty());
    provider.behavior().metadata = json!({"authorization_response_iss_parameter_supported": true});
    let client = self::client(&provider, "");
    let why = client.complete_login(&query(&callback), &cookie(), CALLBACK).await.unwrap_err();
    assert!(why.to_string().contains("another identity provider"), "{why}");
}

#[tokio::test]
async fn the_code_is_bound_to_the_verifier_and_the_callback() {
    let provider = TestProvider::start();
    let client = client(&provider, "");
    let callback = authorize(&provider, &client, &cookie()).await;
    let why = client.complete_login(&query(&callback), &cookie(), "http://other/oidc/callback").await.unwrap_err();
    assert!(why.to_string().contains("invalid_grant"), "{why}");
    // The provider returns a token with another nonce, as if it belonged to another login.
    let callback = authorize(&provider, &client, &cookie()).await;
    let injected = provider.issue_token(Some("another"));
    provider.behavior().token = Some(injected);
    let why = client.complete_login(&query(&callback), &cookie(), CALLBACK).await.unwrap_err();
    assert!(why.to_string().contains("the token's nonce is not that of this login"), "{why}");
}

#[tokio::test]
async fn the_client_authenticates_as_the_provider_supports() {
    for (methods, expected) in [
        (json!(null), (Some("Basic ZHJvcGhhbW1lcjpzK2UlM0FjcmV0"), false)),
        (json!(["client_secret_basic"]), (Some("Basic ZHJvcGhhbW1lcjpzK2UlM0FjcmV0"), false)),
        (json!(["client_secret_post"]), (None, true)),
    ] {
        let provider = TestProvider::start();
        provider.behavior().metadata = json!({"token_endpoint_auth_methods_supported": methods});
        let client = client(&provider, "client_secret_file: secret\n");
        let callback = authorize(&provider, &client, &cookie()).await;
        client.complete_login(&query(&callback), &cookie(), CALLBACK).await.unwrap();
        let request = provider.requests("/token").remove(0);
        let is_in_body = request.body.contains("client_secret=s+e%3Acret");
        assert_eq!((request.header("authorization"), is_in_body), expected, "{methods}");
    }
}

#[tokio::test]
async fn new_provider_keys_are_fetched_at_a_limited_rate() {
    let provider = TestProvider::start();
    let client = client(&provider, "");
    let expected = TokenExpectation { client: crate::testing::CLIENT, nonce: None };
    client.verify_token(&provider.issue_token(None), expected).await.unwrap();
    provider.behavior().keys.insert(0, SigningKey::ecdsa("new"));
    client.verify_token(&provider.issue_token(None), expected).await.unwrap();
    assert_eq!(provider.requests("/jwks").len(), 2);
    let settings = OidcSettings::parse_text(&provider.settings_file(), Path::new("/")).unwrap();
    let limited = OidcProvider::new(settings).unwrap();
    provider.behavior().foreign_key = Some(SigningKey::ecdsa("foreign"));
    for _ in 0..20 {
        let why = limited.verify_token(&provider.issue_token(None), expected).await.unwrap_err();
        assert!(why.to_string().contains("not signed with a key"), "{why}");
    }
    assert_eq!(provider.requests("/jwks").len(), 3, "unknown keys cause no further requests");
}

#[tokio::test]
async fn an_unusable_provider_is_reported() {
    let unused = TestProvider::start();
    for (metadata, expected) in [
        (json!({"issuer": "http://127.0.0.1:1"}), "specify the issuer exactly as the provider reports it"),
        (json!({"jwks_uri": "http://example.org/jwks"}), "must begin with https://"),
        (json!({"device_authorization_endpoint": "ftp://127.0.0.1/"}), "must begin with https://"),
        (json!({"token_endpoint": null}), "cannot parse the response"),
    ] {
        unused.behavior().metadata = metadata;
        let fault = client(&unused, "").fetch_metadata().await.unwrap_err();
        assert!(matches!(&fault, ProviderFault::Unavailable(why) if why.contains(expected)), "{fault}");
    }
    unused.behavior().status = Some(503);
    let fault = client(&unused, "").fetch_metadata().await.unwrap_err();
    assert!(fault.to_string().contains("the provider responded 503"), "{fault}");
    // Failures are cached: an unavailable provider gets one request.
    let settings = OidcSettings::parse_text(&unused.settings_file(), Path::new("/")).unwrap();
    let (limited, path) = (OidcProvider::new(settings).unwrap(), "/.well-known/openid-configuration");
    let before = unused.requests(path).len();
    for _ in 0..5 {
        limited.fetch_metadata().await.unwrap_err();
    }
    assert_eq!(unused.requests(path).len(), before + 1);
}

#[tokio::test]
async fn private_ca_of_provider_requires_its_certificate() {
    let provider = TestProvider::start_tls();
    client(&provider, "ca_file: ca.pem\n").fetch_metadata().await.unwrap();
    let fault = client(&provider, "").fetch_metadata().await.unwrap_err();
    assert!(fault.to_string().contains("no response: "), "{fault}");
}
