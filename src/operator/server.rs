//! The server's side that an operator may ask, over HTTP.

use super::OfServer;
use crate::control::wire::ErrorBody;
use crate::error::{Context, Error, Phase, Result};
use crate::http;
use crate::text::limits;
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder};
use serde::de::DeserializeOwned;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(30);

/// The server that the operator asks.
pub struct Server {
    client: Client,
    url: String,
    token: String,
    token_file: PathBuf,
}

pub enum Answer<T> {
    Good(T),
    /// The server's own words.
    Refused(String),
}

impl Server {
    /// # Errors
    /// There is no token, or TLS cannot be set up.
    pub fn new(options: &OfServer) -> Result<Server> {
        let url = options.server.clone().or_else(|| env::var("DROPHAMMER_SERVER").ok());
        let url = url.unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
        let file = options.token_file.clone().or_else(|| env::var_os("DROPHAMMER_TOKEN_FILE").map(PathBuf::from));
        let token_file = file.unwrap_or_else(|| PathBuf::from("operator.token"));
        let token = read_token(&token_file)?;
        Ok(Server { client: http::client()?, url: url.trim_end_matches('/').to_owned(), token, token_file })
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token).timeout(ANSWER)
    }

    /// # Errors
    /// There is no answer, the token is not taken, or the server has trouble of its own.
    pub fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Answer<T>> {
        match self.text(request)? {
            Answer::Refused(said) => Ok(Answer::Refused(said)),
            Answer::Good(body) => {
                let what = || format!("the answer of {} is not understood", self.url);
                serde_json::from_str(&body).map(Answer::Good).context(Phase::Control, what)
            }
        }
    }

    /// The answer as it is.
    ///
    /// # Errors
    /// As [`Server::ask`].
    pub fn text(&self, request: RequestBuilder) -> Result<Answer<String>> {
        let reach = || format!("no answer from {}; is it `drophammer serve`? --server URL names another", self.url);
        let response = request.send().map_err(reqwest::Error::without_url).context(Phase::Control, reach)?;
        let status = response.status();
        if status.is_success() {
            let body = http::read_answer(response).context(Phase::Control, reach)?;
            return Ok(Answer::Good(String::from_utf8_lossy(&body).into_owned()));
        }
        let body = http::read_refusal(response);
        let said = serde_json::from_str::<ErrorBody>(&body).map(|body| body.message).unwrap_or(body);
        let said = limits::message(&said);
        match status.as_u16() {
            401 => Err(Error::new(
                Phase::Control,
                format!("{} does not take the token of {}: {said}", self.url, self.token_file.display()),
            )),
            400 | 404 | 409 | 422 => Ok(Answer::Refused(said)),
            _ => Err(Error::new(Phase::Control, format!("{} answered {status}: {said}", self.url))),
        }
    }
}

fn read_token(file: &Path) -> Result<String> {
    let what = || {
        let where_from = "it is operator.token in the directory of `drophammer serve`; --token-file FILE names a copy";
        format!("read the operator's token {}: {where_from}", file.display())
    };
    let text = std::fs::read_to_string(file).context(Phase::Control, what)?;
    match text.trim() {
        "" => Err(Error::new(Phase::Control, format!("the operator's token {} is empty", file.display()))),
        token => Ok(token.to_owned()),
    }
}
