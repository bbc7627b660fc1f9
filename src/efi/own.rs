//! Variables of the firmware that mean something to drophammer alone.

use super::variables::{read_file, remove_file, write_file};
use std::io;
use std::path::{Path, PathBuf};

/// Vendor of drophammer's own variables.
const VENDOR: &str = "9f2f4bd1-6c3a-4a53-8c57-0d1e6b7a2c94";

fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-{VENDOR}"))
}

/// None when it is not there, or cannot be read.
pub fn read(directory: &Path, name: &str) -> Option<Vec<u8>> {
    read_file(&file(directory, name))
}

/// # Errors
/// The firmware or the kernel refuses. A variable that was not there is not there then either.
pub fn write(directory: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    write_file(&file(directory, name), value)
}

/// # Errors
/// The firmware or the kernel refuses. One that is not there is gone already.
pub fn remove(directory: &Path, name: &str) -> io::Result<()> {
    remove_file(&file(directory, name))
}
