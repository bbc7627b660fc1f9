//! `drophammer login`: stores the address of a server and the operator's token as a context.

use super::connection::{ServerConnection, find_config_path, is_loopback_url, parse_server_url};
use super::oidc_login::{fetch_login_info, log_in_at_provider};
use super::{OperatorClient, OperatorResponse, print_refusal};
use crate::client_config::{ClientConfig, ContextToken, ServerContext};
use crate::local_commands::read_text;
use ::api::oidc_login::ExchangedToken;
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use common::format::terminal_escaping::escape_line;
use common::output::{print_note, print_text};
use common::url_host::extract_host;
use linux::console_log::hidden_input::read_hidden_line;
use model::secret_text::SecretText;
use reqwest::Method;
use serde::de::IgnoredAny;
use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Path of the operator's terminal.
const TERMINAL: &str = "/dev/tty";
/// Time limit for entering the token.
const TOKEN_INPUT_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub struct LoginOptions {
    /// Address of the server: `install.rack`, `install.rack:8080` or `https://install.rack:8443`.
    #[arg(value_name = "URL")]
    pub url: String,
    /// Name of the context [default: the host name of the server].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File with the token. If omitted, the command logs in with OpenID Connect if the server supports it. Otherwise,
    /// it prompts for the token on the terminal, or reads it from standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "oidc")]
    pub token_file: Option<PathBuf>,
    /// Prompt for a token on the terminal, even if the server supports OpenID Connect.
    #[arg(long, conflicts_with = "oidc")]
    pub token: bool,
    /// Log in with OpenID Connect, even if standard input is not a terminal.
    #[arg(long)]
    pub oidc: bool,
}

/// Logs in with OpenID Connect if the server supports it. Otherwise prompts for the token of a user. Checks the token
/// at the server, and stores the server and the token as the current context.
///
/// # Errors
/// Returns an error if the server cannot be reached or rejects the token, or if the configuration cannot be written.
pub fn run_login(options: &LoginOptions) -> Result<CommandOutcome> {
    let path = find_config_path()?;
    // An invalid configuration file is reported before the operator enters the token.
    ClientConfig::read_file(&path)?;
    let url = match parse_server_url(&options.url) {
        Ok(url) => url,
        Err(why) => return Ok(print_refusal(&why)),
    };
    if url.starts_with("http://") && !is_loopback_url(&url) {
        print_note(&format!(
            "drophammer: the token is sent unencrypted to {url}: use https:// if the server has a TLS certificate"
        ));
    }
    let wants_token = options.token || options.token_file.is_some() || !(options.oidc || stdin().is_terminal());
    if !wants_token {
        match log_in_with_oidc(&url, options.oidc)? {
            Some(OperatorResponse::Good(token)) => return log_in(&path, &url, options.name.as_deref(), &token),
            Some(OperatorResponse::Refused(why)) => return Ok(print_refusal(&why)),
            None => {}
        }
    }
    match request_token(options.token_file.as_deref())?.trim() {
        "" => Ok(print_refusal("the token is empty: enter the content of operator.token in the server's directory")),
        token => log_in(&path, &url, options.name.as_deref(), token),
    }
}

/// Logs in with OpenID Connect, and returns the token for the server; `None` if the server does not support OpenID
/// Connect and `is_required` is false.
fn log_in_with_oidc(url: &str, is_required: bool) -> Result<Option<OperatorResponse<String>>> {
    let (token, token_origin) = (String::new(), "no token".to_owned());
    let server =
        OperatorClient::with_connection(ServerConnection { url: url.to_owned(), token, token_origin, context: None })?;
    let Some(info) = fetch_login_info(&server)? else {
        let why = "does not support logins with OpenID Connect: log in with the token of a user";
        return Ok(is_required.then(|| OperatorResponse::Refused(format!("{url} {why}"))));
    };
    let exchanged = log_in_at_provider(&server, &info)?;
    if let OperatorResponse::Good(ExchangedToken { expires, identity, .. }) = &exchanged {
        let user = escape_line(&identity.user);
        print_text(&format!(
            "User {user} has the role {}. The login expires at {}.\n",
            identity.role,
            escape_line(expires)
        ))?;
    }
    Ok(Some(exchanged.map(|exchanged| exchanged.token)))
}

/// Checks the token at the server, and stores server and token as the current context of the configuration file.
pub(super) fn log_in(path: &Path, url: &str, name: Option<&str>, token: &str) -> Result<CommandOutcome> {
    let (token, token_origin) = (token.to_owned(), "the entered token".to_owned());
    let connection = ServerConnection { url: url.to_owned(), token: token.clone(), token_origin, context: None };
    let server = OperatorClient::with_connection(connection)?;
    if let OperatorResponse::Refused(why) =
        server.send_json::<IgnoredAny>(server.request(Method::GET, "/v1/machines"))?
    {
        return Ok(print_refusal(&why));
    }
    let mut config = ClientConfig::read_file(path)?;
    let host = extract_host(url);
    // By default, the host name is the name of the context. A context with this name is not overwritten if it contains
    // another server, such as a server at another port of the host.
    if let (None, Some(known)) = (name, config.contexts.get(host).filter(|known| known.server != url)) {
        return Ok(print_refusal(&format!(
            "context {host} already contains the server {known_server}: add --name NAME to store {url} under another name",
            known_server = known.server
        )));
    }
    let name = name.unwrap_or(host).to_owned();
    let token = Some(ContextToken::Text(SecretText::new(token)));
    config.contexts.insert(name.clone(), ServerContext { server: url.to_owned(), token });
    config.current = Some(name.clone());
    config.write_file(path)?;
    let text = format!("Logged in to {url}. The token is stored as context {name} in {file}.\n", file = path.display());
    print_text(&text).map(|()| CommandOutcome::Good)
}

fn request_token(file: Option<&Path>) -> Result<String> {
    if let Some(file) = file {
        return read_text(file);
    }
    if !stdin().is_terminal() {
        return read_text(Path::new(crate::local_commands::STDIN));
    }
    let question = "Operator's token (content of operator.token in the server's directory; input is hidden):";
    let line = read_hidden_line(Path::new(TERMINAL), question, Instant::now() + TOKEN_INPUT_TIMEOUT);
    line.map(Option::unwrap_or_default).context(Phase::Control, || format!("read the token from {TERMINAL}"))
}
