//! Selection of the server and the operator's token. Both come from options, the environment, the contexts in the
//! configuration file, or files of a server on this host.

#[cfg(test)]
mod tests;

use crate::client_config::{ClientConfig, ContextToken, ServerContext, config_path};
use clap::Args;
use clap::builder::FalseyValueParser;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// URL of a server on this host, with the default port of `drophammer serve`.
const LOCAL_SERVER: &str = "http://127.0.0.1:8080";
/// Default ports of `drophammer serve`, without and with TLS.
const HTTP_PORT: u16 = 8080;
const HTTPS_PORT: u16 = 8443;
/// Token file of the server in the Debian package.
const PACKAGE_TOKEN: &str = "/var/lib/drophammer/operator.token";

/// Address of the server, credentials for it, and the report of requests.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerOptions {
    /// URL of `drophammer serve`. If omitted, the URL is taken from --context, the environment variable
    /// DROPHAMMER_SERVER, or the current context [default: http://127.0.0.1:8080].
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Context of `drophammer config`, with server and token. If omitted, the environment variable DROPHAMMER_CONTEXT
    /// specifies the context.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// File with the operator's token. If omitted, the environment variable DROPHAMMER_TOKEN_FILE specifies the file
    /// [default: the token of the context, ./operator.token, or the token of the server on this host].
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the server, the source of the token, and each request with its result, duration and request id to standard
    /// error.
    #[arg(short, long, global = true, env = "DROPHAMMER_VERBOSE", value_parser = FalseyValueParser::new())]
    pub verbose: bool,
}

/// Server and token that a command uses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerConnection {
    pub url: String,
    pub token: String,
    /// Description of the source of the token, for error messages.
    pub token_origin: String,
    /// Name of the context that contains the token; `None` if the token is from another source.
    pub context: Option<String>,
}

/// Sources of the server's address and the token, other than options of the command.
pub(crate) struct ConnectionSources<'a> {
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    pub config: ClientConfig,
    /// Path of a token file in the working directory, which may be the server's directory.
    pub local_token: PathBuf,
    /// Path of the package's token file, for servers on this host.
    pub package_token: PathBuf,
}

/// Returns the value of an environment variable; `None` if it is not set or empty.
pub(crate) fn read_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the path of the configuration file.
///
/// # Errors
/// Returns an error if the environment specifies neither XDG_CONFIG_HOME nor HOME.
pub(crate) fn find_config_path() -> Result<PathBuf> {
    let missing =
        || connection_error("cannot find the configuration: neither XDG_CONFIG_HOME nor HOME is set".to_owned());
    config_path(read_environment).ok_or_else(missing)
}

/// Description of a token that a context contains.
const CONTEXT_TOKEN: &str = "the token in the configuration";

/// Selects the server and the token for a command.
///
/// # Errors
/// Returns an error if the URL or the configuration is invalid, or no token is found.
pub(crate) fn select_connection(options: &ServerOptions) -> Result<ServerConnection> {
    let config = config_path(read_environment).map(|path| ClientConfig::read_file(&path)).transpose()?;
    let sources = ConnectionSources {
        environment: &read_environment,
        config: config.unwrap_or_default(),
        local_token: PathBuf::from("operator.token"),
        package_token: PathBuf::from(PACKAGE_TOKEN),
    };
    sources.select(options)
}

impl ConnectionSources<'_> {
    fn select(&self, options: &ServerOptions) -> Result<ServerConnection> {
        let (server, context) = self.select_server(options)?;
        let url = parse_server_url(&server).map_err(connection_error)?;
        // A token is sent only to the server for which its context was stored.
        let is_its_server = |context: &&ServerContext| parse_server_url(&context.server).as_ref() == Ok(&url);
        let context = context.or_else(|| self.config.contexts.values().find(is_its_server));
        let (token, token_origin) = self.select_token(options, context, &url)?;
        let is_used = |own: &ServerContext| context.is_some_and(|context| std::ptr::eq(own, context));
        let mut named = self.config.contexts.iter().filter(|(_, own)| is_used(own));
        let context = named.next().map(|(name, _)| name.clone()).filter(|_| token_origin == CONTEXT_TOKEN);
        Ok(ServerConnection { url, token, token_origin, context })
    }

    /// Returns the address of the server, and the context from which the address is taken; `None` if the address is not
    /// from a context. Options take precedence over the environment, and the environment over the current context.
    fn select_server(&self, options: &ServerOptions) -> Result<(String, Option<&ServerContext>)> {
        let of_context = |name: &str| -> Result<(String, Option<&ServerContext>)> {
            let context = self.config.find_context(name).map_err(connection_error)?;
            Ok((context.server.clone(), Some(context)))
        };
        match (&options.server, &options.context) {
            (Some(_), Some(_)) => {
                return Err(connection_error(
                    "--server and --context both select a server: omit one of them".to_owned(),
                ));
            }
            (Some(server), None) => return Ok((server.clone(), None)),
            (None, Some(name)) => return of_context(name),
            (None, None) => {}
        }
        if let Some(server) = (self.environment)("DROPHAMMER_SERVER") {
            return Ok((server, None));
        }
        let name = (self.environment)("DROPHAMMER_CONTEXT").or_else(|| self.config.current.clone());
        name.map_or_else(|| Ok((LOCAL_SERVER.to_owned(), None)), |name| of_context(&name))
    }

    /// Returns the token, and a description of its source.
    fn select_token(
        &self,
        options: &ServerOptions,
        context: Option<&ServerContext>,
        url: &str,
    ) -> Result<(String, String)> {
        // The token in the variable might not belong to the server that --context selects.
        let has_own_token = options.context.is_some() && context.is_some_and(|context| context.token.is_some());
        let in_environment =
            || (self.environment)("DROPHAMMER_TOKEN_FILE").filter(|_| !has_own_token).map(PathBuf::from);
        if let Some(file) = options.token_file.clone().or_else(in_environment) {
            return read_token_file(&file);
        }
        match context.and_then(|context| context.token.as_ref()) {
            Some(ContextToken::Text(token)) => {
                return Ok((token.reveal().to_owned(), CONTEXT_TOKEN.to_owned()));
            }
            Some(ContextToken::File(file)) => return read_token_file(file),
            None => {}
        }
        let of_package = is_loopback_url(url).then_some(&self.package_token);
        for file in [&self.local_token].into_iter().chain(of_package) {
            match fs::metadata(file) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                _ => return read_token_file(file),
            }
        }
        Err(token_refusal(format!(
            "the operator's token for {url} is missing: run `drophammer login {url}`, or use --token-file FILE with a copy of operator.token \
             from the server's directory"
        )))
    }
}

/// Reads the token in a file. Returns the token, and a description of the file.
fn read_token_file(file: &Path) -> Result<(String, String)> {
    let text = fs::read_to_string(file).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => "run the command with sudo, or run `drophammer login URL`",
            _ => "run `drophammer login URL`, or use --token-file FILE with a copy of operator.token from the server's directory",
        };
        let why = format!("cannot read the operator's token from {file}: {error}; {remedy}", file = file.display());
        Error::new(Phase::Control, why).with_code(ErrorCode::OperatorToken)
    })?;
    match text.trim() {
        "" => Err(token_refusal(format!(
            "the file of the operator's token, {file}, is empty: copy operator.token from the server's directory",
            file = file.display()
        ))),
        token => Ok((token.to_owned(), format!("the token in {}", file.display()))),
    }
}

/// Checks the address of a server, and completes it to a URL: `install.rack`, `install.rack:8443`,
/// `https://install.rack:8443/`. Without a scheme, the result is an `https` URL if the port is the default port for
/// TLS, and an `http` URL otherwise.
///
/// # Errors
/// Returns a message if the address is not that of a server.
pub(crate) fn parse_server_url(text: &str) -> std::result::Result<String, String> {
    let text = text.trim();
    let refuse = |why: &str| {
        let shown = hide_credentials(text);
        Err(format!("cannot use the server's URL {shown:?}: {why}; example: http://install.rack:8080"))
    };
    let url = match text.split_once("://") {
        Some(("http" | "https", _)) => text.to_owned(),
        Some((scheme, _)) => return refuse(&format!("the scheme must be http or https, not {scheme:?}")),
        None => format!("http://{text}"),
    };
    let parsed = match reqwest::Url::parse(&url) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(describe_url_error(text, &error.to_string())),
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return refuse(
            "credentials in the URL are not supported; use --token-file FILE or DROPHAMMER_TOKEN_FILE, or run \
             `drophammer login` with the URL without credentials",
        );
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return refuse("the URL must not contain `?` or `#`");
    }
    let url = url.trim_end_matches('/');
    if text.contains("://") {
        return Ok(url.to_owned());
    }
    Ok(match parsed.port() {
        Some(HTTPS_PORT) => url.replacen("http://", "https://", 1),
        // In an http URL, Url::parse omits port 80, so the text itself is examined for this port.
        None if !text.split('/').next().unwrap_or_default().ends_with(":80") => {
            let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
            format!("http://{}:{HTTP_PORT}{}", host.trim_end_matches(':'), path.trim_end_matches('/'))
        }
        _ => url.to_owned(),
    })
}

/// Replaces user and password in an address of a server.
fn hide_credentials(text: &str) -> String {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + 3));
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    host.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, host)| format!("{scheme}…@{host}{path}"))
}

/// Describes an error of the URL parser.
fn describe_url_error(text: &str, error: &str) -> &'static str {
    match error {
        _ if text.contains(char::is_whitespace) => "the URL must not contain spaces",
        "empty host" => "the name or the address of the server is missing",
        "invalid port number" => "the port must be a number up to 65535",
        _ => "the name or the address of the server is invalid",
    }
}

/// Returns whether a URL refers to this host.
pub(crate) fn is_loopback_url(url: &str) -> bool {
    let host = reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.map_or(host == "localhost", |address| address.is_loopback())
    })
}

fn connection_error(why: String) -> Error {
    Error::refusal(Phase::Control, why).with_code(ErrorCode::ServerUrl)
}

fn token_refusal(why: String) -> Error {
    Error::refusal(Phase::Control, why).with_code(ErrorCode::OperatorToken)
}
