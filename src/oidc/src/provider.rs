//! Requests to the identity provider, with deadlines. The provider's metadata and keys are fetched when a user logs
//! in, and cached. After a failed request, no request is sent for a while, so an unavailable provider delays only
//! logins.

mod cache;

use crate::id_token::{TokenExpectation, TokenFault, VerifiedIdentity, verify_id_token};
use crate::key_set::ProviderKeys;
use crate::login_cookie::LoginCookie;
use crate::settings::{OidcSettings, check_provider_url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cache::{FetchCache, REQUEST_INTERVAL};
use common::error::{Context, Phase, Result};
use common::type_errors::locate_json_error;
use linux::http;
use model::secret_text::SecretText;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Deadline of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
const RESPONSE_BYTES: u64 = 512 << 10;
/// Age at which metadata and keys are fetched again.
const MAXIMUM_METADATA_AGE: Duration = Duration::from_secs(3600);
/// Maximum length of an error message of the provider, in characters.
const REASON_CHARS: usize = 300;

/// Metadata of the provider (OpenID Connect Discovery).
#[derive(Debug, Clone, Deserialize)]
pub struct ProviderMetadata {
    issuer: String,
    authorization_endpoint: String,
    pub token_endpoint: String,
    jwks_uri: String,
    /// Absent if the provider does not support the device flow (RFC 8628).
    pub device_authorization_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Reason why a login fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderFault {
    /// The provider does not respond, or its responses cannot be used.
    Unavailable(String),
    /// The provider or this server refuses the login.
    Refused(String),
}

impl fmt::Display for ProviderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderFault::Unavailable(why) | ProviderFault::Refused(why) => f.write_str(why),
        }
    }
}

/// Response of the token endpoint.
#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<SecretText>,
}

/// Error response of an endpoint (RFC 6749, 5.2).
#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
    error_description: Option<String>,
}

/// Parameters of the callback, the request with which the provider returns the browser to the web page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CallbackQuery {
    pub code: String,
    pub state: String,
    pub iss: Option<String>,
    pub error: Option<String>,
    pub error_description: Option<String>,
}

/// The identity provider of this server.
#[derive(Debug)]
pub struct OidcProvider {
    settings: OidcSettings,
    client: reqwest::Client,
    metadata: FetchCache<ProviderMetadata>,
    keys: FetchCache<ProviderKeys>,
}

impl OidcProvider {
    /// Creates the client. Sends no request to the provider.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub fn new(settings: OidcSettings) -> Result<OidcProvider> {
        OidcProvider::with_pause(settings, REQUEST_INTERVAL)
    }

    /// Creates the client. `pause` is the minimum interval between a failed request and the next one, and between
    /// refetches of the keys when tokens name unknown keys.
    ///
    /// # Errors
    /// Fails as [`OidcProvider::new`] does.
    pub fn with_pause(settings: OidcSettings, pause: Duration) -> Result<OidcProvider> {
        let client = http::new_async_login_client(settings.authorities.as_deref());
        let client = client.context(Phase::Serve, || "prepare logins with OpenID Connect")?;
        let (metadata, keys) =
            (FetchCache::new(MAXIMUM_METADATA_AGE, pause), FetchCache::new(MAXIMUM_METADATA_AGE, pause));
        Ok(OidcProvider { settings, client, metadata, keys })
    }

    pub fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Returns the provider's metadata.
    ///
    /// # Errors
    /// Returns an error if the provider does not respond, or its metadata is invalid.
    pub async fn fetch_metadata(&self) -> Result<Arc<ProviderMetadata>, ProviderFault> {
        self.metadata.get_or_fetch(|| self.request_metadata()).await.map_err(ProviderFault::Unavailable)
    }

    async fn request_metadata(&self) -> Result<ProviderMetadata, String> {
        let issuer = &self.settings.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let metadata: ProviderMetadata = self.get_json(&url).await?;
        if metadata.issuer != *issuer {
            let why = "specify the issuer exactly as the provider reports it";
            return Err(format!(
                "{url}: the issuer is {:?}, but oidc.yaml contains {issuer:?}; {why}",
                metadata.issuer
            ));
        }
        let device = metadata.device_authorization_endpoint.iter();
        for endpoint in
            [&metadata.authorization_endpoint, &metadata.token_endpoint, &metadata.jwks_uri].into_iter().chain(device)
        {
            check_provider_url(endpoint).map_err(|why| format!("{url}: {why}"))?;
        }
        Ok(metadata)
    }

    async fn request_keys(&self) -> Result<ProviderKeys, String> {
        let metadata = self.fetch_metadata().await.map_err(|fault| fault.to_string())?;
        let url = &metadata.jwks_uri;
        let body = self.read_body(self.client.get(url), url).await?;
        ProviderKeys::parse_document(&body).map_err(|why| format!("{url}: cannot parse the keys: {why}"))
    }

    /// Verifies an ID token. If the token names an unknown key, the keys are fetched again, at a limited rate.
    ///
    /// # Errors
    /// Returns an error if the token is refused, or the provider's keys are not available.
    pub async fn verify_token(
        &self,
        token: &str,
        expected: TokenExpectation<'_>,
    ) -> Result<VerifiedIdentity, ProviderFault> {
        let refuse = |fault: TokenFault| ProviderFault::Refused(format!("the ID token is refused: {fault}"));
        let keys = self.keys.get_or_fetch(|| self.request_keys()).await.map_err(ProviderFault::Unavailable)?;
        match verify_id_token(token, &keys, &self.settings, expected) {
            Err(TokenFault::UnknownKey) => {}
            verified => return verified.map_err(refuse),
        }
        let keys = self.keys.refresh(&keys, || self.request_keys()).await.map_err(ProviderFault::Unavailable)?;
        verify_id_token(token, &keys, &self.settings, expected).map_err(refuse)
    }

    /// Returns the URL at which a browser starts the login.
    ///
    /// # Errors
    /// Returns an error if the provider's metadata is not available.
    pub async fn authorization_url(&self, redirect_url: &str, login: &LoginCookie) -> Result<String, ProviderFault> {
        let metadata = self.fetch_metadata().await?;
        let endpoint = &metadata.authorization_endpoint;
        let mut url: Url =
            endpoint.parse().map_err(|_| ProviderFault::Unavailable(format!("{endpoint:?} is not a URL")))?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", redirect_url)
            .append_pair("scope", &self.settings.scope())
            .append_pair("state", &login.state())
            .append_pair("nonce", &login.nonce())
            .append_pair("code_challenge", &login.code_challenge())
            .append_pair("code_challenge_method", "S256");
        Ok(url.into())
    }

    /// Completes a login that a browser has started: checks the callback, redeems its code, and verifies the ID token.
    ///
    /// # Errors
    /// Returns an error if the login is refused, or the provider does not respond.
    pub async fn complete_login(
        &self,
        query: &CallbackQuery,
        login: &LoginCookie,
        redirect_url: &str,
    ) -> Result<VerifiedIdentity, ProviderFault> {
        let refuse = |why: &str| Err(ProviderFault::Refused(why.to_owned()));
        if !login.matches_state(&query.state) {
            return refuse("the callback belongs to another login, or to another browser; log in again");
        }
        let metadata = self.fetch_metadata().await?;
        // A code from the response of another provider must not be sent to this provider (RFC 9207).
        let is_required = metadata.authorization_response_iss_parameter_supported;
        if query.iss.as_ref().map_or(is_required, |issuer| *issuer != self.settings.issuer) {
            return refuse("the callback was sent by another identity provider");
        }
        if let Some(error) = &query.error {
            let why = describe_refusal(error, query.error_description.as_deref());
            return Err(ProviderFault::Refused(format!("the identity provider refuses the login: {why}")));
        }
        if query.code.is_empty() {
            return refuse("the callback contains no code");
        }
        let token = self.redeem_code(&metadata, &query.code, login, redirect_url).await?;
        let nonce = login.nonce();
        let expected = TokenExpectation { client: &self.settings.client_id, nonce: Some(&nonce) };
        self.verify_token(token.reveal(), expected).await
    }

    async fn redeem_code(
        &self,
        metadata: &ProviderMetadata,
        code: &str,
        login: &LoginCookie,
        redirect_url: &str,
    ) -> Result<SecretText, ProviderFault> {
        let (verifier, client_id) = (login.code_verifier(), self.settings.client_id.as_str());
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_url),
            ("code_verifier", &verifier),
        ];
        let mut request = self.client.post(&metadata.token_endpoint);
        match &self.settings.client_secret {
            None => form.push(("client_id", client_id)),
            Some(secret) if accepts_basic(metadata) => {
                let credentials = format!("{}:{}", encode_form(client_id), encode_form(secret.reveal()));
                request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(credentials)));
            }
            Some(secret) => form.extend([("client_id", client_id), ("client_secret", secret.reveal())]),
        }
        let body = serde_urlencoded::to_string(&form).unwrap_or_default();
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        let request = request.header(ACCEPT, "application/json").timeout(REQUEST_TIMEOUT);
        let endpoint = &metadata.token_endpoint;
        let lost = |why: String| ProviderFault::Unavailable(format!("{endpoint}: {why}"));
        let response = request.send().await.map_err(|error| lost(describe_failure(error)))?;
        let status = response.status();
        let body = http::read_async_response_up_to(response, RESPONSE_BYTES).await;
        let body = body.map_err(|error| lost(error.to_string()))?;
        if status.is_client_error() {
            let why = match serde_json::from_slice::<ErrorResponse>(&body) {
                Ok(refusal) => describe_refusal(&refusal.error, refusal.error_description.as_deref()),
                Err(_) => format!("status {status}"),
            };
            return Err(ProviderFault::Refused(format!("the identity provider does not accept the code: {why}")));
        }
        if !status.is_success() {
            return Err(lost(format!("the provider responded {status}")));
        }
        let tokens: TokenResponse =
            serde_json::from_slice(&body).map_err(|_| lost("cannot parse the response".to_owned()))?;
        let missing = || ProviderFault::Refused("the identity provider has sent no ID token".to_owned());
        tokens.id_token.ok_or_else(missing)
    }

    async fn get_json<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let body = self.read_body(self.client.get(url), url).await?;
        serde_json::from_slice(&body)
            .map_err(|error| format!("{url}: cannot parse the response: {}", locate_json_error(&error)))
    }

    async fn read_body(&self, request: RequestBuilder, url: &str) -> Result<Vec<u8>, String> {
        let request = request.header(ACCEPT, "application/json").timeout(REQUEST_TIMEOUT);
        let response = request.send().await.map_err(|error| format!("{url}: {}", describe_failure(error)))?;
        match response.status() {
            StatusCode::OK => {}
            status => return Err(format!("{url}: the provider responded {status}")),
        }
        let body = http::read_async_response_up_to(response, RESPONSE_BYTES).await;
        body.map_err(|error| format!("{url}: {error}"))
    }
}

/// Returns whether the token endpoint accepts the client's secret in the `Authorization` header, which is the default.
fn accepts_basic(metadata: &ProviderMetadata) -> bool {
    let methods = metadata.token_endpoint_auth_methods_supported.as_ref();
    methods.is_none_or(|methods| methods.is_empty() || methods.iter().any(|method| method == "client_secret_basic"))
}

/// Encodes a client id or secret for a header (RFC 6749, 2.3.1).
fn encode_form(text: &str) -> String {
    let encoded = serde_urlencoded::to_string([("", text)]).unwrap_or_default();
    encoded.trim_start_matches('=').to_owned()
}

/// Returns the error message of the provider on one line.
fn describe_refusal(error: &str, description: Option<&str>) -> String {
    let text = description.map_or_else(|| error.to_owned(), |description| format!("{error}: {description}"));
    text.chars().filter(|c| !c.is_control()).take(REASON_CHARS).collect()
}

/// Describes a failed request by the innermost cause of the error.
fn describe_failure(error: reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no response within {} s", REQUEST_TIMEOUT.as_secs());
    }
    let clock = http::describe_clock(&error);
    let error = error.without_url();
    let mut cause: &dyn StdError = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    format!("no response: {cause}{clock}")
}

#[cfg(test)]
mod tests;
