//! Operations on the boot variables of UEFI firmware.

use crate::operation_text::{DeviceSizes, OperationLine, strip_dev};
use crate::{Effect, Esp, PlannedOperation};
use model::allocation::BootOrder;
use serde::Serialize;
use uuid::Uuid;

/// Prefix of the descriptions of all boot entries that drophammer registers.
pub const OWN_PREFIX: &str = "drophammer: ";

/// Operation that registers boot entries for the installed system with the firmware, through efivarfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteBootEntries {
    /// Description of the entries, such as `drophammer: web-1`.
    pub label: String,
    /// EFI system partitions that may contain a boot loader. The code that makes the image bootable identifies a
    /// partition by its index in this list.
    pub esps: Vec<Esp>,
    pub order: BootOrder,
    /// GUIDs of the partitions from which preserved systems start. Entries of drophammer for these partitions are not
    /// changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preserved: Vec<Uuid>,
    /// True if entries are registered only for an image without an installer. An installer in the image registers its
    /// own entries.
    pub unless_installer: bool,
}

impl PlannedOperation for WriteBootEntries {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_boot_entries(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Describes new boot entries: `EFI entries "drophammer: web-1" for sda1, sdb1; PXE stays first`.
fn describe_boot_entries(WriteBootEntries { label, esps, order, unless_installer, .. }: &WriteBootEntries) -> String {
    let esps: Vec<&str> = esps.iter().map(|esp| strip_dev(&esp.device)).collect();
    let order = match order {
        BootOrder::Pxe => "PXE stays first",
        BootOrder::Disk => "first in the boot order",
        BootOrder::Keep => "boot order unchanged",
    };
    let unless = if *unless_installer { "; not written if the image has an installer" } else { "" };
    format!("EFI entries \"{label}\" for {esps}; {order}{unless}", esps = esps.join(", "))
}

/// Operation that removes the boot variables of earlier systems, and their numbers from the boot order. A variable
/// whose value has changed since the plan was made is not removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemoveVariables {
    pub variables: Vec<VariableRemoval>,
    /// True if the installation fails when a variable cannot be removed.
    pub required: bool,
}

impl PlannedOperation for RemoveVariables {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_removal(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_removal(removal: &RemoveVariables) -> String {
    let names: Vec<&str> = removal.variables.iter().map(|variable| variable.name.as_str()).collect();
    let required = if removal.required { "" } else { ", as far as the firmware permits" };
    format!("remove EFI variables {}{required}", names.join(", "))
}

/// A boot variable to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VariableRemoval {
    pub name: String,
    pub vendor: Uuid,
    /// SHA-256 of the planned value, in hexadecimal. A variable with another value is not removed. `None` if the
    /// variable is removed regardless of its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Operation that looks for a boot loader on the mounted EFI system partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindBootLoader;

impl PlannedOperation for FindBootLoader {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "find the boot loader of the image".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, SessionOp, operation_lines};

    #[test]
    fn boot_entries_are_described_with_partitions_and_order() {
        let esp = |device: &str| Esp { device: device.into(), ..Esp::default() };
        for (order, unless_installer, words) in [
            (BootOrder::Pxe, false, "PXE stays first"),
            (BootOrder::Disk, false, "first in the boot order"),
            (BootOrder::Keep, true, "boot order unchanged; not written if the image has an installer"),
        ] {
            let (label, esps) = ("drophammer: web-1".to_owned(), vec![esp("/dev/sda1"), esp("/dev/sdb1")]);
            let preserved = Vec::new();
            let entries = WriteBootEntries { label, esps, order, preserved, unless_installer };
            let operation = Operation::Run(SessionOp::WriteBootEntries(entries));
            let line = format!("EFI entries \"drophammer: web-1\" for sda1, sdb1; {words}");
            assert_eq!(operation_lines(&[operation], &DeviceSizes::new()), [line]);
        }
    }
}
