//! HTTP client of the operator's API.

use super::ServerOptions;
use common::error::{Context, Error, Phase, Result};
use common::format::untrusted_text_limits;
use control::api_types::ErrorBody;
use linux::http;
use linux::http::proxies::{ProxyScope, describe_proxy};
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder};
use serde::de::DeserializeOwned;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(30);

/// Address and credentials of the server.
pub(crate) struct OperatorClient {
    client: Client,
    url: String,
    token: String,
    token_file: PathBuf,
}

pub(crate) enum OperatorResponse<T> {
    Good(T),
    /// The server refused the request, with this message.
    Refused(String),
}

impl OperatorClient {
    /// Reads the operator's token and creates the client.
    ///
    /// # Errors
    /// Returns an error if the token cannot be read, or TLS cannot be set up.
    pub(crate) fn new(options: &ServerOptions) -> Result<OperatorClient> {
        let url = options.server.clone().or_else(|| env::var("DROPHAMMER_SERVER").ok());
        let url = url.unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
        let file = options.token_file.clone().or_else(|| env::var_os("DROPHAMMER_TOKEN_FILE").map(PathBuf::from));
        let token_file = file.unwrap_or_else(|| PathBuf::from("operator.token"));
        let token = read_token(&token_file)?;
        Ok(OperatorClient {
            client: http::new_operator_client()?,
            url: url.trim_end_matches('/').to_owned(),
            token,
            token_file,
        })
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token).timeout(ANSWER)
    }

    /// Sends the request and parses the response.
    ///
    /// # Errors
    /// Returns an error if the server does not respond, rejects the token, or fails.
    pub(crate) fn send_json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<OperatorResponse<T>> {
        match self.send_text(request)? {
            OperatorResponse::Refused(said) => Ok(OperatorResponse::Refused(said)),
            OperatorResponse::Good(body) => {
                let what = || format!("cannot parse the response of {}", self.url);
                serde_json::from_str(&body).map(OperatorResponse::Good).context(Phase::Control, what)
            }
        }
    }

    /// Sends the request and returns the body of the response.
    ///
    /// # Errors
    /// Fails as [`OperatorClient::send_json`] does.
    pub(crate) fn send_text(&self, request: RequestBuilder) -> Result<OperatorResponse<String>> {
        let reach = || {
            format!(
                "no response from {}{}; check that `drophammer serve` is running there, or set --server URL",
                self.url,
                describe_proxy(&self.url, ProxyScope::Https)
            )
        };
        let lost = |error: reqwest::Error| {
            Error::with_source(Phase::Control, reach() + &http::describe_clock(&error), error.without_url())
        };
        let response = request.send().map_err(lost)?;
        let status = response.status();
        if status.is_success() {
            let body = http::read_response(response).context(Phase::Control, reach)?;
            return Ok(OperatorResponse::Good(String::from_utf8_lossy(&body).into_owned()));
        }
        let body = http::read_error_response(response);
        let said = serde_json::from_str::<ErrorBody>(&body).map(|body| body.message).unwrap_or(body);
        let said = untrusted_text_limits::sanitize_message(&said);
        match status.as_u16() {
            401 => Err(Error::new(
                Phase::Control,
                format!("{} rejects the token in {}: {said}", self.url, self.token_file.display()),
            )),
            400 | 404 | 409 | 422 => Ok(OperatorResponse::Refused(said)),
            _ => Err(Error::new(Phase::Control, format!("{} responded {status}: {said}", self.url))),
        }
    }
}

fn read_token(file: &Path) -> Result<String> {
    let what = || {
        let where_from = "`drophammer serve` stores the token as operator.token in the server's directory; use --token-file FILE for a copy of the token";
        format!("read the operator's token {}: {where_from}", file.display())
    };
    let text = std::fs::read_to_string(file).context(Phase::Control, what)?;
    match text.trim() {
        "" => Err(Error::new(
            Phase::Control,
            format!(
                "the file of the operator's token, {}, is empty: copy operator.token from the server's directory",
                file.display()
            ),
        )),
        token => Ok(token.to_owned()),
    }
}
