//! Address and credentials of a machine's BMC, as specified in the machine file.

use super::format_at;
use super::yaml_node::format_position;
use marked_yaml::{Node, Spanned};
use model::bmc::{Bmc, BmcAddress};
use model::secret_text::SecretText;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBmc {
    url: Option<Spanned<String>>,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    insecure: bool,
}

/// Rejects a scalar in place of a mapping. The parser's error message would repeat the scalar, which may be the
/// password.
///
/// # Errors
/// Returns an error if the node is not a mapping.
pub(crate) fn reject_scalar(given: &Node) -> Result<(), String> {
    let here = format_position(given.span().start());
    given
        .as_mapping()
        .map(drop)
        .ok_or_else(|| format!("{here}`bmc` must have the fields `url`, `username` and `password`"))
}

impl RawBmc {
    /// Validates the fields.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, or username or password is missing. The error message does not contain
    /// the password.
    pub(crate) fn validate(self, given: &Node) -> Result<Bmc, String> {
        let Some(url) = &self.url else {
            return Err(format!(
                "{position}`bmc` requires the field `url`: https://HOST or ipmi://HOST",
                position = format_position(given.span().start())
            ));
        };
        let address = BmcAddress::parse(url).map_err(|why| format_at(url, &why))?;
        if self.username.is_empty() || self.password.is_empty() {
            return Err(format_at(url, "`bmc` requires the fields `username` and `password`"));
        }
        let RawBmc { username, password, insecure, .. } = self;
        Ok(Bmc { at: address, username, password: SecretText::new(password), insecure })
    }
}

#[cfg(test)]
mod tests {
    use crate::operator_files::parse_machine;

    #[test]
    fn bmc_settings_are_parsed_and_the_password_not_repeated() {
        let read = |bmc: &str| parse_machine(&format!("id: 4c4c4544-0051-3010-8031-b2c04f333633\nbmc: {bmc}\n"));
        let good = read("{url: 'https://10.1.0.7', username: admin, password: 1234, insecure: true}").unwrap();
        let bmc = good.bmc.unwrap();
        assert_eq!((bmc.username.as_str(), bmc.password.reveal(), bmc.insecure), ("admin", "1234", true));
        assert!(!format!("{bmc:?}").contains("1234"));
        for (bmc, says) in [
            ("hunter2", "2:6: `bmc` must have the fields `url`, `username` and `password`"),
            ("{username: u, password: hunter2}", "2:6: `bmc` requires the field `url`"),
            ("{url: 'https://h', username: u}", "2:12: `bmc` requires the fields `username` and `password`"),
            ("{url: 'https://h', password: hunter2}", "2:12: `bmc` requires the fields `username` and `password`"),
            ("{url: 'http://10.1.0.7', username: u, password: hunter2}", "2:12: Redfish over plain http"),
            (
                "{url: 'https://h', user: u, password: hunter2}",
                "2:25: unknown field \"user\"; did you mean \"username\"?",
            ),
        ] {
            let why = read(bmc).unwrap_err();
            assert!(why.contains(says) && !why.contains("hunter2"), "{bmc}: {why}");
        }
    }
}
