//! Secrets of an allocation that the machine fetches in separate requests, at the time when they are needed.

use super::Allocation;
use crate::registry_auth::PullSecret;
use crate::secret_text::SecretText;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// Secret field of an allocation that the machine can fetch in a separate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretField {
    DiskKey,
    PullSecrets,
    UserData,
    ConsolePassword,
    Vpn,
}

/// Purpose for which an installation needs secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretPurpose {
    /// Inspection of encrypted filesystems during planning, before the point of no return.
    DiskKey,
    /// Download of the image from a registry, before the point of no return.
    Image,
    /// Files of the new system, which are written after the point of no return.
    System,
}

impl SecretField {
    pub fn purpose(self) -> SecretPurpose {
        match self {
            SecretField::DiskKey => SecretPurpose::DiskKey,
            SecretField::PullSecrets => SecretPurpose::Image,
            SecretField::UserData | SecretField::ConsolePassword | SecretField::Vpn => SecretPurpose::System,
        }
    }

    /// Returns the name of the field in the JSON of an allocation.
    pub fn as_str(self) -> &'static str {
        match self {
            SecretField::DiskKey => "disk_key",
            SecretField::PullSecrets => "pull_secrets",
            SecretField::UserData => "user_data",
            SecretField::ConsolePassword => "console_password",
            SecretField::Vpn => "vpn",
        }
    }
}

/// Body of `POST /v1/machine/{id}/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretsRequest {
    pub allocationuuid: String,
    pub purpose: SecretPurpose,
}

/// Response to the request for the secrets of one purpose. The secrets are never printed or logged.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReleasedSecrets {
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub disk_key: SecretText,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<PullSecret>,
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub user_data: SecretText,
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub console_password: SecretText,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub vpn: Value,
}

impl fmt::Debug for ReleasedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("…")
    }
}

impl ReleasedSecrets {
    /// Returns the allocation with these secrets inserted. Fields whose secrets are not included remain unchanged.
    pub fn fill_secrets(&self, allocation: Allocation) -> Allocation {
        let revealed =
            |secret: &SecretText, field: String| if secret.is_empty() { field } else { secret.reveal().to_owned() };
        Allocation {
            user_data: revealed(&self.user_data, allocation.user_data),
            console_password: revealed(&self.console_password, allocation.console_password),
            vpn: if self.vpn.is_null() { allocation.vpn } else { self.vpn.clone() },
            ..allocation
        }
    }
}

impl Allocation {
    /// Returns whether the installed system gets user data, either from the allocation or from a separate request.
    pub fn has_user_data(&self) -> bool {
        !self.user_data.trim().is_empty() || self.separate_secrets.contains(&SecretField::UserData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_secrets_complete_an_allocation_and_are_not_printed() {
        let released = ReleasedSecrets {
            user_data: SecretText::new("the-user-data"),
            console_password: SecretText::new("the-password"),
            vpn: serde_json::json!({"auth_key": "the-key"}),
            ..ReleasedSecrets::default()
        };
        let allocation = Allocation { separate_secrets: vec![SecretField::UserData], ..Allocation::default() };
        assert!(allocation.has_user_data());
        let completed = released.fill_secrets(allocation);
        assert_eq!(
            (completed.user_data.as_str(), completed.console_password.as_str()),
            ("the-user-data", "the-password")
        );
        assert_eq!(completed.vpn["auth_key"], "the-key");
        assert_eq!(format!("{released:?}"), "…");
        let inline = Allocation { user_data: "inline".to_owned(), ..Allocation::default() };
        assert!(inline.has_user_data() && !Allocation::default().has_user_data());
        assert_eq!(ReleasedSecrets::default().fill_secrets(inline.clone()), inline);
    }
}
