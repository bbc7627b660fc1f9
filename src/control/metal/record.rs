//! Facts that a machine of metal-stack remembers from one boot to the next because the control plane has no field for them.
//!
//! Disks are pulled, erased, and slow to appear, so they cannot hold these facts. Variables of the EFI firmware do. A machine without
//! such variables remembers nothing.

use crate::boot::efi::own;
use crate::error::{Context, Error, Phase, Result};
use crate::plan::pool_disks::KnownDisk;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Variable with the disks that earlier boots have seen.
const DISKS: &str = "DrophammerDisks";

/// Variable with the allocation whose installation was reported.
const REPORTED: &str = "DrophammerReported";

/// Maximum size of a value, in bytes. Firmware shares little room among all variables, and some boards do not start when it is full.
const MAXIMUM_BYTES: usize = 8 << 10;

#[derive(Debug, Clone)]
pub struct FirmwareRecord {
    directory: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct ReportedInstallation {
    allocation: String,
}

impl FirmwareRecord {
    /// `directory` is that of efivarfs.
    pub fn new(directory: &Path) -> FirmwareRecord {
        FirmwareRecord { directory: directory.to_owned() }
    }

    /// Returns the disks of earlier boots; none if nothing readable is recorded.
    pub fn disks(&self) -> Vec<KnownDisk> {
        let value = own::read(&self.directory, DISKS).filter(|value| value.len() <= MAXIMUM_BYTES);
        value.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default()
    }

    /// Records the disks, unless they are recorded already: the memory of the firmware wears out.
    ///
    /// # Errors
    /// The firmware has no variables or no room, or there are too many disks.
    pub fn write_disks(&self, disks: &[KnownDisk]) -> Result<()> {
        if self.disks() == disks {
            return Ok(());
        }
        let what = || "record the disks in a variable of the EFI firmware";
        let value = serde_json::to_vec(disks).context(Phase::Control, what)?;
        if value.len() > MAXIMUM_BYTES {
            return Err(Error::new(Phase::Control, format!("{}: {} bytes are too many", what(), value.len())));
        }
        own::write(&self.directory, DISKS, &value).context(Phase::Control, what)
    }

    /// Returns whether the control plane has acknowledged the report of this allocation's installation.
    pub fn is_reported(&self, allocation: &str) -> bool {
        let value = own::read(&self.directory, REPORTED).filter(|value| value.len() <= MAXIMUM_BYTES);
        let reported: Option<ReportedInstallation> = value.and_then(|value| serde_json::from_slice(&value).ok());
        reported.is_some_and(|reported| !allocation.is_empty() && reported.allocation == allocation)
    }

    /// Records that the control plane has acknowledged the report of this allocation's installation.
    ///
    /// # Errors
    /// The firmware has no variables or no room.
    pub fn write_reported(&self, allocation: &str) -> Result<()> {
        let what = || "record the reported installation in a variable of the EFI firmware";
        let value = serde_json::to_vec(&ReportedInstallation { allocation: allocation.to_owned() });
        own::write(&self.directory, REPORTED, &value.context(Phase::Control, what)?).context(Phase::Control, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(serial: &str) -> KnownDisk {
        KnownDisk { serial: serial.to_owned(), size_bytes: 1 << 40, ..KnownDisk::default() }
    }

    #[test]
    fn disks_and_the_reported_installation_are_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let record = FirmwareRecord::new(directory.path());
        assert!(record.disks().is_empty() && !record.is_reported("a-1") && !record.is_reported(""));
        for disks in [vec![known("A"), known("B")], vec![known("A")], vec![]] {
            record.write_disks(&disks).unwrap();
            assert_eq!(record.disks(), disks);
        }
        record.write_reported("a-1").unwrap();
        assert_eq!(["a-1", "a-2", ""].map(|allocation| record.is_reported(allocation)), [true, false, false]);
        record.write_reported("").unwrap();
        assert!(!record.is_reported(""));
    }

    #[test]
    fn a_machine_without_such_firmware_remembers_nothing() {
        let record = FirmwareRecord::new(Path::new("/nonexistent/efivars"));
        assert!(record.write_disks(&[known("A")]).is_err() && record.write_reported("a-1").is_err());
        assert!(record.disks().is_empty() && !record.is_reported("a-1"));
    }

    #[test]
    fn what_is_damaged_or_too_large_counts_as_not_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let record = FirmwareRecord::new(directory.path());
        for value in [&b"["[..], b"{}", b"[{\"size_bytes\": -1}]", &[b' '; MAXIMUM_BYTES + 1]] {
            own::write(directory.path(), DISKS, value).unwrap();
            own::write(directory.path(), REPORTED, value).unwrap();
            assert!(record.disks().is_empty() && !record.is_reported("a-1"));
        }
        record.write_disks(&[known("A")]).unwrap();
        let many: Vec<KnownDisk> = (0..500).map(|number| known(&format!("SERIAL-{number}"))).collect();
        assert!(record.write_disks(&many).unwrap_err().to_string().contains("too many"));
        assert_eq!(record.disks(), [known("A")]);
    }
}
