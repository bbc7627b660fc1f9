//! UEFI variables in efivarfs. A file consists of four bytes of attributes, followed by the value of the variable.

use crate::atomic_file::remove_if_present;
use common::bounded_read::read_whole;
use common::error::{Context, Phase, Result};
use nix::errno::Errno;
use nix::libc::c_long;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Mount point of efivarfs.
pub const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// Vendor GUID of the variables defined by the specification.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Attributes of written variables: non-volatile, and accessible both to boot services and at runtime.
const ATTRIBUTES: u32 = 7;

/// Maximum size of a variable that is read, in bytes.
const MAXIMUM: u64 = 1 << 20;

/// Boot configuration of the firmware.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootVariables {
    /// Values of the variables `Boot####` by number. The value of an unreadable variable is empty.
    pub entries: BTreeMap<u16, Vec<u8>>,
    pub order: Vec<u16>,
    /// Entry from which the running system was booted.
    pub current: Option<u16>,
    /// Entry for the next boot only.
    pub next: Option<u16>,
    pub timeout_seconds: Option<u16>,
    /// Reason why `BootOrder` cannot be read although it exists. An unreadable boot order must not be replaced.
    pub unreadable_order: Option<String>,
}

impl BootVariables {
    /// Reads the boot configuration.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn read(directory: &Path) -> Result<BootVariables> {
        let what = || format!("read {}", directory.display());
        let number =
            |name| read_variable(directory, name).and_then(|value| Some(u16::from_le_bytes(value.try_into().ok()?)));
        let order = read_variable(directory, "BootOrder");
        let there = || fs::symlink_metadata(variable_path(directory, "BootOrder")).is_ok();
        let mut variables = BootVariables {
            current: number("BootCurrent"),
            next: number("BootNext"),
            timeout_seconds: number("Timeout"),
            unreadable_order: (order.is_none() && there()).then(|| "cannot read BootOrder".to_owned()),
            ..BootVariables::default()
        };
        let order = order.unwrap_or_default();
        variables.order = order.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        for file in fs::read_dir(directory).context(Phase::Boot, what)? {
            let name = file.context(Phase::Boot, what)?.file_name();
            let Some(number) = name.to_str().and_then(parse_entry_number) else { continue };
            let value = read_variable(directory, &entry_name(number)).unwrap_or_default();
            variables.entries.insert(number, value);
        }
        Ok(variables)
    }

    /// Returns the index of the entry in the boot order; `None` if the order does not contain it.
    pub fn position_in_order(&self, number: u16) -> Option<usize> {
        self.order.iter().position(|other| *other == number)
    }
}

/// Returns the variable name of an entry, such as `Boot000A`.
pub fn entry_name(number: u16) -> String {
    format!("Boot{number:04X}")
}

pub fn variable_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-{GLOBAL}"))
}

/// Reads the value of a variable, without its attributes.
pub fn read_variable(directory: &Path, name: &str) -> Option<Vec<u8>> {
    read_file(&variable_path(directory, name))
}

/// Reads the value of the variable at this path, which may have any vendor GUID.
pub fn read_file(path: &Path) -> Option<Vec<u8>> {
    read_whole(File::open(path).ok()?, MAXIMUM).ok()??.get(4..).map(<[u8]>::to_vec)
}

/// Writes a variable.
///
/// # Errors
/// Returns an error if the firmware or the kernel refuses the change. If the creation of a variable fails, the variable
/// does not exist afterwards.
pub fn write_variable(directory: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    write_file(&variable_path(directory, name), value)
}

/// Writes the variable at this path, which may have any vendor GUID.
///
/// # Errors
/// The same errors as for [`write_variable`].
pub(crate) fn write_file(path: &Path, value: &[u8]) -> io::Result<()> {
    let is_new = fs::symlink_metadata(path).is_err();
    make_mutable(path)?;
    // Attributes and value are written together, because efivarfs requires them in one write(2).
    let content = [&ATTRIBUTES.to_le_bytes()[..], value].concat();
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let written = opened.and_then(|variable| write_all_and_truncate(variable, &content));
    if written.is_err() && is_new {
        // The file is removed, because older kernels keep an empty file until the next boot if a variable could not be
        // created.
        let _ = fs::remove_file(path);
    }
    written
}

fn write_all_and_truncate(mut variable: File, content: &[u8]) -> io::Result<()> {
    variable.write_all(content)?;
    // efivarfs has already truncated the file to the new value. Other filesystems, which are used in tests, preserve
    // the end of an old value that was longer.
    let (is, wanted) = (variable.metadata()?, content.len() as u64);
    if is.is_file() && is.len() > wanted { variable.set_len(wanted) } else { Ok(()) }
}

/// Removes a variable, if it exists.
///
/// # Errors
/// Returns an error if the firmware or the kernel refuses the change.
pub fn remove_variable(directory: &Path, name: &str) -> io::Result<()> {
    remove_file(&variable_path(directory, name))
}

/// Removes the variable at this path, which may have any vendor GUID.
///
/// # Errors
/// Returns an error if the firmware or the kernel refuses the change.
pub fn remove_file(path: &Path) -> io::Result<()> {
    make_mutable(path)?;
    remove_if_present(path)
}

/// Parses the number of an entry from a file name: `Boot0003-8be4df61-…` is 3.
fn parse_entry_number(file: &str) -> Option<u16> {
    let digits = file.strip_suffix(GLOBAL)?.strip_suffix('-')?.strip_prefix("Boot")?;
    let hexadecimal = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

mod ioctl {
    use nix::libc::c_long;

    nix::ioctl_read!(get_flags, b'f', 1, c_long);
    nix::ioctl_write_ptr!(set_flags, b'f', 2, c_long);
}

/// Flag FS_IMMUTABLE_FL. efivarfs sets this flag on unknown variables, so that `rm -r` does not make the firmware
/// unusable.
const IMMUTABLE: c_long = 0x10;

/// Clears the immutable flag of a variable. A missing or unreadable file is not an error.
fn make_mutable(path: &Path) -> io::Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut flags: c_long = 0;
    // SAFETY: the descriptor is open. The kernel accesses an int, which fits into a long.
    match unsafe { ioctl::get_flags(file.as_raw_fd(), &mut flags) } {
        // The filesystem does not support inode flags, so the immutable flag is not set.
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP) => return Ok(()),
        other => other?,
    };
    if flags & IMMUTABLE == 0 {
        return Ok(());
    }
    flags &= !IMMUTABLE;
    // SAFETY: as above.
    unsafe { ioctl::set_flags(file.as_raw_fd(), &flags) }?;
    Ok(())
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing {
    use super::*;

    pub fn write(directory: &Path, name: &str, value: &[u8]) {
        fs::write(variable_path(directory, name), [&ATTRIBUTES.to_le_bytes()[..], value].concat()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_malformed_ones_keep_their_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(BootVariables::read(path).unwrap(), BootVariables::default());
        testing::write(path, "BootOrder", &[3, 0, 0x34, 0x12, 9]);
        testing::write(path, "BootCurrent", &[3, 0]);
        testing::write(path, "Timeout", &[5, 0]);
        testing::write(path, "BootNext", &[5]);
        testing::write(path, "Boot0003", b"three");
        testing::write(path, "Boot00a1", b"of another spelling");
        testing::write(path, "Boot00x1", b"no number");
        fs::create_dir(variable_path(path, "Boot0004")).unwrap();
        fs::write(variable_path(path, "Boot0005"), b"").unwrap();
        let entries = [(3, b"three".to_vec()), (4, vec![]), (5, vec![]), (0xa1, vec![])].into();
        let (order, current, timeout_seconds) = (vec![3, 0x1234], Some(3), Some(5));
        let is = BootVariables { entries, order, current, timeout_seconds, ..BootVariables::default() };
        assert_eq!(BootVariables::read(path).unwrap(), is);
        fs::write(variable_path(path, "BootOrder"), b"7").unwrap();
        let broken = BootVariables::read(path).unwrap();
        assert_eq!((broken.unreadable_order.is_some(), broken.order), (true, vec![]));
        assert!(BootVariables::read(&path.join("no")).is_err());
    }

    #[test]
    fn new_variable_that_does_not_fit_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::os::unix::fs::symlink("/dev/full", variable_path(path, "Boot0001")).unwrap();
        let error = write_variable(path, "Boot0001", b"x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC));
        assert!(fs::symlink_metadata(variable_path(path, "Boot0001")).is_ok(), "the old variable still exists");
        write_variable(path, "Boot0002", b"y").unwrap();
        assert_eq!(read_variable(path, "Boot0002").as_deref(), Some(&b"y"[..]));
        remove_variable(path, "Boot0002").unwrap();
        remove_variable(path, "Boot0002").unwrap();
        assert!(!variable_path(path, "Boot0002").exists());
    }
}
