//! Firmware variables that drophammer defines.

use super::variables::{remove_file, write_file};
use common::bounded_read::read_whole;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Vendor GUID of the variables that drophammer stores.
const VENDOR: &str = "9f2f4bd1-6c3a-4a53-8c57-0d1e6b7a2c94";

/// Size of the attributes that precede the value, in bytes.
const ATTRIBUTE_BYTES: usize = 4;

/// Maximum size of a variable that is read, in bytes.
const MAXIMUM_BYTES: u64 = 64 << 10;

/// Returns the path of a variable of drophammer in efivarfs.
pub fn variable_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-{VENDOR}"))
}

/// Reads the JSON in a variable. Returns `None` if there is no such variable, for example because the machine has no
/// EFI.
///
/// # Errors
/// Returns an error if the variable exists but cannot be read or parsed. In this case, the caller must not treat the
/// variable as absent: it contains a record that protects data, and without this record, the data could be erased.
pub fn read_json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>> {
    let path = variable_path(directory, name);
    let refused = |why: String| {
        let message = format!(
            "cannot read the firmware variable {name}: {why}; nothing is erased while its content is unknown. If its \
             content is not needed, remove {}: use `chattr -i` and `rm` in an installed system, or reset the variables \
             in the firmware's setup",
            path.display()
        );
        Err(Error::refusal(Phase::Boot, message).with_code(ErrorCode::FirmwareVariable))
    };
    let content = match File::open(&path).and_then(|file| read_whole(file, MAXIMUM_BYTES)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return refused(error.to_string()),
        Ok(None) => return refused(format!("the value is longer than {MAXIMUM_BYTES} bytes")),
        // An empty file counts as a missing variable: older kernels create such a file if the variable could not be
        // created in the firmware.
        Ok(Some(content)) if content.is_empty() => return Ok(None),
        Ok(Some(content)) => content,
    };
    let Some(value) = content.get(ATTRIBUTE_BYTES..) else { return refused(format!("{} bytes", content.len())) };
    match serde_json::from_slice(value) {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) => refused(format!("the value is not in drophammer's JSON format ({error})")),
    }
}

/// Writes a variable.
///
/// # Errors
/// Returns an error if the firmware or the kernel refuses the change. If the creation of a variable fails, the variable
/// does not exist afterwards.
pub fn write_variable(directory: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    write_file(&variable_path(directory, name), value)
}

/// Removes a variable, if it exists.
///
/// # Errors
/// Returns an error if the firmware or the kernel refuses the change.
pub fn remove_variable(directory: &Path, name: &str) -> io::Result<()> {
    remove_file(&variable_path(directory, name))
}
