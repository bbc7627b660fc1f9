//! State that a metal-stack machine stores between boots, because the control plane does not store it.
//!
//! The state is stored in EFI variables, because disks may be removed, erased, or slow to appear. A machine without
//! EFI variables stores no state.

use common::error::{Context, Error, Phase, Result};
use linux::efi::drophammer_variables;
use model::pool_machine_disks::KnownDisk;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of the EFI variable in which a boot records the machine's disks for later boots.
const DISKS: &str = "DrophammerDisks";

/// Name of the EFI variable with the id of the allocation whose installation was reported.
const REPORTED: &str = "DrophammerReported";

/// Maximum size of a value, in bytes. All EFI variables share a small storage, and some boards do not boot if it is
/// full.
const MAXIMUM_BYTES: usize = 8 << 10;

/// Access to the state in EFI variables.
#[derive(Debug, Clone)]
pub struct FirmwareRecord {
    directory: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct ReportedInstallation {
    allocation: String,
}

impl FirmwareRecord {
    /// Creates the record for the efivarfs that is mounted at `directory`.
    pub fn new(directory: &Path) -> FirmwareRecord {
        FirmwareRecord { directory: directory.to_owned() }
    }

    /// Returns the disks that earlier boots have recorded; empty if there is no record.
    ///
    /// # Errors
    /// Fails if a record exists but cannot be read. Without it, the agent would not wait for disks that are slow to
    /// appear.
    pub(crate) fn read_disks(&self) -> Result<Vec<KnownDisk>> {
        Ok(drophammer_variables::read_json(&self.directory, DISKS)?.unwrap_or_default())
    }

    /// Records the disks. If the record already contains the same disks, writes nothing, to reduce the wear of the
    /// flash memory.
    ///
    /// # Errors
    /// Fails if the firmware has no variables or no space, or the record is too large.
    pub(crate) fn write_disks(&self, disks: &[KnownDisk]) -> Result<()> {
        if self.read_disks()? == disks {
            return Ok(());
        }
        let what = || "record the disks in a variable of the EFI firmware";
        let value = serde_json::to_vec(disks).context(Phase::Control, what)?;
        if value.len() > MAXIMUM_BYTES {
            return Err(Error::new(
                Phase::Control,
                format!(
                    "{variable}: the value is {bytes} bytes, which exceeds the size limit",
                    variable = what(),
                    bytes = value.len()
                ),
            ));
        }
        drophammer_variables::write_variable(&self.directory, DISKS, &value).context(Phase::Control, what)
    }

    /// Returns whether, according to the record, the control plane has acknowledged the report of this allocation's
    /// installation.
    ///
    /// # Errors
    /// Fails if a record exists but cannot be read, because the allocation may then already be installed.
    pub(crate) fn is_reported(&self, allocation: &str) -> Result<bool> {
        let reported: Option<ReportedInstallation> = drophammer_variables::read_json(&self.directory, REPORTED)?;
        Ok(reported.is_some_and(|reported| !allocation.is_empty() && reported.allocation == allocation))
    }

    /// Records that the control plane has acknowledged this allocation's installation report.
    ///
    /// # Errors
    /// Fails if the firmware has no variables or no space.
    pub(crate) fn write_reported(&self, allocation: &str) -> Result<()> {
        let what = || "record the reported installation in a variable of the EFI firmware";
        let value = serde_json::to_vec(&ReportedInstallation { allocation: allocation.to_owned() });
        drophammer_variables::write_variable(&self.directory, REPORTED, &value.context(Phase::Control, what)?)
            .context(Phase::Control, what)
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
        let is_reported = |allocation: &str| record.is_reported(allocation).unwrap();
        assert!(record.read_disks().unwrap().is_empty() && !is_reported("a-1") && !is_reported(""));
        for disks in [vec![known("A"), known("B")], vec![known("A")], vec![]] {
            record.write_disks(&disks).unwrap();
            assert_eq!(record.read_disks().unwrap(), disks);
        }
        record.write_reported("a-1").unwrap();
        assert_eq!(["a-1", "a-2", ""].map(is_reported), [true, false, false]);
        record.write_reported("").unwrap();
        assert!(!is_reported(""));
    }

    #[test]
    fn record_requires_efi_variables() {
        let record = FirmwareRecord::new(Path::new("/proc/nonexistent/efivars"));
        assert!(record.write_disks(&[known("A")]).is_err() && record.write_reported("a-1").is_err());
        assert!(record.read_disks().unwrap().is_empty() && !record.is_reported("a-1").unwrap());
    }

    #[test]
    fn too_many_disks_are_not_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let record = FirmwareRecord::new(directory.path());
        record.write_disks(&[known("A")]).unwrap();
        let many: Vec<KnownDisk> = (0..500).map(|number| known(&format!("SERIAL-{number}"))).collect();
        assert!(record.write_disks(&many).unwrap_err().to_string().contains("exceeds the size limit"));
        assert_eq!(record.read_disks().unwrap(), [known("A")]);
    }

    /// An installed machine with a damaged record must not count as one that was never installed.
    #[test]
    fn unreadable_record_is_refused_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let record = FirmwareRecord::new(directory.path());
        for value in [
            &b"["[..],
            b"{",
            b"7",
            b"[{\"size_bytes\": -1}]",
            b"[{\"size_bytes\": 18446744073709551616}]",
            &[b' '; 70 << 10],
        ] {
            drophammer_variables::write_variable(directory.path(), DISKS, value).unwrap();
            drophammer_variables::write_variable(directory.path(), REPORTED, value).unwrap();
            for error in [record.read_disks().unwrap_err(), record.is_reported("a-1").unwrap_err()] {
                assert!(error.is_refusal() && error.to_string().contains("nothing is erased"), "{error}");
            }
            assert!(record.write_disks(&[known("A")]).is_err(), "an existing variable is not overwritten");
        }
        // One variable has no attributes, and the kernel refuses to read the other one.
        let path = drophammer_variables::variable_path(directory.path(), DISKS);
        std::fs::write(&path, [7, 0]).unwrap();
        assert!(record.read_disks().unwrap_err().to_string().contains("2 bytes"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(record.read_disks().unwrap_err().is_refusal());
    }
}
