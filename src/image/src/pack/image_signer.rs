//! Creates signatures in minisign's format, with secret keys created by minisign.

use crate::NAME_IN_COMMENT;
use base64::prelude::{BASE64_STANDARD, Engine};
use common::error::{Context, Error, Phase, Result};
use minisign::{PublicKey, SecretKey, SecretKeyBox};
use std::io::IsTerminal;
use std::path::Path;
use time::OffsetDateTime;

/// Environment variable with the password of the key, for non-interactive use.
const PASSWORD: &str = "DROPHAMMER_KEY_PASSWORD";

/// Length of a public key after base64 decoding, in bytes: algorithm, id and key.
const PUBLIC_BYTES: usize = 42;

/// Untrusted comment: the first line of a signature file. The signature does not cover this line.
const UNTRUSTED: &str = "signature made by drophammer image pack";

/// Unlocked secret key.
pub(crate) struct ImageSigner {
    secret: SecretKey,
    public: PublicKey,
    pub id: String,
}

impl ImageSigner {
    /// Reads and unlocks the secret key. The password is read from the environment variable [`PASSWORD`] or, if this
    /// variable is not set, from the terminal.
    ///
    /// # Errors
    /// Returns an error if the file is not a secret key, or the password is missing or wrong.
    pub(crate) fn open_key(path: &Path) -> Result<ImageSigner> {
        ImageSigner::open_with_password(path, || read_password(path))
    }

    fn open_with_password(path: &Path, password: impl FnOnce() -> Result<Option<String>>) -> Result<ImageSigner> {
        let reading = || format!("read the secret key {key_file}", key_file = path.display());
        let text = std::fs::read_to_string(path).context(Phase::Settings, reading)?;
        let line = text.lines().nth(1).unwrap_or_default();
        // This error replaces the errors of the library, which describe internals such as buffers and do not help the
        // operator.
        let no_key = || {
            Error::refusal(
                Phase::Settings,
                format!("{key_file} is not a minisign secret key", key_file = path.display()),
            )
        };
        let bytes = BASE64_STANDARD.decode(line).map_err(|_| no_key())?;
        if bytes.len() == PUBLIC_BYTES {
            let why = format!(
                "{key_file} is a public key; sign with the secret key that minisign -G created with it",
                key_file = path.display()
            );
            return Err(Error::refusal(Phase::Settings, why));
        }
        let secret = SecretKey::from_bytes(&bytes).map_err(|_| no_key())?;
        let secret = if secret.is_encrypted() { unlock_key(path, &text, password()?)? } else { secret };
        let public = PublicKey::from_secret_key(&secret).context(Phase::Settings, reading)?;
        let number = secret.keynum().try_into().map(u64::from_le_bytes).unwrap_or_default();
        Ok(ImageSigner { secret, public, id: format!("{number:016X}") })
    }

    /// Signs the text of a file and returns the content of its `.minisig`. The trusted comment contains the image id,
    /// if `id` is specified.
    ///
    /// # Errors
    /// Returns an error if signing fails.
    pub(crate) fn sign_file(&self, file: &str, text: &str, id: Option<&str>, epoch: Option<i64>) -> Result<String> {
        let seconds = epoch.unwrap_or_else(|| OffsetDateTime::now_utc().unix_timestamp());
        let name = id.map_or(String::new(), |id| format!("\t{NAME_IN_COMMENT}{id}"));
        let comment = format!("timestamp:{seconds}\tfile:{file}{name}\thashed");
        let signed = minisign::sign(Some(&self.public), &self.secret, text.as_bytes(), Some(&comment), Some(UNTRUSTED));
        Ok(signed.context(Phase::Image, || format!("sign {file}"))?.into_string())
    }
}

fn unlock_key(path: &Path, text: &str, password: Option<String>) -> Result<SecretKey> {
    let opened = SecretKeyBox::from_string(text).and_then(|boxed| boxed.into_secret_key(password));
    opened.context(Phase::Settings, || format!("unlock the secret key {key_file}", key_file = path.display()))
}

/// Returns the password from the environment. Returns `None` if the environment does not contain the password, but the
/// user can be asked for it at a terminal.
fn read_password(key: &Path) -> Result<Option<String>> {
    match std::env::var(PASSWORD) {
        Ok(password) => Ok(Some(password)),
        Err(_) if std::io::stdin().is_terminal() => Ok(None),
        Err(_) => {
            let why = format!(
                "cannot ask for the password of the secret key {key_file}: no terminal is available; set {PASSWORD}",
                key_file = key.display()
            );
            Err(Error::new(Phase::Settings, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_is_distinguished_from_a_secret_key() {
        let public = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/trust/one.pub"));
        let error = ImageSigner::open_key(public).err().unwrap();
        assert!(error.is_refusal() && error.to_string().contains("one.pub is a public key; "), "{error}");
        for text in ["", "no key", "untrusted comment: x\nno base64\n", "untrusted comment: x\nAAAA\n"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("some.key");
            std::fs::write(&path, text).unwrap();
            let error = ImageSigner::open_key(&path).err().unwrap();
            assert!(
                error.is_refusal() && error.to_string().ends_with("some.key is not a minisign secret key"),
                "{error}"
            );
        }
    }

    #[test]
    fn locked_key_requires_its_password() {
        let locked = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/trust/locked.key"));
        let open = |password: &str| ImageSigner::open_with_password(locked, || Ok(Some(password.to_owned())));
        assert_eq!(open("correct horse").unwrap().id, "6C22FE75B6915BAB");
        for wrong in ["", "battery staple"] {
            let error = open(wrong).err().unwrap().to_string();
            assert!(error.contains("locked.key") && error.contains("Wrong password"), "{error}");
        }
        // If the password cannot be read, the error of reading it is returned.
        let opened = ImageSigner::open_with_password(locked, || Err(Error::new(Phase::Settings, "nobody is there")));
        assert!(opened.err().unwrap().to_string().contains("nobody is there"));
    }
}
