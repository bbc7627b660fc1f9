//! `oidc.yaml` in the server's directory: the identity provider, the client that the provider has registered for this
//! server, and the roles of groups.

use crate::role_mapping::{GroupRole, assign_role};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use marked_yaml::Spanned;
use model::secret_text::SecretText;
use reqwest::Url;
use serde::Deserialize;
use site::operator_files::yaml_node::{deserialize_node, format_at, parse_document};
use site::readable_secrets::is_world_readable;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::users::{UserRole, check_name};

/// Name of the file in the server's directory.
pub const FILE: &str = "oidc.yaml";
/// Maximum validity of a login, in hours.
pub const MAXIMUM_LOGIN_HOURS: u64 = 12;
/// Claims that are tried for the name of a user, unless the file names a claim.
const USER_CLAIMS: [&str; 3] = ["preferred_username", "email", "sub"];
const SCOPES: [&str; 3] = ["profile", "email", "groups"];

/// Settings of logins with OpenID Connect.
#[derive(Debug, Clone)]
pub struct OidcSettings {
    /// Issuer, exactly as in the provider's tokens.
    pub issuer: String,
    /// Client id of the web page at the identity provider.
    pub client_id: String,
    /// Secret of the web page's client; `None` for a public client.
    pub client_secret: Option<SecretText>,
    /// Client id of `drophammer login`, which is a public client.
    pub cli_client_id: String,
    /// Name of the provider on the login page.
    pub label: String,
    /// Claims that contain the name of a user. The first claim that the token contains applies.
    pub user_claims: Vec<String>,
    pub groups_claim: String,
    /// Scopes that are requested in addition to `openid`.
    pub scopes: Vec<String>,
    /// Certificates (PEM) of the authorities that are trusted for the provider, instead of those that the host trusts.
    pub authorities: Option<Vec<u8>>,
    /// URL of the web page's callback; `None` if it is derived from the URL of the request.
    pub redirect_url: Option<String>,
    pub rules: Vec<GroupRole>,
    /// Validity of a login.
    pub validity: Duration,
    /// Files that contain a secret, and that every user of the host can read.
    pub readable_secrets: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSettings {
    issuer: Spanned<String>,
    client_id: Spanned<String>,
    client_secret_file: Option<Spanned<String>>,
    cli_client_id: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    user_claim: Option<Spanned<String>>,
    groups_claim: Option<Spanned<String>>,
    scopes: Option<Vec<Spanned<String>>>,
    ca_file: Option<Spanned<String>>,
    redirect_url: Option<Spanned<String>>,
    session_hours: Option<Spanned<u64>>,
    roles: Vec<RawGroupRole>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroupRole {
    group: Spanned<String>,
    role: Spanned<String>,
    #[serde(default)]
    projects: Vec<Spanned<String>>,
}

impl OidcSettings {
    /// Reads the file in the server's directory. Returns `None` if the directory does not contain the file.
    ///
    /// # Errors
    /// Returns an error if the file, or a file that it names, is invalid or cannot be read.
    pub fn read_file(dir: &Path) -> Result<Option<OidcSettings>> {
        let path = dir.join(FILE);
        let refuse = |why: String| {
            Error::new(Phase::Serve, format!("{}:{why}", path.display())).with_code(ErrorCode::OidcSettings)
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => OidcSettings::parse_text(&text, dir).map(Some).map_err(refuse),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refuse(format!(" cannot read the file: {error}"))),
        }
    }

    /// Parses the text of the file. Relative paths in the text are relative to `dir`.
    ///
    /// # Errors
    /// Returns a message that begins with the position of the error.
    pub fn parse_text(text: &str, dir: &Path) -> std::result::Result<OidcSettings, String> {
        let raw: RawSettings = deserialize_node(&parse_document(text)?)?;
        check_identifiers(&raw)?;
        let secret = raw.client_secret_file.as_ref().map(|file| read_secret(file, dir)).transpose()?;
        let readable_secrets = secret.iter().map(|(path, _)| path.clone()).filter(|path| is_world_readable(path));
        let hours = raw.session_hours.as_ref().map_or(MAXIMUM_LOGIN_HOURS, |hours| **hours);
        if !(1..=MAXIMUM_LOGIN_HOURS).contains(&hours) {
            let span =
                raw.session_hours.as_ref().map(|hours| *hours.span()).unwrap_or_else(marked_yaml::Span::new_blank);
            let why = format!("session_hours: {hours} is not supported; specify 1 to {MAXIMUM_LOGIN_HOURS}");
            return Err(format_at(&Spanned::new(span, String::new()), &why));
        }
        let text_or = |given: &Option<Spanned<String>>, default: &str| {
            given.as_ref().map_or_else(|| default.to_owned(), |given| given.to_string())
        };
        let all = |names: [&str; 3]| names.map(str::to_owned).to_vec();
        let host = raw.issuer.parse::<Url>().ok().and_then(|url| url.host_str().map(str::to_owned));
        Ok(OidcSettings {
            issuer: raw.issuer.to_string(),
            client_id: raw.client_id.to_string(),
            readable_secrets: readable_secrets.collect(),
            client_secret: secret.map(|(_, secret)| secret),
            cli_client_id: text_or(&raw.cli_client_id, &raw.client_id),
            label: text_or(&raw.name, &host.unwrap_or_default()),
            user_claims: raw.user_claim.as_ref().map_or_else(|| all(USER_CLAIMS), |claim| vec![claim.to_string()]),
            groups_claim: text_or(&raw.groups_claim, "groups"),
            scopes: match &raw.scopes {
                Some(scopes) => scopes.iter().map(|scope| scope.to_string()).collect(),
                None => all(SCOPES),
            },
            authorities: raw.ca_file.as_ref().map(|file| read_authorities(file, dir)).transpose()?,
            redirect_url: raw.redirect_url.as_ref().map(|url| url.to_string()),
            rules: read_rules(&raw)?,
            validity: Duration::from_secs(hours * 3600),
        })
    }

    /// Returns the role and the projects of a user with these groups; `None` if no group has a role.
    pub fn assign_role(&self, groups: &[String]) -> Option<(UserRole, Vec<String>)> {
        assign_role(&self.rules, groups)
    }

    /// Returns the scopes of a request, separated by spaces.
    pub fn scope(&self) -> String {
        std::iter::once("openid").chain(self.scopes.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
    }
}

/// Checks that a URL of the provider uses TLS. TLS is not required for a provider on the loopback interface.
///
/// # Errors
/// Returns the reason why the URL is refused.
pub fn check_provider_url(text: &str) -> std::result::Result<(), String> {
    let url: Url =
        text.parse().map_err(|_| format!("{text:?} is not a URL; specify a URL such as https://id.example.org"))?;
    let is_loopback = match url.host_str().unwrap_or_default().trim_matches(['[', ']']) {
        "localhost" => true,
        host => host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()),
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_loopback => Ok(()),
        _ => Err(format!(
            "{text:?} must begin with https://: over http://, an attacker could replace the provider's keys"
        )),
    }
}

fn check_identifiers(raw: &RawSettings) -> std::result::Result<(), String> {
    let url_of = |name: &str, given: &Spanned<String>| {
        check_provider_url(given).map_err(|why| format_at(given, &format!("{name}: {why}")))?;
        match given.contains(['?', '#']) {
            true => Err(format_at(given, &format!("{name}: {:?} contains a query or a fragment; remove it", **given))),
            false => Ok(()),
        }
    };
    url_of("issuer", &raw.issuer)?;
    if let Some(url) = &raw.redirect_url {
        url_of("redirect_url", url)?;
        if !url.ends_with("/oidc/callback") {
            let why = format!("redirect_url: {:?} must end with /oidc/callback", **url);
            return Err(format_at(url, &why));
        }
    }
    let optional = [
        ("cli_client_id", &raw.cli_client_id),
        ("name", &raw.name),
        ("user_claim", &raw.user_claim),
        ("groups_claim", &raw.groups_claim),
    ];
    let named = optional.into_iter().filter_map(|(name, given)| Some((name, given.as_ref()?)));
    let scopes = raw.scopes.iter().flatten().map(|scope| ("scopes", scope));
    for (name, given) in named.chain([("client_id", &raw.client_id)]).chain(scopes) {
        let is_text = !given.trim().is_empty() && !given.chars().any(char::is_control);
        if !is_text || (name == "scopes" && given.contains(char::is_whitespace)) {
            let why = format!("{name}: {:?} is empty, or contains characters that are not permitted", **given);
            return Err(format_at(given, &why));
        }
    }
    Ok(())
}

fn read_rules(raw: &RawSettings) -> std::result::Result<Vec<GroupRole>, String> {
    if raw.roles.is_empty() {
        return Err(format_at(&raw.issuer, "roles: no group has a role, so no user could log in; add a group"));
    }
    let mut rules: Vec<GroupRole> = Vec::new();
    for RawGroupRole { group, role: name, projects } in &raw.roles {
        let Some(role) = UserRole::parse(name) else {
            let why = format!("role: {:?} is not a role; specify viewer, operator or admin", **name);
            return Err(format_at(name, &why));
        };
        if group.trim().is_empty() || rules.iter().any(|rule| rule.group == **group) {
            return Err(format_at(group, &format!("group: {:?} is empty, or is listed twice", **group)));
        }
        for project in projects {
            check_name(project).map_err(|why| format_at(project, &format!("projects: {why}")))?;
        }
        if role == UserRole::Admin && !projects.is_empty() {
            let why = "role: an admin cannot be restricted to projects; specify the role operator or viewer";
            return Err(format_at(name, why));
        }
        let projects = projects.iter().map(|project| project.to_string()).collect();
        rules.push(GroupRole { group: group.to_string(), role, projects });
    }
    Ok(rules)
}

fn read_secret(file: &Spanned<String>, dir: &Path) -> std::result::Result<(PathBuf, SecretText), String> {
    let path = dir.join(&**file);
    let why = match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok((path, SecretText::new(text.trim()))),
        Ok(_) => "is empty; write the provider's client secret to this file".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
    };
    Err(format_at(file, &format!("client_secret_file: {} {why}", path.display())))
}

fn read_authorities(file: &Spanned<String>, dir: &Path) -> std::result::Result<Vec<u8>, String> {
    let path = dir.join(&**file);
    let why = match std::fs::read(&path) {
        Ok(pem) => match reqwest::Certificate::from_pem_bundle(&pem) {
            Ok(all) if !all.is_empty() => return Ok(pem),
            _ => "contains no certificate in PEM format".to_owned(),
        },
        Err(error) => format!("cannot be read: {error}"),
    };
    Err(format_at(file, &format!("ca_file: {} {why}", path.display())))
}

#[cfg(test)]
mod tests;
