//! The file `/etc/crypttab` of the target.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, PlannedOperation};
use model::secret_text::SecretText;
use serde::Serialize;
use uuid::Uuid;

/// Operation that writes `/etc/crypttab` and the key files.
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

/// Line of crypttab, with the content of its key file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrypttabEntry {
    pub uuid: Uuid,
    /// Options of the line: `luks`, [`CrypttabEntry::BY_TPM`] if the TPM holds the key, and `nofail` or `noauto` if the
    /// system can start without the container.
    pub options: Vec<String>,
    /// Mount point for which the container is required at boot; `None` if the system can start without the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_at: Option<String>,
    /// Content of the key file. If the content is empty, the system asks for the passphrase at boot.
    #[serde(skip)]
    pub key: SecretText,
}

impl CrypttabEntry {
    /// Option of crypttab with which systemd unlocks the container through the machine's TPM.
    pub const BY_TPM: &'static str = "tpm2-device=auto";

    pub fn is_by_tpm(&self) -> bool {
        self.options.iter().any(|option| option == Self::BY_TPM)
    }
}
