//! Docker's `config.json`, and Podman's similar file.

use super::{PullSecret, SecretText, canonical_host, registry_of};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Registry credentials as stored in `~/.docker/config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct DockerAuth {
    /// User name and password, in the form `user:password` in base64.
    #[serde(default)]
    auth: SecretText,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: SecretText,
    #[serde(default)]
    identitytoken: SecretText,
    /// Host of the token service. This is an extension, which Docker ignores.
    #[serde(default)]
    token_service: String,
}

impl DockerConfig {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// Fails if the text is invalid. The message contains the position of the error, but no part of the text, because
    /// the text contains passwords.
    pub fn parse(text: &str) -> Result<DockerConfig, String> {
        serde_json::from_str(text).map_err(|error| {
            format!("{line}:{column}: not a valid Docker config.json", line = error.line(), column = error.column())
        })
    }

    /// Returns the credentials for the registry of an image. If several entries match, the entry with the longest key
    /// is used, because the keys of Podman's entries may contain a repository.
    ///
    /// # Errors
    /// Fails if the entry cannot be used.
    pub fn find_credentials(&self, url: &str) -> Result<Option<PullSecret>, String> {
        let (Some(registry), Some((_, path))) = (registry_of(url), url.split_once("://")) else { return Ok(None) };
        let path = path.split_once('/').map_or("", |(_, path)| path);
        let path = format!("{registry}/{path}");
        let fits = |key: &&String| {
            let key = canonical_key(key);
            // A key without a path must match the whole URL up to the first slash, because the port belongs to the host
            // of a registry.
            let ends: &[char] = if key.contains('/') { &['/', ':', '@'] } else { &['/'] };
            path.strip_prefix(&key).is_some_and(|rest| rest.starts_with(ends))
        };
        let longest =
            |keys: Vec<&String>| keys.into_iter().filter(fits).max_by_key(|key| canonical_key(key).len()).cloned();
        let empty =
            |auth: &DockerAuth| auth.auth.is_empty() && auth.password.is_empty() && auth.identitytoken.is_empty();
        let found = longest(self.auths.keys().collect()).and_then(|key| self.auths.get(&key));
        let Some(auth) = found.filter(|auth| !empty(auth)) else {
            let helper = longest(self.helpers.keys().collect()).and_then(|key| self.helpers.get(&key));
            let helper = helper.or(self.store.as_ref().filter(|_| found.is_some()));
            return helper.map_or(Ok(None), |helper| {
                Err(format!(
                    "the credentials for {registry} are stored in the helper docker-credential-{helper}, which is \
                     not supported; add them to auths"
                ))
            });
        };
        auth.to_pull_secret(registry).map(Some)
    }
}

impl DockerAuth {
    fn to_pull_secret(&self, registry: String) -> Result<PullSecret, String> {
        let (mut username, mut password) = (self.username.clone(), self.password.clone());
        if !self.auth.is_empty() {
            let wrong = || format!("auth for {registry} is not user:password in base64");
            let decoded = BASE64_STANDARD.decode(self.auth.reveal().trim()).ok();
            let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(wrong)?;
            let (user, word) = decoded.split_once(':').ok_or_else(wrong)?;
            (username, password) = (user.to_owned(), SecretText::new(word.trim_end_matches('\0')));
        }
        let (identitytoken, token_service) = (self.identitytoken.clone(), self.token_service.clone());
        Ok(PullSecret { registry, username, password, identitytoken, token_service })
    }
}

/// Converts the key of an entry to a registry, with the repository if the key contains one. For example, returns
/// `docker.io` for `https://index.docker.io/v1/`.
fn canonical_key(key: &str) -> String {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    match path {
        "" | "v1" | "v2" => canonical_host(host),
        path => format!("{}/{path}", canonical_host(host)),
    }
}
