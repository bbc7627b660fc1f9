//! Registry credentials for an image, as specified in the image's YAML file.

use super::format_at;
use super::yaml_node::format_position;
use crate::boot_value_validation;
use marked_yaml::{Node, Spanned};
use model::registry_auth::{PullSecret, registry_of};
use model::secret_text::SecretText;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPullSecret {
    username: Option<Spanned<String>>,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
    token_service: Option<Spanned<String>>,
}

/// Minimum length of a disk key, in bytes. Generated keys are longer. A shorter key was probably chosen by hand.
const DISK_KEY_BYTES: usize = 20;

/// Returns the reason why a value is unsuitable as a key of encrypted filesystems, or `None` if it is suitable. The
/// message does not contain the value.
pub(crate) fn check_disk_key(given: &Spanned<SecretText>) -> Option<String> {
    let is_short = given.reveal().len() < DISK_KEY_BYTES;
    is_short.then(|| {
        let place = format_position(given.span().start());
        format!(
            "{place}the `disk_key` has fewer than {DISK_KEY_BYTES} characters: generate one with `openssl rand -base64 32`"
        )
    })
}

/// Rejects a scalar in place of a mapping. The parser's error message would repeat the scalar, which may be the
/// password.
///
/// # Errors
/// Returns an error if the node is not a mapping.
pub(crate) fn reject_scalar(given: &Node) -> Result<(), String> {
    match given.as_mapping() {
        Some(_) => Ok(()),
        None => Err(format!(
            "{position}a `pull_secret` must have `username` and `password`, or an `identitytoken`",
            position = format_position(given.span().start())
        )),
    }
}

impl RawPullSecret {
    /// Validates the credentials for the image at `url`.
    ///
    /// # Errors
    /// Returns an error if the credentials are incomplete, or the URL is not in a registry. The error message does not
    /// contain the secrets.
    pub(crate) fn validate(self, url: Option<&Spanned<String>>) -> Result<PullSecret, String> {
        let RawPullSecret { username, password, identitytoken, token_service } = self;
        let Some(url) = url else {
            return Err("the image has a `pull_secret`, but no `url` in a registry".to_owned());
        };
        let Some(registry) = registry_of(url) else {
            return Err(format_at(
                url,
                "a `pull_secret` requires an image in a registry, with a `url` such as oci://HOST/REPOSITORY:TAG",
            ));
        };
        if url.starts_with("oci+http://") {
            return Err(format_at(
                url,
                "a `pull_secret` requires https (oci://): the secret could be intercepted over http",
            ));
        }
        let wrong = |why: &str| match &username {
            Some(given) => Err(format_at(given, why)),
            None => Err(format_at(url, why)),
        };
        let has_user = username.as_ref().is_some_and(|name| !name.is_empty());
        match (has_user, password.is_empty(), identitytoken.is_empty()) {
            (true, true, true) => return wrong("the `pull_secret` has a `username` and no `password`"),
            (false, false, _) => return wrong("the `pull_secret` has a `password` and no `username`"),
            (false, true, true) => {
                return wrong(
                    "the `pull_secret` is empty: it must have `username` and `password`, or an `identitytoken`",
                );
            }
            _ => {}
        }
        if username.as_ref().is_some_and(|name| name.contains(':')) {
            return wrong(
                "the username in the `pull_secret` contains a colon, which would end the username (RFC 7617)",
            );
        }
        if let Some(given) = token_service.as_ref().filter(|given| boot_value_validation::validate_host(given).is_err())
        {
            return Err(format_at(
                given,
                "the `token_service` of the `pull_secret` is not a host such as gitlab.example.org or gitlab.example.org:8443",
            ));
        }
        let token_service = token_service.map(|host| host.to_string()).unwrap_or_default();
        let username = username.map(|name| name.to_string()).unwrap_or_default();
        let (password, identitytoken) = (SecretText::new(password), SecretText::new(identitytoken));
        Ok(PullSecret { registry, username, password, identitytoken, token_service })
    }
}

#[cfg(test)]
mod tests {
    use crate::operator_files::parse_image;

    #[test]
    fn pull_secret_belongs_to_the_registry_of_its_image() {
        let text =
            "id: i\nurl: oci://R.example:5000/os/debian:12\npull_secret: {username: robot$pull, password: 1234}\n";
        let secrets = parse_image(text).unwrap().pull_secrets;
        let [secret] = &secrets[..] else { panic!("{secrets:?}") };
        assert_eq!((secret.registry.as_str(), secret.username.as_str()), ("r.example:5000", "robot$pull"));
        assert_eq!((secret.password.reveal(), secret.identitytoken.reveal()), ("1234", ""));
        let text = "id: i\nurl: oci://r.example/debian:12\npull_secret: {identitytoken: refresh}\n";
        assert_eq!(parse_image(text).unwrap().pull_secrets[0].identitytoken.reveal(), "refresh");
        let text = "id: i\nurl: oci://r.example/debian:12\npull_secret: {identitytoken: refresh, token_service: git.example:8443}\n";
        assert_eq!(parse_image(text).unwrap().pull_secrets[0].token_service(), Some("git.example:8443"));
    }

    #[test]
    fn invalid_pull_secret_is_reported_without_its_value() {
        let oci = "url: oci://r.example/debian:12";
        for (url, secret, says) in [
            ("file: i.tar", "{username: u, password: hunter2}", "but no `url` in a registry"),
            (
                "url: https://h/i.tar",
                "{username: u, password: hunter2}",
                "2:6: a `pull_secret` requires an image in a registry",
            ),
            ("url: oci+http://h/i:1", "{username: u, password: hunter2}", "2:6: a `pull_secret` requires https"),
            (oci, "{username: u}", "3:25: the `pull_secret` has a `username` and no `password`"),
            (oci, "{password: hunter2}", "2:6: the `pull_secret` has a `password` and no `username`"),
            (oci, "{}", "2:6: the `pull_secret` is empty"),
            (oci, "{username: 'u:v', password: hunter2}", "3:25: the username in the `pull_secret` contains a colon"),
            (oci, "{user: u, password: hunter2}", "3:15: unknown field \"user\"; did you mean \"username\"?"),
            (oci, "{username: u, password: [hunter2]}", "3:38: "),
            (
                oci,
                "{username: u, password: hunter2, token_service: 'https://t.example/x'}",
                "3:62: the `token_service` of the `pull_secret` is not a host",
            ),
            (oci, "hunter2", "3:14: a `pull_secret` must have `username` and `password`"),
        ] {
            let error = parse_image(&format!("id: i\n{url}\npull_secret: {secret}\n")).unwrap_err();
            assert!(error.contains(says) && !error.contains("hunter2"), "{secret}: {error}");
        }
    }

    #[test]
    fn disk_key_is_passed_on_and_not_repeated() {
        let file = |key: &str| {
            format!(
                "id: 4c4c4544-0051-3010-8052-b4c04f4d3132\nallocation:\n  id: a\n  hostname: h\n  image: i\n  disk_key: {key}\n"
            )
        };
        let machine = crate::operator_files::parse_machine;
        let long = "mF4ch0KFZ7gW1n0lmd2SgQ==";
        let allocation = machine(&file(long)).unwrap().allocation.unwrap();
        assert_eq!(allocation.to_agent_allocation().disk_key.reveal(), long);
        assert!(!format!("{allocation:?}").contains(long));
        for wrong in ["hunter2", "''", "[hunter2]"] {
            let said = machine(&file(wrong)).unwrap_err();
            assert!(said.starts_with("6:") && !said.contains("hunter2"), "{said}");
        }
    }
}
