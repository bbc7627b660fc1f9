//! Login with OpenID Connect on the command line: the device flow (RFC 8628) at the identity provider, and the exchange
//! of the ID token for a token of the server.

use super::{OperatorClient, OperatorResponse};
use ::api::oidc_login::{ExchangedToken, IdTokenExchange, OidcLoginInfo};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::untrusted_text_limits::sanitize_message;
use common::output::print_text;
use linux::http;
use model::secret_text::SecretText;
use oidc::settings::check_provider_url;
use reqwest::Method;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde::Deserialize;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a request to the identity provider.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for the login in the browser.
const BROWSER_LOGIN_TIMEOUT: Duration = Duration::from_secs(1800);
/// Pause between two polls if the provider specifies none. It is also added to the pause if the provider reports that
/// polls are too frequent.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(5);
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// Response of the provider's device authorization endpoint.
#[derive(Deserialize)]
struct DeviceAuthorization {
    device_code: SecretText,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

/// Response of the provider's token endpoint.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenResponse {
    id_token: Option<SecretText>,
    error: String,
    error_description: String,
}

/// Returns the identity provider of the server; `None` if the server does not support OpenID Connect.
///
/// # Errors
/// Returns an error if the server does not respond, or the provider is not available.
pub(super) fn fetch_login_info(server: &OperatorClient) -> Result<Option<OidcLoginInfo>> {
    match server.send_json::<OidcLoginInfo>(server.public_request(Method::GET, "/v1/oidc")) {
        Ok(OperatorResponse::Good(info)) => Ok(Some(info).filter(|info| info.available)),
        Ok(OperatorResponse::Refused(_)) => Ok(None),
        // Servers of an earlier version do not have this endpoint, so they do not support OpenID Connect.
        Err(error) if error.code() == ErrorCode::ServerUrl => Ok(None),
        Err(error) => Err(error),
    }
}

/// Logs the user in at the identity provider. Returns a token for the server, or the server's refusal.
///
/// # Errors
/// Returns an error if the provider refuses the login or does not respond, or if the login takes too long.
pub(super) fn log_in_at_provider(
    server: &OperatorClient,
    info: &OidcLoginInfo,
) -> Result<OperatorResponse<ExchangedToken>> {
    let (Some(device), Some(token)) = (&info.device_authorization_endpoint, &info.token_endpoint) else {
        let why =
            "does not support logins on the command line (device flow); log in with --token and the token of a user";
        return Err(fail(format!("{} {why}", describe_provider(info))));
    };
    for url in [device, token] {
        check_provider_url(url).map_err(fail)?;
    }
    let client = http::new_login_client()?;
    let client_id = info.client_id.as_deref().unwrap_or_default();
    let form = [("client_id", client_id), ("scope", info.scope.as_deref().unwrap_or_default())];
    let response = post_form(&client, device, &form)?;
    let authorization: DeviceAuthorization = match response.status().is_success() {
        true => serde_json::from_str(&read_text(response)?)
            .context(Phase::Control, || format!("parse the response of {device}"))
            .map_err(|error| error.with_code(ErrorCode::OidcProvider))?,
        false => {
            let why = describe_refusal(&read_refusal(response));
            return Err(fail(format!("{} refuses the login: {why}", describe_provider(info))));
        }
    };
    print_text(&describe_authorization(&authorization)?)?;
    let id_token = poll_token(&client, token, client_id, &authorization, info)?;
    let request = IdTokenExchange { id_token: id_token.reveal().to_owned(), host: read_host_name() };
    server.send_json(server.public_request(Method::POST, "/v1/oidc/token").json(&request))
}

fn fail(why: impl Into<String>) -> Error {
    Error::new(Phase::Control, why).with_code(ErrorCode::OidcProvider)
}

fn describe_provider(info: &OidcLoginInfo) -> String {
    sanitize_message(info.name.as_deref().or(info.issuer.as_deref()).unwrap_or("the identity provider"))
}

/// Returns the instructions for the user. Texts from the provider are included only if they cannot affect the terminal.
fn describe_authorization(authorization: &DeviceAuthorization) -> Result<String> {
    let DeviceAuthorization { user_code, verification_uri, verification_uri_complete, expires_in, .. } = authorization;
    let texts = [Some(user_code), Some(verification_uri), verification_uri_complete.as_ref()];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.is_empty() || !text.chars().all(|c| c == ' ' || c.is_ascii_graphic()))
    {
        return Err(fail("the identity provider has sent a code or a URL with characters that are not permitted"));
    }
    check_provider_url(verification_uri).map_err(fail)?;
    let minutes = (expires_in / 60).max(1);
    let mut text =
        format!("Open {verification_uri} in a browser, and enter the code {user_code} within {minutes} min.\n");
    if let Some(url) = verification_uri_complete {
        check_provider_url(url).map_err(fail)?;
        text += &format!("Or open {url}, and check that the page shows the same code.\n");
    }
    Ok(text)
}

/// Polls the provider until the user has logged in.
fn poll_token(
    client: &Client,
    endpoint: &str,
    client_id: &str,
    authorization: &DeviceAuthorization,
    info: &OidcLoginInfo,
) -> Result<SecretText> {
    let mut pause =
        authorization.interval.map_or(DEFAULT_POLL_INTERVAL, |seconds| Duration::from_secs(seconds.clamp(1, 60)));
    let end = Instant::now() + Duration::from_secs(authorization.expires_in).min(BROWSER_LOGIN_TIMEOUT);
    let code = authorization.device_code.reveal();
    let form = [("grant_type", GRANT), ("device_code", code), ("client_id", client_id)];
    let expired = || fail("the code has expired; run the command again");
    loop {
        sleep(pause);
        if Instant::now() >= end {
            return Err(expired());
        }
        // After a lost connection, polling continues.
        let Ok(response) = post_form(client, endpoint, &form) else { continue };
        if response.status().is_server_error() {
            continue;
        }
        let answer: TokenResponse = match response.status().is_success() {
            true => serde_json::from_str(&read_text(response)?)
                .context(Phase::Control, || format!("parse the response of {endpoint}"))?,
            false => read_refusal(response),
        };
        match (answer.id_token, answer.error.as_str()) {
            (Some(token), _) => return Ok(token),
            (None, "authorization_pending") => {}
            (None, "slow_down") => pause += DEFAULT_POLL_INTERVAL,
            (None, "expired_token") => return Err(expired()),
            (None, "") => return Err(fail(format!("{} has sent no ID token", describe_provider(info)))),
            (None, _) => {
                let why = describe_refusal(&TokenResponse { id_token: None, ..answer });
                return Err(fail(format!("{} refuses the login: {why}", describe_provider(info))));
            }
        }
    }
}

fn post_form(client: &Client, url: &str, form: &[(&str, &str)]) -> Result<Response> {
    let body = serde_urlencoded::to_string(form).context(Phase::Control, || "encode the request")?;
    let request = client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    let sent = request.header(ACCEPT, "application/json").timeout(REQUEST_TIMEOUT).send();
    sent.map_err(|error| {
        let why = format!("no response from {url}{}", http::describe_clock(&error));
        Error::with_source(Phase::Control, why, error.without_url()).with_code(ErrorCode::OidcProvider)
    })
}

fn read_text(response: Response) -> Result<String> {
    let body = http::read_response(response).context(Phase::Control, || "read the provider's response")?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Parses an error response. If its format is unknown, returns its status as the error.
fn read_refusal(response: Response) -> TokenResponse {
    let status = response.status();
    let refusal = serde_json::from_str::<TokenResponse>(&http::read_error_response(response)).unwrap_or_default();
    match refusal.error.is_empty() {
        true => TokenResponse { error: format!("status {status}"), ..TokenResponse::default() },
        false => refusal,
    }
}

fn describe_refusal(refusal: &TokenResponse) -> String {
    let TokenResponse { error, error_description, .. } = refusal;
    sanitize_message(&match error_description.is_empty() {
        true => error.clone(),
        false => format!("{error}: {error_description}"),
    })
}

/// Returns the name of this host, which becomes part of the token's name.
fn read_host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests;
