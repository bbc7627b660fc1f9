//! Authentication after a registry's 401 response, with user and password or with a token. A registry may require a
//! token even for anonymous access; its 401 response specifies the token service.

use super::super::retry::{DocumentAnswer, FetchRetryPolicy};
use base64::prelude::{BASE64_STANDARD, Engine};
use common::error::{Context, Error, Phase, Result};
use linux::http;
use model::registry_auth::PullSecret;
use model::secret_text::SecretText;
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

const ANSWER_BYTES: u64 = 64 << 10;

const FORM: &str = "application/x-www-form-urlencoded";

/// Response of a token service. Some services return the token in `token`, others in `access_token`.
#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

/// Token service, and the query parameters of the token request.
struct TokenService {
    url: Url,
    wanted: Vec<(&'static str, String)>,
}

/// Returns the value of the `Authorization` header for repeating a request after a 401 response.
///
/// # Errors
/// Returns an error if the registry requires a password that is not configured, or no token is available.
pub(crate) fn answer_challenge(
    client: &Client,
    repository: &str,
    refusal: &Response,
    secret: Option<&PullSecret>,
    pace: &FetchRetryPolicy,
) -> Result<SecretText> {
    let fail = |why: &str| Error::new(Phase::Image, format!("the registry at {url}: {why}", url = refusal.url()));
    let challenges = refusal.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let (bearer, others): (Vec<&str>, Vec<&str>) =
        challenges.partition(|one| split_scheme(one).0.eq_ignore_ascii_case("bearer"));
    let Some(challenge) = bearer.first() else {
        let wants_basic = others.iter().any(|one| split_scheme(one).0.eq_ignore_ascii_case("basic"));
        if let Some(secret) = secret.filter(|secret| wants_basic && !secret.username.is_empty()) {
            return Ok(basic_auth_header(secret));
        }
        let kind = others.first().map_or("none that is supported", |one| split_scheme(one).0);
        return Err(fail(&format!(
            "the registry requires authentication with user and password (scheme: {kind:.40}); configure a pull secret for this registry"
        )));
    };
    let Some(realm) = TokenService::parse_challenge(challenge, repository) else {
        return Err(fail(&format!("the response does not specify a valid token service: `{challenge:.200}`")));
    };
    let Some(secret) = secret else { return realm.request_token(pace, |url| client.get(url)) };
    if !may_receive_password(&realm.url, refusal.url(), secret) {
        let host = host_and_port(&realm.url);
        let why = format!(
            "which is neither on the registry's host and port nor the token_service of the pull secret, so the \
             password is not sent to it. If {host} is right, add `token_service: {host}` to the pull_secret, or \
             \"token_service\" to the registry's entry in config.json"
        );
        return Err(fail(&format!("the registry refers to the token service {}, {why}", realm.url)));
    }
    // The client does not follow redirects, because a secret must not be sent to another host.
    let client = http::new_login_client()?;
    match secret.identitytoken.is_empty() {
        true => {
            realm.request_token(pace, |url| client.get(url).header(AUTHORIZATION, basic_auth_header(secret).reveal()))
        }
        false => realm.refresh_token(pace, &client, &secret.identitytoken),
    }
}

impl TokenService {
    fn parse_challenge(challenge: &str, repository: &str) -> Option<TokenService> {
        let parameters = parse_parameters(split_scheme(challenge).1);
        let parameter = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let url = Url::parse(&parameter("realm")?).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        let service = parameter("service").map(|service| ("service", service));
        let scope = parameter("scope").unwrap_or_else(|| format!("repository:{repository}:pull"));
        Some(TokenService { url, wanted: service.into_iter().chain([("scope", scope)]).collect() })
    }

    fn request_token(mut self, pace: &FetchRetryPolicy, ask: impl Fn(Url) -> RequestBuilder) -> Result<SecretText> {
        self.url.query_pairs_mut().extend_pairs(&self.wanted);
        let what = format!("request a token at {}", self.url);
        fetch_token(&what, pace, || ask(self.url.clone()))
    }

    /// Requests an access token with a refresh token, as specified in
    /// <https://distribution.github.io/distribution/spec/auth/oauth/>.
    fn refresh_token(&self, pace: &FetchRetryPolicy, client: &Client, token: &SecretText) -> Result<SecretText> {
        let mut form = self.url.clone();
        form.set_query(None);
        let fixed = [("grant_type", "refresh_token"), ("client_id", "drophammer"), ("refresh_token", token.reveal())];
        form.query_pairs_mut().extend_pairs(fixed).extend_pairs(&self.wanted);
        let form = SecretText::new(form.query().unwrap_or_default());
        let request = || client.post(self.url.clone()).header(CONTENT_TYPE, FORM).body(form.reveal().to_owned());
        fetch_token(&format!("request a token at {}", self.url), pace, request)
    }
}

/// Sends the request to the token service and returns the `Authorization` header with the token from the response.
fn fetch_token(what: &str, pace: &FetchRetryPolicy, request: impl Fn() -> RequestBuilder) -> Result<SecretText> {
    let failed = |why: String| Error::new(Phase::Image, format!("{what}: {why}"));
    let bytes = match pace.read_document(what, ANSWER_BYTES, request)? {
        DocumentAnswer::Document(bytes) => bytes,
        DocumentAnswer::Other(response) => {
            return Err(failed(format!("the server responded with {status}", status = response.status())));
        }
    };
    // The parser's own message is not included in the error, because it could contain the token.
    let given: TokenResponse =
        serde_json::from_slice(&bytes).map_err(|_| failed("cannot parse the response".to_owned()))?;
    let token = given.token.or(given.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| failed("the response contains no token".to_owned()))?;
    let value = format!("Bearer {token}");
    HeaderValue::from_str(&value).context(Phase::Image, || what.to_owned())?;
    Ok(SecretText::new(value))
}

/// Returns the `Authorization` header for user and password.
fn basic_auth_header(secret: &PullSecret) -> SecretText {
    let PullSecret { username, password, .. } = secret;
    SecretText::new(format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{}", password.reveal()))))
}

/// Returns whether a token service may receive the password of a registry. The token service must have the same host
/// and port as the registry, or be the `token_service` of the pull secret. Otherwise a compromised registry, which
/// normally receives only tokens, could obtain the password by specifying an attacker's token service. If the registry
/// uses TLS, the service must also use TLS.
fn may_receive_password(realm: &Url, registry: &Url, secret: &PullSecret) -> bool {
    let is_protected = realm.scheme() == "https" || realm.scheme() == registry.scheme();
    let is_registry =
        realm.host() == registry.host() && realm.port_or_known_default() == registry.port_or_known_default();
    is_protected && (is_registry || secret.token_service().is_some_and(|service| is_at(realm, service)))
}

/// Returns whether a URL has this host and port (`HOST` or `HOST:PORT`).
fn is_at(url: &Url, host: &str) -> bool {
    let named = Url::parse(&format!("{}://{host}/", url.scheme())).ok();
    named.is_some_and(|named| named.origin() == url.origin() && named.username().is_empty() && named.path() == "/")
}

/// Returns host and port of a URL. The port is omitted if it is the default port of the URL's scheme.
fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns a new `Authorization` header for a blob's URL after the previous token has expired.
///
/// # Errors
/// Returns the same errors as [`answer_challenge`]. Also returns an error if the 401 response comes from another host,
/// to which the registry has redirected the request: that host must not receive the registry's credentials.
pub(crate) fn renew_authorization(
    client: &Client,
    url: &str,
    refusal: &Response,
    secret: Option<&PullSecret>,
    pace: &FetchRetryPolicy,
) -> Result<SecretText> {
    if !Url::parse(url).is_ok_and(|own| own.origin() == refusal.url().origin()) {
        let (status, host) = (refusal.status(), refusal.url().host_str().unwrap_or_default());
        let text = format!("the registry redirected the request to {host}, which responded with {status}");
        return Err(Error::new(Phase::Image, text));
    }
    let repository = url.split_once("/v2/").and_then(|(_, rest)| rest.split_once("/blobs/"));
    answer_challenge(client, repository.map_or("", |(repository, _)| repository), refusal, secret, pace)
}

/// Splits the value of a `WWW-Authenticate` header into its scheme and parameters.
fn split_scheme(challenge: &str) -> (&str, &str) {
    challenge.trim().split_once(' ').unwrap_or((challenge.trim(), ""))
}

/// Parses the parameters of a `WWW-Authenticate` header: `key="value, with commas",other=word`.
fn parse_parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        rest = after.trim_start_matches([',', ' ']);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registry_or_configured_service_receives_the_password() {
        for (registry, realm, service, expected) in [
            ("https://r.example/v2/", "https://r.example/token", "", true),
            ("https://r.example/v2/", "https://r.example:443/token", "", true),
            ("https://r.example:5000/v2/", "https://R.example:5000/token", "", true),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5000/token", "", true),
            ("https://r.example:5050/v2/", "https://r.example/jwt/auth", "r.example", true),
            ("https://registry.example/v2/", "https://git.example/jwt/auth", "git.example", true),
            ("https://registry.example/v2/", "https://git.example:8443/jwt", "GIT.example:8443", true),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token", "127.0.0.1:5001", true),
            // Not trusted: another port, another host, plain HTTP, or a service other than the configured one.
            ("https://r.example/v2/", "https://r.example:8443/token", "", false),
            ("https://r.example:5050/v2/", "https://r.example/jwt/auth", "", false),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token", "", false),
            ("http://127.0.0.1:5000/v2/", "https://127.0.0.1:5001/token", "", false),
            ("https://r.example/v2/", "https://evil.example/token", "", false),
            ("https://r.example/v2/", "https://r.example.evil.example/token", "", false),
            ("https://r.example/v2/", "http://r.example/token", "", false),
            ("https://r.example:5000/v2/", "http://r.example:5000/token", "r.example:5000", false),
            ("https://r.example/v2/", "https://evil.example/token", "git.example", false),
            ("https://r.example/v2/", "https://git.example:8443/token", "git.example", false),
            ("https://r.example/v2/", "https://evil.example/token", "git.example@evil.example", false),
            ("https://r.example/v2/", "https://evil.example/token", "evil.example/x", false),
        ] {
            let secret = PullSecret { token_service: service.to_owned(), ..PullSecret::default() };
            let [registry, realm] = [registry, realm].map(|url| Url::parse(url).unwrap());
            assert_eq!(may_receive_password(&realm, &registry, &secret), expected, "{registry} {realm} {service}");
        }
    }

    #[test]
    fn parameters_of_a_challenge_are_parsed() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let cases = [
            (
                "realm=\"https://a/token\",service=\"r.example\", Scope=\"repository:x:pull,push\"",
                vec![
                    pair("realm", "https://a/token"),
                    pair("service", "r.example"),
                    pair("scope", "repository:x:pull,push"),
                ],
            ),
            ("realm=https://a/token?x=y,error=e", vec![pair("realm", "https://a/token?x=y"), pair("error", "e")]),
            ("realm=\"https://a", vec![pair("realm", "https://a")]),
            ("", vec![]),
            ("nothing", vec![]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_parameters(text), expected, "{text}");
        }
    }
}
