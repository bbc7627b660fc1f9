use super::*;
use crate::testing::{CLIENT, SigningKey, TestProvider, sign_token};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use std::path::Path;

const NONCE: &str = "nonce-1";

fn now() -> u64 {
    get_current_timestamp()
}

/// Settings and published keys of the provider.
fn settings_and_keys(provider: &TestProvider) -> (OidcSettings, ProviderKeys) {
    let settings = OidcSettings::parse_text(&provider.settings_file(), Path::new("/")).unwrap();
    let keys: Vec<Value> = provider.behavior().keys.iter().map(SigningKey::public_key).collect();
    (settings, ProviderKeys::parse_document(json!({ "keys": keys }).to_string().as_bytes()).unwrap())
}

fn verify(provider: &TestProvider, token: &str, nonce: Option<&str>) -> Result<VerifiedIdentity, String> {
    let (settings, keys) = settings_and_keys(provider);
    let expected = TokenExpectation { client: CLIENT, nonce };
    verify_id_token(token, &keys, &settings, expected).map_err(|fault| fault.to_string())
}

#[test]
fn tokens_of_all_accepted_algorithms_are_verified() {
    let provider = TestProvider::start();
    let rsa = || SigningKey::rsa("rsa", "provider");
    for key in [rsa(), rsa().with_algorithm("PS256"), SigningKey::ecdsa("ec"), SigningKey::ed25519("ed")] {
        let algorithm = key.algorithm;
        provider.behavior().keys = vec![key];
        let identity = verify(&provider, &provider.issue_token(Some(NONCE)), Some(NONCE)).unwrap();
        assert_eq!((identity.subject.as_str(), identity.name.as_deref()), ("subject-1", Some("ann")), "{algorithm}");
        assert_eq!((identity.groups, identity.marks.len()), (vec!["shift".to_owned()], 3));
        assert!(verify(&provider, &provider.issue_token(None), None).is_ok(), "{algorithm}");
    }
}

/// Claims and header fields of tokens that are refused, with the reason.
fn refused_tokens() -> Vec<(&'static str, Value, Value, &'static str)> {
    let with = |name: &'static str, changed: Value, why: &'static str| (name, changed, Value::Null, why);
    let head = |name: &'static str, changed: Value, why: &'static str| (name, Value::Null, changed, why);
    vec![
        with("expired", json!({"exp": now() - 61}), "the token has expired"),
        with("without expiry", json!({"exp": null}), "the token lacks the claim exp"),
        with("expiry as text", json!({"exp": "2100-01-01"}), "the token lacks the claim exp"),
        with("not valid yet", json!({"nbf": now() + 120}), "the token is not valid yet"),
        with("issued in the future", json!({"iat": now() + 120}), "the token was issued in the future"),
        with("issued long ago", json!({"iat": now() - 700}), "more than 10 minutes ago"),
        with("without time of issue", json!({"iat": null}), "the token lacks the claim iat"),
        with("other issuer", json!({"iss": "https://evil.example.org"}), "issued by another identity provider"),
        with("issuer with slash", json!({"iss": "http://127.0.0.1/"}), "issued by another identity provider"),
        with("without issuer", json!({"iss": null}), "the token lacks the claim iss"),
        with("other audience", json!({"aud": "grafana"}), "the token was issued to another client"),
        with("other audiences", json!({"aud": ["grafana", "vault"]}), "the token was issued to another client"),
        with("without audience", json!({"aud": null}), "the token lacks the claim aud"),
        with("empty audiences", json!({"aud": []}), "the token was issued to another client"),
        with("several audiences", json!({"aud": [CLIENT, "grafana"]}), "several audiences, but no authorized party"),
        with("other party", json!({"aud": [CLIENT, "g"], "azp": "g"}), "the token was issued to another client"),
        with("other party alone", json!({"azp": "grafana"}), "the token was issued to another client"),
        with("without subject", json!({"sub": null}), "the token lacks the claim sub"),
        with("empty subject", json!({"sub": ""}), "the token's claim sub is empty or too long"),
        with("number as subject", json!({"sub": 7}), "the token lacks the claim sub"),
        with("other nonce", json!({"nonce": "nonce-2"}), "the token's nonce is not that of this login"),
        with("without nonce", json!({"nonce": null}), "the token's nonce is not that of this login"),
        with("nonce in a list", json!({"nonce": [NONCE]}), "the token's nonce is not that of this login"),
        with("groups as numbers", json!({"groups": [1]}), "the token's groups are not text"),
        with("groups as object", json!({"groups": {"admins": true}}), "the token's groups are not a list"),
        head("unsigned", json!({"alg": "none"}), "the token's algorithm is not accepted"),
        head("unsigned, capitals", json!({"alg": "None"}), "the token's algorithm is not accepted"),
        head("HS256 with the public key", json!({"alg": "HS256"}), "the token's algorithm HS256 is not accepted"),
        head("RS512", json!({"alg": "RS512"}), "the token's algorithm RS512 is not accepted"),
        head("another algorithm of the key", json!({"alg": "PS256"}), "the token's signature is invalid"),
        head("algorithm of another key", json!({"alg": "ES256"}), "not signed with a key of the identity provider"),
        head("unknown key", json!({"kid": "other"}), "not signed with a key of the identity provider"),
        head("access token", json!({"typ": "at+jwt"}), "the token's type is not that of an ID token"),
        head("critical extension", json!({"crit": ["x"], "x": 1}), "the token is not a valid JSON Web Token"),
        head("unencoded payload", json!({"b64": false}), "the token is not a valid JSON Web Token"),
    ]
}

#[test]
fn invalid_tokens_are_refused_with_the_reason() {
    let provider = TestProvider::start();
    for (name, claims, header, expected) in refused_tokens() {
        {
            let mut behavior = provider.behavior();
            (behavior.claims, behavior.header) = (claims, header);
        }
        let why = verify(&provider, &provider.issue_token(Some(NONCE)), Some(NONCE)).expect_err(name);
        assert!(why.contains(expected), "{name}: {why}");
    }
    let _ = std::mem::take(&mut *provider.behavior());
}

#[test]
fn forged_signatures_are_refused() {
    let provider = TestProvider::start();
    let token = provider.issue_token(Some(NONCE));
    let claims =
        json!({"iss": provider.issuer(), "sub": "s", "aud": CLIENT, "iat": now(), "exp": now() + 300, "nonce": NONCE});
    let foreign = SigningKey::rsa("rsa", "foreign");
    let header = json!({"alg": "RS256", "kid": "rsa"});
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let other = provider.issue_token(Some(NONCE));
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let mut embedded = header.clone();
    embedded["jwk"] = foreign.public_key();
    let mut linked = header.clone();
    linked["jku"] = json!("https://evil.example.org/jwks");
    let unsigned =
        |algorithm: &str| format!("{}.{}.", encode(&json!({"alg": algorithm, "kid": "rsa"})), encode(&claims));
    for (name, token) in [
        ("foreign key with a known id", sign_token(&header, &claims, &foreign)),
        ("foreign key in the header", sign_token(&embedded, &claims, &foreign)),
        ("foreign key at a URL of the header", sign_token(&linked, &claims, &foreign)),
        ("no signature", format!("{signed}.")),
        ("unsigned", unsigned("none")),
        ("unsigned as RS256", unsigned("RS256")),
        ("signature of another token", format!("{signed}.{}", other.rsplit_once('.').unwrap().1)),
        ("shortened signature", format!("{signed}.{}", &signature[..signature.len() - 4])),
        ("two parts", signed.to_owned()),
        ("four parts", format!("{token}.x")),
        ("empty", String::new()),
        ("not base64", "a b.c d.e f".to_owned()),
        ("too long", format!("{token}{}", "A".repeat(TOKEN_BYTES))),
    ] {
        let why = verify(&provider, &token, Some(NONCE)).expect_err(name);
        assert!(token.is_empty() || !why.contains(&token), "{name}: {why}");
    }
    assert!(verify(&provider, &token, Some(NONCE)).is_ok());
}

#[test]
fn a_token_of_another_login_is_refused() {
    let provider = TestProvider::start();
    let of_page = provider.issue_token(Some(NONCE));
    let why = verify(&provider, &of_page, None).unwrap_err();
    assert!(why.contains("it was issued for a login at a web page"), "{why}");
    let of_device = provider.issue_token(None);
    assert!(verify(&provider, &of_device, Some(NONCE)).unwrap_err().contains("the token's nonce"));
}

#[test]
fn a_key_id_may_be_absent_only_if_one_key_is_suitable() {
    let provider = TestProvider::start();
    provider.behavior().header = json!({"kid": null});
    assert!(verify(&provider, &provider.issue_token(None), None).is_ok());
    let second = SigningKey::rsa("second", "foreign");
    provider.behavior().keys.push(second);
    assert!(verify(&provider, &provider.issue_token(None), None).is_err());
}

#[test]
fn unusable_keys_of_a_set_are_ignored() {
    let key = SigningKey::rsa("rsa", "provider").public_key();
    let mut of_encryption = key.clone();
    of_encryption["use"] = json!("enc");
    let mut of_other_algorithm = key.clone();
    of_other_algorithm["alg"] = json!("RS512");
    let shared = json!({"kty": "oct", "kid": "rsa", "k": "c2VjcmV0"});
    let unknown = json!({"kty": "new", "kid": "rsa"});
    let parse = |keys: Vec<Value>| ProviderKeys::parse_document(json!({ "keys": keys }).to_string().as_bytes());
    let unusable = vec![of_encryption, of_other_algorithm, shared, unknown, json!(7), json!({})];
    assert!(parse(unusable.clone()).unwrap().find_key(Algorithm::RS256, Some("rsa")).is_none());
    let found = parse(unusable.into_iter().chain([key.clone()]).collect()).unwrap();
    assert!(found.find_key(Algorithm::RS256, Some("rsa")).is_some());
    assert!(found.find_key(Algorithm::HS256, Some("rsa")).is_none());
    assert!(parse(vec![key; 101]).is_err() && ProviderKeys::parse_document(b"{}").is_err());
}

#[test]
fn user_name_is_the_first_trusted_claim() {
    let provider = TestProvider::start();
    for (claims, expected) in [
        (json!({}), Some("ann")),
        (json!({"preferred_username": null}), Some("ann@example.org")),
        (json!({"preferred_username": null, "email_verified": false}), Some("subject-1")),
        (json!({"preferred_username": null, "email_verified": null}), Some("subject-1")),
        (json!({"preferred_username": 7, "email_verified": "true"}), Some("subject-1")),
        (json!({"preferred_username": "x".repeat(300)}), None),
    ] {
        provider.behavior().claims = claims.clone();
        let identity = verify(&provider, &provider.issue_token(None), None).unwrap();
        assert_eq!(identity.name.as_deref(), expected, "{claims}");
    }
}

#[test]
fn token_marks_are_independent_of_the_signature() {
    let provider = TestProvider::start();
    provider.behavior().claims = json!({"jti": null});
    let (one, other) = (provider.issue_token(None), {
        provider.behavior().claims = json!({"jti": null, "iat": now() - 1});
        provider.issue_token(None)
    });
    let marks = |token: &str| verify(&provider, token, None).unwrap().marks;
    assert_eq!(marks(&one), marks(&one));
    assert_ne!(marks(&one), marks(&other));
    let (settings, _) = settings_and_keys(&provider);
    let claims = Map::from_iter([("sub".to_owned(), json!("s"))]);
    let read = |token: &str| read_identity(token, &claims, &settings).unwrap().marks;
    assert_eq!(read("header.claims.first"), read("header.claims.second"));
}
