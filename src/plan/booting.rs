//! Boot entries for the firmware.

use super::{BootEntries, Finishing, OfRun, Operation};
use crate::allocation::Finish;
use crate::inventory::Firmware;

/// Returns the boot entries if the agent installs the boot loader, or may have to; an installer of the image writes its own entries.
pub fn entries(finishing: &Finishing) -> Option<Operation> {
    let made_here = matches!(finishing.way, Finish::Auto | Finish::Builtin);
    if made_here { to(finishing, finishing.way == Finish::Auto) } else { None }
}

/// Returns the boot entries for a received system, which the firmware of this machine does not have yet, whatever finished it.
pub fn entries_of_moved(finishing: &Finishing) -> Option<Operation> {
    to(finishing, false)
}

fn to(finishing: &Finishing, unless_installer: bool) -> Option<Operation> {
    if finishing.firmware != Firmware::Uefi || finishing.esps.is_empty() {
        return None;
    }
    let allocation = &finishing.files.assigned.allocation;
    // An offline plan may have no hostname.
    let name = if allocation.hostname.is_empty() { &finishing.files.machine } else { &allocation.hostname };
    Some(Operation::Run(OfRun::WriteBootEntries(BootEntries {
        label: format!("drophammer: {name}"),
        esps: finishing.esps.clone(),
        order: allocation.boot_order,
        unless_installer,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{Allocation, BootOrder};
    use crate::plan::{Assigned, Esp, MachineFiles};

    #[test]
    fn the_firmware_is_told_where_it_boots_what_the_agent_makes() {
        let esp = Esp { device: "/dev/sda1".into(), ..Esp::default() };
        let of = |firmware, way, esps: &[Esp]| {
            let allocation =
                Allocation { hostname: "web-1".into(), boot_order: BootOrder::Disk, ..Allocation::default() };
            let assigned = Assigned { allocation, ..Assigned::default() };
            let files = Box::new(MachineFiles { assigned, ..MachineFiles::default() });
            entries(&Finishing { way, firmware, esps: esps.to_vec(), files, ..Finishing::default() })
        };
        let one = [esp.clone()];
        for way in [Finish::Auto, Finish::Builtin] {
            let Some(Operation::Run(OfRun::WriteBootEntries(entries))) = of(Firmware::Uefi, way, &one) else {
                panic!("no entries")
            };
            assert_eq!(entries.label, "drophammer: web-1");
            assert_eq!((entries.esps.as_slice(), entries.order), (&one[..], BootOrder::Disk));
            assert_eq!(entries.unless_installer, way == Finish::Auto);
        }
        for (firmware, way, esps) in [
            (Firmware::Bios, Finish::Builtin, &one[..]),
            (Firmware::Uefi, Finish::Image, &one),
            (Firmware::Uefi, Finish::None, &one),
            (Firmware::Uefi, Finish::Builtin, &[]),
        ] {
            assert_eq!(of(firmware, way, esps), None, "{firmware:?} {way:?}");
        }
    }
}
