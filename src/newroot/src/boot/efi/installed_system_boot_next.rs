//! Selection of the boot entry of the installed system, for the next boot only. It replaces kexec on kernels without
//! kexec_file_load(2), such as Debian's kernels for arm64.

use super::network_boot_next::set_boot_next;
use common::error::{Error, Phase, Result};
use linux::efi::LoadOption;
use linux::efi::variables::{BootVariables, entry_name};
use operations::OWN_PREFIX;
use std::path::Path;

/// Makes the firmware start the installed system at the next boot, and returns the name of its boot entry, such as
/// `Boot0003`. Of several entries, the first one in the boot order is chosen.
///
/// # Errors
/// Fails if there is no active boot entry of drophammer, or if the firmware refuses the write.
pub fn boot_own_entry_next(directory: &Path) -> Result<String> {
    let variables = BootVariables::read(directory)?;
    let is_own = |value: &[u8]| {
        LoadOption::parse(value).is_some_and(|option| option.is_active() && option.description.starts_with(OWN_PREFIX))
    };
    let own = variables.entries.iter().filter(|(_, value)| is_own(value)).map(|(number, _)| *number);
    let place = |number: &u16| (variables.position_in_order(*number).unwrap_or(variables.order.len()), *number);
    let Some(number) = own.min_by_key(place) else {
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
    use uuid::Uuid;

    #[test]
    fn first_own_entry_in_the_order_is_next() {
        let directory = tempfile::tempdir().unwrap();
        let esp = PartitionLocation { number: 1, guid: Uuid::from_u128(1), first_lba: 2048, sectors: 1000 };
        let entry = |label: &str| LoadOption::for_file(label, esp, r"\EFI\debian\grubaa64.efi", "").unwrap();
        let refused = boot_own_entry_next(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("no boot entry of the installed system"), "{refused}");
        write(directory.path(), "Boot0000", &entry("UEFI PXEv4").to_bytes());
        write(directory.path(), "Boot0002", &entry("drophammer: web-1").to_bytes());
        write(directory.path(), "Boot0005", &entry("drophammer: web-1").to_bytes());
        write(directory.path(), "BootOrder", &[0, 0, 5, 0, 2, 0]);
        assert_eq!(boot_own_entry_next(directory.path()).unwrap(), "Boot0005");
        assert_eq!(read_variable(directory.path(), "BootNext"), Some(vec![5, 0]));
        // An entry that is not active is not started by the firmware.
        let mut off = entry("drophammer: web-1");
        off.attributes = 0;
        write(directory.path(), "Boot0005", &off.to_bytes());
        assert_eq!(boot_own_entry_next(directory.path()).unwrap(), "Boot0002");
    }
}
