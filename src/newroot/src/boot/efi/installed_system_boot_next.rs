//! Selection of the boot entry of the installed system, for the next boot only. It replaces kexec on kernels without
//! kexec_file_load(2), such as Debian's kernels for arm64.

use super::network_boot_next::set_boot_next;
use common::error::{Error, Phase, Result};
use linux::efi::variables::{BootVariables, entry_name};
use linux::efi::{DevicePathNode, LoadOption};
use operations::OWN_PREFIX;
use std::path::Path;
use uuid::Uuid;

/// Makes the firmware start one of these entries, which this run has written, at the next boot. Returns the name of the
/// entry, such as `Boot0003`. Of several entries, the first one in the boot order is chosen.
///
/// # Errors
/// Fails if none of the entries exists and is active, or if the firmware refuses the write.
pub fn boot_written_entry_next(directory: &Path, written: &[u16]) -> Result<String> {
    select_entry(directory, |number, _| written.contains(&number))
}

/// Makes the firmware start a system that an earlier run has installed at the next boot. Its entry is an entry of
/// drophammer that starts from one of these EFI system partitions. Other entries of drophammer belong to other systems.
/// Otherwise like [`boot_written_entry_next`].
///
/// # Errors
/// As for [`boot_written_entry_next`].
pub fn boot_installed_system_next(directory: &Path, esps: &[Uuid]) -> Result<String> {
    select_entry(directory, |_, option| {
        let nodes = option.nodes().unwrap_or_default();
        let mut guids = nodes.iter().filter_map(DevicePathNode::partition_guid);
        option.description.starts_with(OWN_PREFIX) && guids.any(|guid| esps.contains(&guid))
    })
}

fn select_entry(directory: &Path, is_of_system: impl Fn(u16, &LoadOption) -> bool) -> Result<String> {
    let variables = BootVariables::read(directory)?;
    let found = variables.entries.iter().filter(|(number, value)| {
        LoadOption::parse(value).is_some_and(|option| option.is_active() && is_of_system(**number, &option))
    });
    let place = |number: &u16| (variables.position_in_order(*number).unwrap_or(variables.order.len()), *number);
    let Some(number) = found.map(|(number, _)| *number).min_by_key(place) else {
        return Err(Error::new(Phase::Boot, "the firmware has no boot entry of the installed system"));
    };
    set_boot_next(directory, number)?;
    Ok(entry_name(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::efi::PartitionLocation;
    use linux::efi::variables::{read_variable, testing::write};

    fn entry(label: &str, esp: u128) -> LoadOption {
        let esp = PartitionLocation { number: 1, guid: Uuid::from_u128(esp), first_lba: 2048, sectors: 1000 };
        LoadOption::for_file(label, esp, r"\EFI\debian\grubaa64.efi", "").unwrap()
    }

    /// The firmware has entries of two systems that drophammer has installed. The system on partition 9 was preserved.
    #[test]
    fn only_entries_of_the_installed_system_are_selected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let esps = [1, 2].map(Uuid::from_u128);
        let refused = boot_installed_system_next(path, &esps).unwrap_err().to_string();
        assert!(refused.contains("no boot entry of the installed system"), "{refused}");
        write(path, "Boot0000", &entry("UEFI PXEv4", 1).to_bytes());
        write(path, "Boot0001", &entry("drophammer: db-1", 9).to_bytes());
        write(path, "Boot0002", &entry("drophammer: web-1", 1).to_bytes());
        write(path, "Boot0005", &entry("drophammer: web-1", 2).to_bytes());
        write(path, "BootOrder", &[1, 0, 0, 0, 5, 0, 2, 0]);
        assert_eq!(boot_installed_system_next(path, &esps).unwrap(), "Boot0005");
        assert_eq!(read_variable(path, "BootNext"), Some(vec![5, 0]));
        assert_eq!(boot_written_entry_next(path, &[2]).unwrap(), "Boot0002");
        assert_eq!(boot_written_entry_next(path, &[2, 5]).unwrap(), "Boot0005");
        // An entry that is not active is not started by the firmware.
        let mut off = entry("drophammer: web-1", 2);
        off.attributes = 0;
        write(path, "Boot0005", &off.to_bytes());
        assert_eq!(boot_installed_system_next(path, &esps).unwrap(), "Boot0002");
        // The firmware has not stored the entries of this installation.
        for refused in [boot_written_entry_next(path, &[]), boot_written_entry_next(path, &[7])] {
            assert!(refused.unwrap_err().to_string().contains("no boot entry of the installed system"));
        }
        assert!(boot_installed_system_next(path, &[Uuid::from_u128(3)]).is_err());
    }
}
