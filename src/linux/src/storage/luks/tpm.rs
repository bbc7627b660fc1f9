//! Keys sealed to a TPM 2, by systemd-cryptenroll and systemd's plugin for cryptsetup. With the plugin's token in a
//! container's header, the container is unlocked both in the ramdisk and in the installed system.
//!
//! The keys are not bound to PCRs. PCRs that describe how the machine was booted (such as 7: Secure Boot keys and
//! signers) differ between the ramdisk booted over the network and the installed system booted from disk. A firmware
//! update may also change the PCRs.

use crate::process::{self, ToolCommand};
use common::error::{Context, Error, Phase, Result};
use model::architecture::Architecture;
use model::device_name::DevicePath;
use model::secret_text::SecretText;
use operations::{LuksContainer, OpenContainer};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const TOOL: &str = "systemd-cryptenroll";

/// File name of the plugin. cryptsetup searches only the directory `cryptsetup` next to its libraries.
const PLUGIN: &str = "libcryptsetup-token-systemd-tpm2.so";

/// Device of the kernel's TPM 2 resource manager. The device does not exist for TPM 1.2.
const DEVICE: &str = "/dev/tpmrm0";

/// Directory for key files. The directory is in memory, so its files are lost when the machine leaves the ramdisk.
const MEMORY: &str = "/run";

/// Returns the missing requirements for opening containers with the TPM.
pub(crate) fn find_missing_requirements() -> Vec<String> {
    find_missing_requirements_for(DEVICE)
}

fn plugin_path() -> PathBuf {
    Path::new("/usr/lib").join(Architecture::NATIVE.multiarch_name()).join("cryptsetup").join(PLUGIN)
}

fn find_missing_requirements_for(tpm: &str) -> Vec<String> {
    let mut missing = Vec::new();
    if !Path::new(tpm).exists() {
        missing.push(format!(
            "found no TPM 2 ({tpm}): the TPM is missing, disabled in the firmware setup, or has version 1.2"
        ));
    }
    if !process::find_missing_tools(&[TOOL]).is_empty() || !plugin_path().exists() {
        missing.push(format!(
            "the ramdisk part `luks` does not contain {TOOL} or its plugin for cryptsetup: rebuild this part with \
             scripts/build-ramdisk"
        ));
    }
    missing
}

/// Returns the key with which a container is created before the TPM is enrolled. This is the container's second key, or
/// a temporary key of 244 random bits if there is no second key.
pub(crate) fn choose_first_key(container: &LuksContainer) -> SecretText {
    match container.key.is_empty() {
        true => SecretText::new(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())),
        false => container.key.clone(),
    }
}

/// Adds a key slot with a key that is sealed to this machine's TPM. `first`, the key of [`choose_first_key`], is
/// removed if it is temporary, and preserved if it is the container's second key.
///
/// # Errors
/// Returns an error if systemd-cryptenroll fails.
pub(crate) fn enroll_tpm(container: &LuksContainer, first: &SecretText) -> Result<()> {
    let LuksContainer { device, uuid, .. } = container;
    let path = Path::new(MEMORY).join(format!("luks-{uuid}.key"));
    let file =
        KeyFile::write(path, first).context(Phase::Storage, || format!("create a key file in {MEMORY} for {TOOL}"))?;
    let enrol = ToolCommand::new(TOOL).args(["--tpm2-device=auto", "--tpm2-pcrs="]).arg(file.to_option());
    let enrol = enrol.args(container.key.is_empty().then_some("--wipe-slot=0")).arg(device);
    enrol
        .deadline(super::CRYPTSETUP_TIMEOUT)
        .run()
        .map(drop)
        .context(Phase::Storage, || format!("seal the key of {device} to the TPM"))
}

/// Opens the container with the key that is sealed to this machine's TPM.
///
/// # Errors
/// Returns an error if there is no TPM, or another TPM sealed the key.
pub fn open_with_tpm(OpenContainer { container, read_only }: &OpenContainer, device: &DevicePath) -> Result<()> {
    if let Some(why) = find_missing_requirements().into_iter().next() {
        return Err(Error::new(Phase::Storage, format!("open {}: {why}", container.device)));
    }
    let open = super::build_open_command(&SecretText::default(), *read_only)
        .arg("--token-only")
        .arg(device)
        .arg(super::mapping_name(&container.mapping));
    let only = "the key can be unsealed only by the TPM that sealed it, and only if this TPM was not cleared";
    let what = || format!("open {device} with this machine's TPM ({only})", device = container.device);
    open.run().map(drop).context(Phase::Storage, what)
}

/// Key in a temporary file. systemd-cryptenroll reads keys only from seekable files; unlike arguments, files are not
/// shown in process lists.
struct KeyFile(PathBuf);

impl KeyFile {
    fn write(path: PathBuf, key: &SecretText) -> std::io::Result<KeyFile> {
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let file = KeyFile(path);
        opened.write_all(key.reveal().as_bytes())?;
        Ok(file)
    }

    fn to_option(&self) -> String {
        format!("--unlock-key-file={}", self.0.display())
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        // An error is ignored: a key file that cannot be removed exists only in memory, and is lost with the ramdisk.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::layout::KeySource;
    use std::os::unix::fs::PermissionsExt;

    fn container(key: &str) -> LuksContainer {
        LuksContainer::new("/dev/sda3".into(), Uuid::new_v4(), 512, KeySource::Tpm2, SecretText::new(key))
    }

    #[test]
    fn missing_tpm_is_reported() {
        let said = find_missing_requirements_for("/dev/none").join("; ");
        assert!(said.contains("found no TPM 2 (/dev/none)"), "{said}");
        assert!(!find_missing_requirements_for("/dev/null").join("; ").contains("has no TPM"));
    }

    #[test]
    fn first_key_is_the_disk_key_or_random() {
        assert_eq!(choose_first_key(&container("hunter2")).reveal(), "hunter2");
        let (one, other) = (choose_first_key(&container("")), choose_first_key(&container("")));
        assert!(one.reveal().len() == 64 && one != other);
    }

    #[test]
    fn key_file_is_private_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let file = KeyFile::write(path.clone(), &SecretText::new("hunter2")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hunter2");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!file.to_option().contains("hunter2"));
        assert!(
            KeyFile::write(path.clone(), &SecretText::new("other")).is_err(),
            "an existing file is not overwritten"
        );
        drop(file);
        assert!(!path.exists());
    }
}
