//! Credentials for registries: user name and password, or an identity token. They are read from an image file or from
//! Docker's `config.json`.

mod docker_config;

pub use docker_config::DockerConfig;

use crate::secret_text::SecretText;
use serde::{Deserialize, Serialize};

/// Credentials for one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PullSecret {
    /// Host of the registry as in the image's URL, with the port if the URL contains one: `registry.example.org:5000`.
    /// The credentials are not sent to any other registry.
    pub registry: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub password: SecretText,
    /// Identity token. If the registry issues such a token, `docker login` stores the token instead of the password.
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub identitytoken: SecretText,
    /// Host of the registry's token service, such as `gitlab.example.org`, with the port if it is not 443. If this
    /// field is not set, the password is sent only to the host and port of the registry itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token_service: String,
}

/// Registries whose token services are on other hosts, with the hosts of these services.
const KNOWN_TOKEN_SERVICES: [(&str, &str); 2] =
    [("docker.io", "auth.docker.io"), ("registry.gitlab.com", "gitlab.com")];

impl PullSecret {
    /// Returns the host of the token service. The password may be sent to this host, in addition to the registry
    /// itself.
    pub fn token_service(&self) -> Option<&str> {
        let registry = canonical_host(&self.registry);
        let known = KNOWN_TOKEN_SERVICES.iter().find(|(known, _)| *known == registry).map(|(_, service)| *service);
        Some(self.token_service.as_str()).filter(|service| !service.is_empty()).or(known)
    }
}

/// Returns the canonical host of the registry in an image's URL; `None` if the image is not in a registry.
pub fn registry_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("oci://").or_else(|| url.strip_prefix("oci+http://"))?;
    Some(canonical_host(rest.split('/').next().unwrap_or_default()))
}

/// Returns the canonical host of a registry. Only Docker's own registry has several host names, which are all converted
/// to `docker.io`.
fn canonical_host(host: &str) -> String {
    match host.to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the credentials for the registry in this URL; `None` if there are none.
pub fn find_for_url<'a>(secrets: &'a [PullSecret], url: &str) -> Option<&'a PullSecret> {
    let registry = registry_of(url)?;
    secrets.iter().find(|secret| canonical_host(&secret.registry) == registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_credentials_are_found_by_host_and_port() {
        let secrets = ["registry.example:5000", "docker.io", "[::1]:5000"]
            .map(|registry| PullSecret { registry: registry.to_owned(), ..PullSecret::default() });
        let found = |url: &str| find_for_url(&secrets, url).map(|secret| secret.registry.as_str());
        assert_eq!(found("oci://Registry.Example:5000/os/debian:12"), Some("registry.example:5000"));
        assert_eq!(found("oci+http://[::1]:5000/debian:12"), Some("[::1]:5000"));
        assert_eq!(found("oci://index.docker.io/library/debian:12"), Some("docker.io"));
        for other in [
            "oci://registry.example/os/debian:12",
            "oci://registry.example:5001/debian:12",
            "oci://x.registry.example:5000/debian:12",
            "https://docker.io/debian:12",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn docker_config_supplies_credentials_for_each_registry() {
        let config = DockerConfig::parse(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "aHViOm9uZTp0d28="},
                "r.example": {"username": "u", "password": "p", "email": "me@r.example"},
                "r.example/os/secret": {"auth": "bmFycm93OnB3"},
                "t.example:5000": {"auth": "MDAwOg==", "identitytoken": "refresh"},
                "stored.example": {}
            }, "HttpHeaders": {"User-Agent": "x"}, "credsStore": "pass", "credHelpers": {"gcr.example": "gcloud"}}"#,
        )
        .unwrap();
        let of = |url: &str| {
            config.find_credentials(url).unwrap().map(|it| {
                (it.registry, it.username, it.password.reveal().to_owned(), it.identitytoken.reveal().to_owned())
            })
        };
        let is = |registry: &str, user: &str, password: &str, token: &str| {
            Some((registry.to_owned(), user.to_owned(), password.to_owned(), token.to_owned()))
        };
        assert_eq!(of("oci://docker.io/library/debian:12"), is("docker.io", "hub", "one:two", ""));
        assert_eq!(of("oci://r.example/os/debian:12"), is("r.example", "u", "p", ""));
        assert_eq!(of("oci://r.example/os/secrets:12"), is("r.example", "u", "p", ""));
        assert_eq!(of("oci://r.example/os/secret/debian:12"), is("r.example", "narrow", "pw", ""));
        assert_eq!(of("oci://r.example/os/secret@sha256:00"), is("r.example", "narrow", "pw", ""));
        assert_eq!(of("oci://t.example:5000/debian:12"), is("t.example:5000", "000", "", "refresh"));
        assert_eq!(of("oci://r.example:5000/debian:12"), None);
        assert_eq!(of("oci://r.example.org/debian:12"), None);
        assert_eq!(of("https://r.example/debian.tar"), None);
        for (url, helper) in [("oci://stored.example/d:1", "pass"), ("oci://gcr.example/d:1", "gcloud")] {
            let error = config.find_credentials(url).unwrap_err();
            assert!(error.contains(&format!("docker-credential-{helper}, which is not supported")), "{error}");
        }
    }

    #[test]
    fn token_services_on_other_hosts_are_configured_or_well_known() {
        let secret = |registry: &str, service: &str| PullSecret {
            registry: registry.to_owned(),
            token_service: service.to_owned(),
            ..PullSecret::default()
        };
        for (registry, service, expected) in [
            ("r.example", "", None),
            ("index.docker.io", "", Some("auth.docker.io")),
            ("registry.gitlab.com", "", Some("gitlab.com")),
            ("registry.gitlab.com.evil.example", "", None),
            ("r.example", "gitlab.example:8443", Some("gitlab.example:8443")),
            ("docker.io", "own.example", Some("own.example")),
        ] {
            assert_eq!(secret(registry, service).token_service(), expected, "{registry}");
        }
        let config = DockerConfig::parse(r#"{"auths": {"r.example": {"auth": "dTpw", "token_service": "t.example"}}}"#);
        let found = config.unwrap().find_credentials("oci://r.example/d:1").unwrap().unwrap();
        assert_eq!(found.token_service(), Some("t.example"));
    }

    #[test]
    fn password_is_absent_from_errors_and_debug_output() {
        for text in [
            r#"{"auths": {"r": {"auth": {"hunter2": 1}}}}"#,
            r#"{"auths": "hunter2"}"#,
            r#"{"auths": {"r": {"password": hunter2}}}"#,
        ] {
            let error = DockerConfig::parse(text).unwrap_err();
            assert!(error.starts_with("1:") && !error.contains("hunter2"), "{error}");
        }
        for auth in ["hunter2", "aHVudGVyMg=="] {
            let config = DockerConfig::parse(&format!(r#"{{"auths": {{"r": {{"auth": "{auth}"}}}}}}"#)).unwrap();
            let error = config.find_credentials("oci://r/d:1").unwrap_err();
            assert!(error.contains("auth for r is not user:password") && !error.contains(auth), "{error}");
        }
        let secret = PullSecret { password: SecretText::new("hunter2"), ..PullSecret::default() };
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
