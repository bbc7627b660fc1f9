//! LUKS containers, by cryptsetup. The key goes to its standard input, so that no list of processes shows it.

pub mod sealed;

use crate::command::{self, Command};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::layout::KeySource;
use crate::plan::luks::DATA_OFFSET_BYTES;
use crate::plan::{Container, OpenContainer};
use crate::pull::Secret;
use crate::storage::kernel;
use std::path::Path;
use std::time::Duration;

/// It is in a part of the ramdisk of its own, which only machines with encrypted filesystems load.
pub const TOOL: &str = "cryptsetup";

/// Deriving a key takes long on a slow processor, and that is what it is for.
const DEADLINE: Duration = Duration::from_secs(300);

/// argon2id with 64 MiB: what is made here must open in a machine with little memory too (RFC 9106, 4: the second choice, with three
/// passes; one more of them).
const SLOWLY: [&str; 8] =
    ["--pbkdf", "argon2id", "--pbkdf-memory", "65536", "--pbkdf-parallel", "1", "--pbkdf-force-iterations", "4"];

/// # Errors
/// The ramdisk has no cryptsetup, or the key of one is not there, or the machine has no TPM 2 for it.
pub fn check(containers: &[Container]) -> Result<()> {
    let mut missing = Vec::new();
    if !command::missing(&[TOOL]).is_empty() {
        missing.push(format!(
            "the ramdisk has no {TOOL}: it is in the part `luks` (target/ramdisk/luks), which is loaded behind the initrd"
        ));
    }
    if containers.iter().any(is_sealed) {
        missing.extend(sealed::missing());
    }
    for Container { device, source, withheld, .. } in
        containers.iter().filter(|is| is.withheld || is.key.is_empty() && !is_sealed(is))
    {
        missing.push(match source {
            source if *withheld => format!(
                "{device} is encrypted with key: {source}, and the control plane tells disk_key once in each boot, before an installation \
                 has begun: boot the machine again"
            ),
            KeySource::Prompt => format!(
                "{device} is encrypted with key: {source}, and nobody was asked for its passphrase: the agent asks at the console, \
                 where no conductor drives it"
            ),
            source => format!("{device} is encrypted with key: {source}, and no such key was given"),
        });
    }
    if missing.is_empty() { Ok(()) } else { Err(Error::refusal(Phase::Storage, missing.join("; "))) }
}

fn is_sealed(container: &Container) -> bool {
    container.source == KeySource::Tpm2
}

/// Makes the container and opens it, with the key that it will be opened with. Whatever was on the device is gone.
///
/// # Errors
/// cryptsetup's own words.
pub fn create(container: &Container) -> Result<()> {
    let Container { device, uuid, sector_bytes, .. } = container;
    let offset = DATA_OFFSET_BYTES / kernel::SYSFS_SECTOR_BYTES;
    let key = if is_sealed(container) { sealed::first_key(container) } else { container.key.clone() };
    let format = cryptsetup(&key).args(["luksFormat", "--batch-mode", "--type", "luks2", "--key-file", "-"]);
    let format = format.args(["--uuid", &uuid.to_string(), "--offset", &offset.to_string()]);
    let format = format.args(["--sector-size", &sector_bytes.to_string()]).args(SLOWLY).arg(device);
    format.run().context(Phase::Storage, || format!("encrypt {device}"))?;
    let writable = OpenContainer { container: container.clone(), read_only: false };
    if is_sealed(container) {
        sealed::enrol(container, &key)?;
        return sealed::open(&writable, device);
    }
    open_with_key(&writable, device)
}

/// Opens the container, which may have an overlay in its place. One that is sealed to a TPM, and not to this one, opens with its second key.
///
/// # Errors
/// cryptsetup's own words: the key does not fit, or something else is there.
pub fn open(open: &OpenContainer, device: &DevicePath) -> Result<()> {
    match is_sealed(&open.container) {
        true => sealed::open(open, device).or_else(|error| match open.container.key.is_empty() {
            true => Err(error),
            false => open_with_key(open, device),
        }),
        false => open_with_key(open, device),
    }
}

/// The same without a TPM.
///
/// # Errors
/// As [`open`].
pub fn open_with_key(OpenContainer { container, read_only }: &OpenContainer, device: &DevicePath) -> Result<()> {
    let open = opening(&container.key, *read_only).args(["--key-file", "-"]);
    let open = open.arg(device).arg(name(&container.mapping));
    open.run().map(drop).context(Phase::Storage, || format!("open {}", container.device))
}

/// Is what is open by the name of this container on its device? Its copy has the same name.
///
/// # Errors
/// sysfs does not have one of both.
pub fn lies_on(Container { device, mapping, .. }: &Container) -> Result<bool> {
    let device = kernel::sysfs(device)?;
    Ok(device
        .file_name()
        .is_some_and(|name| kernel::sysfs(mapping).is_ok_and(|is| is.join("slaves").join(name).exists())))
}

fn opening(key: &Secret, read_only: bool) -> Command {
    cryptsetup(key).args(["open", "--type", "luks"]).args(read_only.then_some("--readonly"))
}

/// Closes it, if it is open.
///
/// # Errors
/// Something on it is still in use.
pub fn close(mapping: &DevicePath) -> Result<()> {
    if !Path::new(mapping).exists() {
        return Ok(());
    }
    let close = Command::new(TOOL).args(["close", name(mapping)]).env("DM_DISABLE_UDEV", "1");
    close.run().map(drop).context(Phase::Storage, || format!("close {mapping}"))
}

fn cryptsetup(key: &Secret) -> Command {
    let key = key.reveal().as_bytes().to_vec();
    Command::new(TOOL).input(key).env("DM_DISABLE_UDEV", "1").deadline(DEADLINE)
}

fn name(mapping: &DevicePath) -> &str {
    mapping.as_str().strip_prefix("/dev/mapper/").unwrap_or(mapping.as_str())
}

#[cfg(test)]
mod tests;
