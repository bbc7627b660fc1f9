//! LUKS containers, managed by cryptsetup. Keys are passed by standard input, so that they do not appear in process
//! lists.

pub mod tpm;

use crate::process::{self, ToolCommand};
use crate::storage::block_device;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use model::device_name::DevicePath;
use model::layout::KeySource;
use model::secret_text::SecretText;
use operations::{DATA_OFFSET_BYTES, LuksContainer, OpenContainer};
use std::path::Path;
use std::time::Duration;

/// Name of the tool. The tool is in a separate part of the ramdisk that is loaded only by machines with encrypted
/// filesystems.
pub const TOOL: &str = "cryptsetup";

/// Time limit for cryptsetup. It is long enough for the derivation of a key on a slow processor.
const CRYPTSETUP_TIMEOUT: Duration = Duration::from_secs(300);

/// Options for key derivation by argon2id with 64 MiB, so that containers can be opened on machines with little memory.
/// The options are based on the second recommendation in RFC 9106, section 4, but use four passes instead of three, and
/// one lane instead of four.
const KEY_DERIVATION_OPTIONS: [&str; 8] =
    ["--pbkdf", "argon2id", "--pbkdf-memory", "65536", "--pbkdf-parallel", "1", "--pbkdf-force-iterations", "4"];

/// Checks the requirements of encrypted containers.
///
/// # Errors
/// Returns an error if the ramdisk does not contain cryptsetup, a key is missing, or the machine lacks a required TPM
/// 2.
pub fn check_requirements(containers: &[LuksContainer]) -> Result<()> {
    let mut missing = Vec::new();
    if !process::find_missing_tools(&[TOOL]).is_empty() {
        missing.push(format!(
            "the ramdisk does not contain {TOOL}: load the ramdisk component `luks` (target/ramdisk/luks) after the initrd"
        ));
    }
    if containers.iter().any(is_sealed) {
        missing.extend(tpm::find_missing_requirements());
    }
    for LuksContainer { device, source, withheld, .. } in
        containers.iter().filter(|container| container.withheld || container.key.is_empty() && !is_sealed(container))
    {
        missing.push(match source {
            source if *withheld => format!(
                "{device} is encrypted with `key: {source}`, but the control plane sends disk_key only once per boot, \
                 and only before an installation has started: reboot the machine"
            ),
            KeySource::Prompt => format!(
                "{device} is encrypted with `key: {source}`, but the agent asks for passphrases only on the console, \
                 and never if a conductor controls the deployment"
            ),
            source => format!("{device} is encrypted with `key: {source}`, but no such key was provided"),
        });
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::refusal(Phase::Storage, missing.join("; ")).with_code(ErrorCode::EncryptionRequirements))
    }
}

fn is_sealed(container: &LuksContainer) -> bool {
    container.source == KeySource::Tpm2
}

/// Creates the container, and opens it in the same way as the installed system: with the TPM if the key is sealed to
/// the TPM, and otherwise with the key itself. All data on the device is lost.
///
/// # Errors
/// Returns an error if cryptsetup fails.
pub fn create_container(container: &LuksContainer) -> Result<()> {
    let LuksContainer { device, uuid, sector_bytes, .. } = container;
    let offset = DATA_OFFSET_BYTES / block_device::SYSFS_SECTOR_BYTES;
    let key = if is_sealed(container) { tpm::choose_first_key(container) } else { container.key.clone() };
    let format = cryptsetup_command(&key).args(["luksFormat", "--batch-mode", "--type", "luks2", "--key-file", "-"]);
    let format = format.args(["--uuid", &uuid.to_string(), "--offset", &offset.to_string()]);
    let format = format.args(["--sector-size", &sector_bytes.to_string()]).args(KEY_DERIVATION_OPTIONS).arg(device);
    format.run().context(Phase::Storage, || format!("encrypt {device}"))?;
    let writable = OpenContainer { container: container.clone(), read_only: false };
    if is_sealed(container) {
        tpm::enroll_tpm(container, &key)?;
        return tpm::open_with_tpm(&writable, device);
    }
    open_container_with_key(&writable, device)
}

/// Opens the container on `device`, which may be an overlay. If the container has a key sealed to a TPM, but this
/// machine's TPM cannot open the container, the second key of the container is used, if there is one.
///
/// # Errors
/// Returns an error if cryptsetup fails, for example because the key does not match, or because the device does not
/// contain the container.
pub fn open_container(open: &OpenContainer, device: &DevicePath) -> Result<()> {
    match is_sealed(&open.container) {
        true => tpm::open_with_tpm(open, device).or_else(|error| match open.container.key.is_empty() {
            true => Err(error),
            false => open_container_with_key(open, device),
        }),
        false => open_container_with_key(open, device),
    }
}

/// Opens the container with the key in `container`, even if the container also has a key sealed to a TPM.
///
/// # Errors
/// The same errors as for [`open_container`].
pub fn open_container_with_key(
    OpenContainer { container, read_only }: &OpenContainer,
    device: &DevicePath,
) -> Result<()> {
    let open = build_open_command(&container.key, *read_only).args(["--key-file", "-"]);
    let open = open.arg(device).arg(mapping_name(&container.mapping));
    open.run().map(drop).context(Phase::Storage, || format!("open {}", container.device))
}

/// Returns whether the open mapping of this container is directly on top of the container's device. The check is
/// necessary because a mapping on top of an overlay of this device would have the same name.
///
/// # Errors
/// Returns an error if the device is missing from sysfs.
pub fn is_mapping_on_device(LuksContainer { device, mapping, .. }: &LuksContainer) -> Result<bool> {
    let device = block_device::sysfs_path(device)?;
    Ok(device
        .file_name()
        .is_some_and(|name| block_device::sysfs_path(mapping).is_ok_and(|is| is.join("slaves").join(name).exists())))
}

fn build_open_command(key: &SecretText, read_only: bool) -> ToolCommand {
    cryptsetup_command(key).args(["open", "--type", "luks"]).args(read_only.then_some("--readonly"))
}

/// Closes the mapping, if it is open.
///
/// # Errors
/// Returns an error if the mapping is in use.
pub fn close_mapping(mapping: &DevicePath) -> Result<()> {
    if !Path::new(mapping).exists() {
        return Ok(());
    }
    let close = ToolCommand::new(TOOL).args(["close", mapping_name(mapping)]).env("DM_DISABLE_UDEV", "1");
    close.run().map(drop).context(Phase::Storage, || format!("close {mapping}"))
}

fn cryptsetup_command(key: &SecretText) -> ToolCommand {
    let key = key.reveal().as_bytes().to_vec();
    ToolCommand::new(TOOL).input(key).env("DM_DISABLE_UDEV", "1").deadline(CRYPTSETUP_TIMEOUT)
}

fn mapping_name(mapping: &DevicePath) -> &str {
    mapping.as_str().strip_prefix("/dev/mapper/").unwrap_or(mapping.as_str())
}

#[cfg(test)]
mod tests;
