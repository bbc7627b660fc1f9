//! Boot entries for the firmware.

use model::allocation::FinisherChoice;
use model::inventory::FirmwareType;
use operations::{FinishInputs, Operation, SessionOp, WriteBootEntries};
use uuid::Uuid;

/// Returns the operation that writes the boot entries; `None` if the agent must not install the boot loader, or if
/// the machine has no UEFI firmware or EFI system partition. With [`FinisherChoice::Auto`], the operation writes no
/// entries if the image has an installer, because that installer writes its own entries. The entries for the
/// `preserved` partitions remain.
pub(crate) fn write_entries(finishing: &FinishInputs, preserved: Vec<Uuid>) -> Option<Operation> {
    let made_here = matches!(finishing.way, FinisherChoice::Auto | FinisherChoice::Builtin);
    made_here.then(|| build_operation(finishing, preserved, finishing.way == FinisherChoice::Auto)).flatten()
}

/// Returns the operation that writes the boot entries of a system received from another machine. If the image's
/// installer wrote entries, they are only in the firmware of the source machine.
pub(crate) fn write_entries_of_migrated(finishing: &FinishInputs, preserved: Vec<Uuid>) -> Option<Operation> {
    build_operation(finishing, preserved, false)
}

fn build_operation(finishing: &FinishInputs, preserved: Vec<Uuid>, unless_installer: bool) -> Option<Operation> {
    if finishing.firmware != FirmwareType::Uefi || finishing.esps.is_empty() {
        return None;
    }
    let allocation = &finishing.files.assigned.allocation;
    // The machine id is used if the hostname is missing, as in an offline plan.
    let name = if allocation.hostname.is_empty() { &finishing.files.machine } else { &allocation.hostname };
    Some(Operation::Run(SessionOp::WriteBootEntries(WriteBootEntries {
        label: format!("drophammer: {name}"),
        esps: finishing.esps.clone(),
        order: allocation.boot_order,
        preserved,
        unless_installer,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::{Allocation, BootOrder};
    use operations::{Esp, MachineFiles, PlanAssignment};

    #[test]
    fn builtin_finisher_writes_boot_entries_only_for_uefi_esps() {
        let esp = Esp { device: "/dev/sda1".into(), ..Esp::default() };
        let of = |firmware, way, esps: &[Esp]| {
            let allocation =
                Allocation { hostname: "web-1".into(), boot_order: BootOrder::Disk, ..Allocation::default() };
            let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
            let files = Box::new(MachineFiles { assigned, ..MachineFiles::default() });
            let inputs = FinishInputs { way, firmware, esps: esps.to_vec(), files, ..FinishInputs::default() };
            write_entries(&inputs, Vec::new())
        };
        let one = [esp.clone()];
        for way in [FinisherChoice::Auto, FinisherChoice::Builtin] {
            let Some(Operation::Run(SessionOp::WriteBootEntries(entries))) = of(FirmwareType::Uefi, way, &one) else {
                panic!("no entries")
            };
            assert_eq!(entries.label, "drophammer: web-1");
            assert_eq!((entries.esps.as_slice(), entries.order), (&one[..], BootOrder::Disk));
            assert_eq!(entries.unless_installer, way == FinisherChoice::Auto);
        }
        for (firmware, way, esps) in [
            (FirmwareType::Bios, FinisherChoice::Builtin, &one[..]),
            (FirmwareType::Uefi, FinisherChoice::Image, &one),
            (FirmwareType::Uefi, FinisherChoice::None, &one),
            (FirmwareType::Uefi, FinisherChoice::Builtin, &[]),
        ] {
            assert_eq!(of(firmware, way, esps), None, "{firmware:?} {way:?}");
        }
    }
}
