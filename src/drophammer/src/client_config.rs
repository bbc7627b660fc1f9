//! Configuration file of the operator, `~/.config/drophammer/config.yaml`. It contains contexts: the address of a
//! server, and the operator's token for this server.

#[cfg(test)]
mod tests;

use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::compare_natural;
use common::output::print_note;
use common::yaml::block_writer::to_block_yaml;
use linux::atomic_file;
use model::secret_text::SecretText;
use serde_json::{Map, Value, json};
use site::operator_files::yaml_node::{parse_document, to_json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of symbolic links on the way to the configuration file, as in Linux.
const MAX_LINKS: usize = 40;

/// Server and token that a context of the operator contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerContext {
    pub server: String,
    pub token: Option<ContextToken>,
}

/// Operator's token in a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContextToken {
    Text(SecretText),
    File(PathBuf),
}

/// Contents of the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientConfig {
    /// Name of the context that is used if no server is specified.
    pub current: Option<String>,
    pub contexts: BTreeMap<String, ServerContext>,
}

/// Returns the path of the configuration file; `None` if the environment specifies neither XDG_CONFIG_HOME nor HOME.
pub(crate) fn config_path(environment: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("drophammer").join("config.yaml"))
}

impl ClientConfig {
    /// Reads the configuration file. A missing file counts as an empty configuration.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is invalid.
    pub(crate) fn read_file(path: &Path) -> Result<ClientConfig> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ClientConfig::default()),
            read => read.context(Phase::Settings, || format!("read the configuration {}", path.display()))?,
        };
        let config = ClientConfig::parse(&text).map_err(|why| {
            Error::refusal(Phase::Settings, format!("{}: {why}", path.display())).with_code(ErrorCode::ClientConfig)
        })?;
        let has_token = |one: &ServerContext| matches!(one.token, Some(ContextToken::Text(_)));
        let readable = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0);
        if readable && config.contexts.values().any(has_token) {
            print_note(&format!(
                "drophammer: other users can read the token in {0}: run chmod 600 {0}",
                path.display()
            ));
        }
        Ok(config)
    }

    /// Parses the text of the file. The error message does not contain the path of the file.
    fn parse(text: &str) -> std::result::Result<ClientConfig, String> {
        let value = match text.trim().is_empty() {
            true => json!({}),
            false => to_json(&parse_document(text)?),
        };
        let fields = read_fields(&value, "", &["current", "contexts"])?;
        let current = fields.get("current").map(|value| read_string(value, "current")).transpose()?;
        let mut contexts = BTreeMap::new();
        if let Some(value) = fields.get("contexts") {
            for (name, value) in value.as_object().ok_or("contexts: must be a mapping of names to contexts")? {
                contexts.insert(name.clone(), ServerContext::parse(value, &format!("contexts.{name}"))?);
            }
        }
        Ok(ClientConfig { current, contexts })
    }

    /// Writes the file with permissions for its owner only.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The old content is then unchanged.
    pub(crate) fn write_file(&self, path: &Path) -> Result<()> {
        // If the file is a symbolic link, the target of the link is replaced, not the link.
        let write = || {
            let path = resolve_links(path)?;
            let path = path.as_path();
            if let Some(folder) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            let temporary = path.with_extension(format!("yaml.{}", std::process::id()));
            let content = to_block_yaml(&self.to_value());
            atomic_file::replace_file(path, &temporary, content.as_bytes(), Permissions::from_mode(0o600))
        };
        write().context(Phase::Settings, || format!("write the configuration {}", path.display()))
    }

    fn to_value(&self) -> Value {
        let contexts: Map<String, Value> =
            self.contexts.iter().map(|(name, context)| (name.clone(), context.to_value())).collect();
        match &self.current {
            Some(current) => json!({ "current": current, "contexts": contexts }),
            None => json!({ "contexts": contexts }),
        }
    }

    /// Returns the context with this name.
    ///
    /// # Errors
    /// Returns a message that lists the existing contexts if there is none with this name.
    pub(crate) fn find_context(&self, name: &str) -> std::result::Result<&ServerContext, String> {
        self.contexts.get(name).ok_or_else(|| match self.contexts.is_empty() {
            true => format!("context {name:?} does not exist; `drophammer login URL` creates a context"),
            false => {
                let mut names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
                names.sort_by(|one, other| compare_natural(one, other));
                format!("context {name:?} does not exist; contexts: {names}", names = names.join(", "))
            }
        })
    }
}

impl ServerContext {
    fn parse(value: &Value, place: &str) -> std::result::Result<ServerContext, String> {
        let fields = read_fields(value, place, &["server", "token", "token_file"])?;
        let string =
            |name: &str| fields.get(name).map(|value| read_string(value, &format!("{place}.{name}"))).transpose();
        let server = string("server")?.ok_or_else(|| format!("{place}.server: is missing"))?;
        let token = match (string("token")?, string("token_file")?) {
            (Some(_), Some(_)) => {
                return Err(format!("{place}: `token` and `token_file` cannot be combined: remove one of them"));
            }
            (Some(token), None) => Some(ContextToken::Text(SecretText::new(token))),
            (None, file) => file.map(|file| ContextToken::File(file.into())),
        };
        Ok(ServerContext { server, token })
    }

    fn to_value(&self) -> Value {
        match &self.token {
            Some(ContextToken::Text(token)) => json!({ "server": self.server, "token": token.reveal() }),
            Some(ContextToken::File(file)) => {
                json!({ "server": self.server, "token_file": file.display().to_string() })
            }
            None => json!({ "server": self.server }),
        }
    }
}

/// Returns the fields of a mapping. Fails if a field is unknown.
fn read_fields<'a>(
    value: &'a Value,
    place: &str,
    known: &[&str],
) -> std::result::Result<&'a Map<String, Value>, String> {
    let prefix = if place.is_empty() { String::new() } else { format!("{place}: ") };
    let Some(fields) = value.as_object() else { return Err(format!("{prefix}must be a mapping")) };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => {
            Err(format!("{prefix}unknown field {unknown:?}; known fields: {known}", known = known.join(", ")))
        }
        None => Ok(fields),
    }
}

fn read_string(value: &Value, place: &str) -> std::result::Result<String, String> {
    let text = value.as_str().map(str::to_owned).or_else(|| value.is_number().then(|| value.to_string()));
    text.ok_or_else(|| format!("{place}: must be text"))
}

/// Returns the file to which a path leads through symbolic links. This file need not exist.
///
/// # Errors
/// Returns an error if the links form a cycle.
fn resolve_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().map_or_else(|| target.clone(), |folder| folder.join(&target));
    }
    Err(std::io::Error::other(format!("more than {MAX_LINKS} symbolic links; remove the link and repeat the command")))
}
