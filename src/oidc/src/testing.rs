//! Identity provider for tests, on the loopback interface. It signs tokens with ring, and issues any token that a
//! test requests, including invalid tokens.

#![allow(clippy::unwrap_used)]

mod keys;

use ::testing::http::{Request, ResponseBehavior, Server};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
pub use keys::SigningKey;
use reqwest::Url;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Client that the provider has registered.
pub const CLIENT: &str = "drophammer";

/// Responses of the provider to the next polls of the device flow.
pub type DevicePolls = Vec<Value>;

/// Adjustable behavior of the provider.
#[derive(Default)]
pub struct ProviderBehavior {
    /// Claims that replace those of the provider's tokens; null removes a claim.
    pub claims: Value,
    /// Fields that replace those in the header of the provider's tokens.
    pub header: Value,
    /// Keys that the provider publishes. The first key signs the tokens.
    pub keys: Vec<SigningKey>,
    /// Unpublished key that signs tokens instead of the first published key.
    pub foreign_key: Option<SigningKey>,
    /// Fields that replace those of the provider's metadata.
    pub metadata: Value,
    /// Status of all responses; set if all requests must fail.
    pub status: Option<u16>,
    /// Responses to polls of the device flow before the token is issued.
    pub polls: DevicePolls,
    /// ID token that the provider returns instead of a new one.
    pub token: Option<String>,
    codes: HashMap<String, PendingCode>,
    issued: usize,
}

struct PendingCode {
    nonce: String,
    challenge: String,
    redirect: String,
}

/// Running identity provider for tests.
pub struct TestProvider {
    server: Server,
    behavior: Arc<Mutex<ProviderBehavior>>,
}

impl TestProvider {
    /// Starts the provider with an RSA key.
    pub fn start() -> TestProvider {
        TestProvider::listen(|behavior| {
            Server::start(Vec::new(), move |request| respond(&behavior, &base_of(request, "http"), request))
        })
    }

    /// Starts the provider over TLS, with the certificate of `testdata/tls`.
    pub fn start_tls() -> TestProvider {
        TestProvider::listen(|behavior| {
            Server::start_tls(Vec::new(), move |request| respond(&behavior, &base_of(request, "https"), request))
        })
    }

    fn listen(start: impl FnOnce(Arc<Mutex<ProviderBehavior>>) -> Server) -> TestProvider {
        let behavior =
            ProviderBehavior { keys: vec![SigningKey::rsa("rsa", "provider")], ..ProviderBehavior::default() };
        let behavior = Arc::new(Mutex::new(behavior));
        TestProvider { server: start(behavior.clone()), behavior }
    }

    pub fn issuer(&self) -> String {
        self.server.url("").trim_end_matches('/').to_owned()
    }

    /// Changes the behavior.
    pub fn behavior(&self) -> MutexGuard<'_, ProviderBehavior> {
        self.behavior.lock().unwrap()
    }

    /// Returns the requests for this path that the provider has received so far.
    pub fn requests(&self, path: &str) -> Vec<Request> {
        self.server.requests().into_iter().filter(|request| request.path == path).collect()
    }

    /// Returns the text of an `oidc.yaml` for this provider.
    pub fn settings_file(&self) -> String {
        format!(
            "issuer: {}\nclient_id: {CLIENT}\nname: Lab ID\nroles:\n  - {{group: admins, role: admin}}\n  \
             - {{group: shift, role: operator, projects: [blue]}}\n  - {{group: auditors, role: viewer}}\n",
            self.issuer()
        )
    }

    /// Logs a user in at the authorization endpoint. Returns the query of the callback.
    pub fn authorize(&self, url: &str) -> String {
        let url: Url = url.parse().unwrap();
        assert_eq!(url.path(), "/auth");
        let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
        assert_eq!((query["response_type"].as_str(), query["client_id"].as_str()), ("code", CLIENT));
        assert_eq!(query["code_challenge_method"], "S256");
        let mut behavior = self.behavior();
        behavior.issued += 1;
        let code = format!("code{}", behavior.issued);
        let [nonce, challenge, redirect] = ["nonce", "code_challenge", "redirect_uri"].map(|name| query[name].clone());
        behavior.codes.insert(code.clone(), PendingCode { nonce, challenge, redirect });
        format!("code={code}&state={}", query["state"])
    }

    /// Issues a token as the provider would, for a login with this nonce.
    pub fn issue_token(&self, nonce: Option<&str>) -> String {
        issue_token(&mut self.behavior(), &self.issuer(), nonce)
    }
}

fn base_of(request: &Request, scheme: &str) -> String {
    format!("{scheme}://{}", request.header("host").unwrap_or_default())
}

fn now() -> u64 {
    jsonwebtoken::get_current_timestamp()
}

/// Replaces fields of an object; null removes a field.
fn replace_fields(object: &mut Value, changes: &Value) {
    for (name, value) in changes.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    object.as_object_mut().unwrap().retain(|_, value| !value.is_null());
}

fn issue_token(behavior: &mut ProviderBehavior, issuer: &str, nonce: Option<&str>) -> String {
    if let Some(token) = &behavior.token {
        return token.clone();
    }
    behavior.issued += 1;
    let mut claims = json!({
        "iss": issuer, "sub": "subject-1", "aud": CLIENT, "iat": now(), "exp": now() + 300, "nonce": nonce,
        "jti": format!("jti{}", behavior.issued), "preferred_username": "ann", "email": "ann@example.org",
        "email_verified": true, "groups": ["shift"],
    });
    replace_fields(&mut claims, &behavior.claims);
    let key = behavior.foreign_key.as_ref().unwrap_or(&behavior.keys[0]);
    let mut header = json!({"alg": key.algorithm, "typ": "JWT", "kid": key.id});
    replace_fields(&mut header, &behavior.header);
    sign_token(&header, &claims, key)
}

/// Signs a token. The header may contradict the key.
pub fn sign_token(header: &Value, claims: &Value, key: &SigningKey) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signed = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn respond(behavior: &Mutex<ProviderBehavior>, base: &str, request: &Request) -> ResponseBehavior {
    let mut behavior = behavior.lock().unwrap();
    if let Some(status) = behavior.status {
        return ResponseBehavior::respond(status, "down");
    }
    let form: HashMap<String, String> = serde_urlencoded::from_str(&request.body).unwrap_or_default();
    let good = |value: Value| ResponseBehavior::respond(200, &value.to_string());
    let refuse = |error: &str| ResponseBehavior::respond(400, &json!({ "error": error }).to_string());
    match request.path.as_str() {
        "/.well-known/openid-configuration" => {
            let mut metadata = json!({
                "issuer": base, "authorization_endpoint": format!("{base}/auth"), "jwks_uri": format!("{base}/jwks"),
                "token_endpoint": format!("{base}/token"), "device_authorization_endpoint": format!("{base}/device"),
            });
            replace_fields(&mut metadata, &behavior.metadata);
            good(metadata)
        }
        "/jwks" => good(json!({"keys": behavior.keys.iter().map(SigningKey::public_key).collect::<Vec<_>>()})),
        "/device" if form.get("client_id").is_none_or(|client| client != CLIENT) => refuse("invalid_client"),
        "/device" => good(json!({
            "device_code": "device", "user_code": "WDJB-MJHT", "verification_uri": format!("{base}/activate"),
            "verification_uri_complete": format!("{base}/activate?user_code=WDJB-MJHT"), "expires_in": 60, "interval": 1,
        })),
        "/token" if form.get("grant_type").is_some_and(|grant| grant == "authorization_code") => {
            let code = form.get("code").and_then(|code| behavior.codes.remove(code));
            let Some(code) = code else { return refuse("invalid_grant") };
            let verifier = form.get("code_verifier").map(String::as_str).unwrap_or_default();
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
            if challenge != code.challenge || form.get("redirect_uri") != Some(&code.redirect) {
                return refuse("invalid_grant");
            }
            good(json!({"token_type": "Bearer", "id_token": issue_token(&mut behavior, base, Some(&code.nonce))}))
        }
        "/token" if form.get("device_code").is_some_and(|code| code == "device") => {
            if !behavior.polls.is_empty() {
                let poll = behavior.polls.remove(0);
                return ResponseBehavior::respond(400, &poll.to_string());
            }
            good(json!({"token_type": "Bearer", "id_token": issue_token(&mut behavior, base, None)}))
        }
        "/token" => refuse("invalid_request"),
        _ => ResponseBehavior::respond(404, "no such page"),
    }
}
