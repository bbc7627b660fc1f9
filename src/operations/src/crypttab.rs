//! Lines of crypttab.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, PlannedOperation};
use model::registry_auth::SecretText;
use serde::Serialize;
use uuid::Uuid;

/// Writes `/etc/crypttab` and the key files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteCrypttab(pub Vec<CrypttabEntry>);

impl PlannedOperation for WriteCrypttab {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "/etc/crypttab, and the keys in /etc/cryptsetup-keys.d".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// A line of crypttab, with the content of the key file to which the line refers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrypttabEntry {
    pub uuid: Uuid,
    /// Options of crypttab: `luks`, [`CrypttabEntry::BY_TPM`] if the key is in the TPM, and `nofail` or `noauto` if the system starts
    /// without the container.
    pub options: Vec<String>,
    /// Mount point that requires the container; `None` if the system starts without the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_at: Option<String>,
    /// Content of the key file. If the content is empty, the passphrase is requested at boot.
    #[serde(skip)]
    pub key: SecretText,
}

impl CrypttabEntry {
    /// Option of crypttab that makes systemd unlock the container with the machine's TPM.
    pub const BY_TPM: &'static str = "tpm2-device=auto";

    pub fn is_by_tpm(&self) -> bool {
        self.options.iter().any(|option| option == Self::BY_TPM)
    }
}
