//! Space for the boot loader of a BIOS machine on a partly kept disk. The boot loader is written between the partition
//! table and the first partition. A BIOS boot partition of the old system is removed, so its space belongs to this gap.

use super::image_boot_setup::gap_before;
use super::partition_placement::SectorExtent;
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use model::allocation::FinisherChoice;
use model::device_name::LayoutPath;
use model::inventory::{FirmwareType, InventoryDisk};
use operations::ByteRange;

/// Minimum size of the gap. GRUB's core image with all modules that drophammer adds is 205 KiB (GRUB 2.06).
const MINIMUM_GAP_BYTES: u64 = 384 << 10;

impl PlannerState<'_> {
    pub(crate) fn is_bios(&self) -> bool {
        self.inventory.system.firmware == FirmwareType::Bios
    }

    pub(crate) fn finisher(&self) -> FinisherChoice {
        self.request.assigned.allocation.finisher()
    }

    /// Returns the gap for the boot loader; `None` if the disk needs no boot loader. Refuses the plan if the gap is too
    /// small. `preserved` and `new` are the partitions of the disk after the installation.
    pub(crate) fn boot_gap(
        &mut self,
        device: &LayoutPath,
        found: &InventoryDisk,
        preserved: &[ByteRange],
        new: &[SectorExtent],
    ) -> Option<ByteRange> {
        if !self.is_bios() || !self.is_boot_disk(device) {
            return None;
        }
        let preserved = preserved.iter().map(|range| range.start / u64::from(found.sector_bytes.max(1)));
        let first = preserved.chain(new.iter().map(|extent| extent.first_lba)).min().unwrap_or_default();
        let gap = gap_before(first, found.sector_bytes);
        if gap.is_some_and(|gap| gap.length >= MINIMUM_GAP_BYTES) {
            return gap;
        }
        let space = match gap {
            None => format!("sectors of {} bytes", found.sector_bytes),
            Some(gap) => {
                format!("only {} between the partition table and the first partition", format_bytes(gap.length))
            }
        };
        let message = format!(
            "{device} has partitions that must be preserved, and {space}, but the boot loader of a BIOS machine requires {minimum} there on a \
             disk with sectors of 512 bytes; boot the machine with UEFI, or put /boot on another disk",
            device = found.device,
            minimum = format_bytes(MINIMUM_GAP_BYTES)
        );
        self.refuse(ErrorCode::NotReinstallable, "disks", message);
        None
    }

    /// Refuses the plan if the boot loader of a BIOS machine must be written, but all disks on which the BIOS looks
    /// for it are preserved. Neither the agent nor the image's installer, which lacks the device nodes of preserved
    /// disks, can write it there. If one of the disks is written, the others keep their boot loader, which reads the
    /// same filesystem.
    pub(crate) fn refuse_preserved_boot_disks(&mut self) {
        if !self.is_bios() || self.finisher() == FinisherChoice::None {
            return;
        }
        let disks = self.found.iter().filter(|(index, _)| self.is_boot_disk(&self.layout.disks[**index].device));
        let (written, preserved): (Vec<&InventoryDisk>, Vec<&InventoryDisk>) =
            disks.map(|(_, found)| *found).partition(|found| self.verdict(&found.name).is_written());
        // A preserved root filesystem was already refused.
        if preserved.is_empty() || !written.is_empty() || !self.decided.problems.is_empty() {
            return;
        }
        let names: Vec<&str> = preserved.iter().map(|disk| disk.device.as_str()).collect();
        let message = format!(
            "the boot loader of a BIOS machine must be written to the disk of /boot, but the whole disk must be preserved: {disks}; put \
             /boot on a disk that a reinstall wipes, set `preserve` for single partitions of the disk, or boot the machine with UEFI",
            disks = names.join(", ")
        );
        self.refuse(ErrorCode::NotReinstallable, "disks", message);
    }

    /// Returns whether the disk contains a part of `/boot`, or of `/` if `/boot` is not a separate filesystem.
    fn is_boot_disk(&self, device: &LayoutPath) -> bool {
        let at = |path: &str| self.layout.filesystems.iter().find(|one| one.path.as_deref() == Some(path));
        let Some(boot) = at("/boot").or_else(|| at("/")) else { return false };
        let below = self.graph.objects_below([&boot.device]);
        below.disks.into_iter().any(|index| self.layout.disks.get(index).is_some_and(|disk| disk.device == *device))
    }
}
