//! Keys that a TPM 2 seals, by systemd-cryptenroll and the plugin of systemd that cryptsetup loads: what they write into a container's
//! header opens it in the ramdisk and in an installed system alike.
//!
//! The seal asks for no PCR. Those that could tell one boot from another (7: the firmware's keys, and who signed what it started) are not
//! the same where the ramdisk comes over the network and the installed system from a disk, and change with each update of the firmware.

use crate::command::{self, Command};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::plan::{Container, OpenContainer};
use crate::pull::Secret;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const TOOL: &str = "systemd-cryptenroll";

/// It is found by cryptsetup alone, in this place.
const PLUGIN: &str = "/usr/lib/x86_64-linux-gnu/cryptsetup/libcryptsetup-token-systemd-tpm2.so";

/// The kernel's way to a TPM 2 for many at once; one of version 1.2 has none.
const DEVICE: &str = "/dev/tpmrm0";

/// Where nothing outlives the ramdisk.
const MEMORY: &str = "/run";

/// What is not there of what opens these containers.
pub fn missing() -> Vec<String> {
    missing_of(DEVICE)
}

fn missing_of(tpm: &str) -> Vec<String> {
    let mut missing = Vec::new();
    if !Path::new(tpm).exists() {
        missing.push(format!(
            "the machine has no TPM 2 ({tpm}): it is switched off in the firmware's setup, or of version 1.2"
        ));
    }
    if !command::missing(&[TOOL]).is_empty() || !Path::new(PLUGIN).exists() {
        missing.push(format!("the ramdisk's part `luks` has no {TOOL}, or not its plugin for cryptsetup: build it again with initramfs/build"));
    }
    missing
}

/// What a container is made with before its TPM is enrolled: the second key, or one that is wiped then, of 244 random bits.
pub fn first_key(container: &Container) -> Secret {
    match container.key.is_empty() {
        true => Secret::new(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())),
        false => container.key.clone(),
    }
}

/// Gives the container a slot that this machine's TPM opens. Its first key stays if it is the second key that was given, else it is wiped.
///
/// # Errors
/// systemd-cryptenroll's own words.
pub fn enrol(container: &Container, first: &Secret) -> Result<()> {
    let Container { device, uuid, .. } = container;
    let path = Path::new(MEMORY).join(format!("luks-{uuid}.key"));
    let file = KeyFile::write(path, first).context(Phase::Storage, || format!("a file in {MEMORY} for {TOOL}"))?;
    let enrol = Command::new(TOOL).args(["--tpm2-device=auto", "--tpm2-pcrs="]).arg(file.option());
    let enrol = enrol.args(container.key.is_empty().then_some("--wipe-slot=0")).arg(device);
    enrol
        .deadline(super::DEADLINE)
        .run()
        .map(drop)
        .context(Phase::Storage, || format!("seal the key of {device} to the TPM"))
}

/// Opens the container with what this machine's TPM unseals.
///
/// # Errors
/// There is no TPM, or it is not the one that sealed the key.
pub fn open(OpenContainer { container, read_only }: &OpenContainer, device: &DevicePath) -> Result<()> {
    if let Some(why) = missing().into_iter().next() {
        return Err(Error::new(Phase::Storage, format!("open {}: {why}", container.device)));
    }
    let open = super::opening(&Secret::default(), *read_only)
        .arg("--token-only")
        .arg(device)
        .arg(super::name(&container.mapping));
    let only = "only the one that sealed its key can, as long as it was not cleared";
    let what = || format!("open {} with this machine's TPM ({only})", container.device);
    open.run().map(drop).context(Phase::Storage, what)
}

/// systemd-cryptenroll reads keys from files that it can seek in, and from nothing else that no list of processes shows.
struct KeyFile(PathBuf);

impl KeyFile {
    fn write(path: PathBuf, key: &Secret) -> std::io::Result<KeyFile> {
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let file = KeyFile(path);
        opened.write_all(key.reveal().as_bytes())?;
        Ok(file)
    }

    fn option(&self) -> String {
        format!("--unlock-key-file={}", self.0.display())
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        // What is left there is in memory alone, and goes with the ramdisk.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::KeySource;
    use std::os::unix::fs::PermissionsExt;

    fn container(key: &str) -> Container {
        Container::new("/dev/sda3".into(), Uuid::new_v4(), 512, KeySource::Tpm2, Secret::new(key))
    }

    #[test]
    fn a_machine_without_a_tpm_is_told_so() {
        let said = missing_of("/dev/none").join("; ");
        assert!(said.contains("the machine has no TPM 2 (/dev/none)"), "{said}");
        assert!(!missing_of("/dev/null").join("; ").contains("has no TPM"));
    }

    #[test]
    fn the_first_key_is_the_second_that_was_given_or_a_new_one_each_time() {
        assert_eq!(first_key(&container("hunter2")).reveal(), "hunter2");
        let (one, other) = (first_key(&container("")), first_key(&container("")));
        assert!(one.reveal().len() == 64 && one != other);
    }

    #[test]
    fn the_file_with_the_key_is_for_root_alone_and_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let file = KeyFile::write(path.clone(), &Secret::new("hunter2")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hunter2");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!file.option().contains("hunter2"));
        assert!(
            KeyFile::write(path.clone(), &Secret::new("other")).is_err(),
            "what lies there is not taken for its own"
        );
        drop(file);
        assert!(!path.exists());
    }
}
