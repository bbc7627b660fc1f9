//! Next action of the agent on reconstructed disks. It follows from the inventory that the agent would collect, and
//! from the response that the server would send at that moment.
//!
//! The agent's own code probes the wiped disks, as files instead of devices. Preserved disks are known to be unchanged,
//! so their inventory from before the reinstall is used. Only the superblocks of their arrays are read, which contain
//! event counts. The plan is a pure function of inventory and response, so equal states have the same plan.

mod boot_loader;
mod plan_write_bounds;

pub use plan_write_bounds::PlanBounds;

use crate::crash_states::ReplayedDisk;
use crate::host_tools::{Context, Result, limit_command, write};
use boot_loader::boots_filesystem;
use linux::probe::{self, ProbeDepth, ProbeRoots};
use model::device_name::DevicePath;
use model::install_marker::InstallMarker;
use model::inventory::{
    self, DeviceUse, DiskPartition, FilesystemContents, FirmwareType, InspectionFailure, InspectionTarget, Inventory,
    MemberRole,
};
use plan_write_bounds::test_plan_checks;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// Offset of the superblock in an ext4 filesystem, in bytes (struct ext4_super_block in fs/ext4/ext4.h).
const EXT4_SUPERBLOCK: u64 = 1024;
/// Offset of the superblock of metadata 1.2 in a member, in bytes (struct mdp_superblock_1 in linux/raid/md_p.h).
const MD_SUPERBLOCK: u64 = 4096;
/// Offset of the event count in the superblock of metadata 1.2, in bytes.
const MD_EVENTS: u64 = 200;
/// Texts for actions of the agent, apart from refusals.
pub const REINSTALL: &str = "reinstall";
pub const BOOT: &str = "boot the system on the disks";

/// Presentation of the reconstructed disks as devices.
pub struct DevicePresentation<'a> {
    base: &'a Inventory,
    roots: ProbeRoots,
    /// Names of the disks that the reinstall wipes, completely or except for preserved partitions.
    wiped: Vec<String>,
}

/// Contents of reconstructed disks, as the agent would find them.
pub struct ReconstructedContents {
    pub inventory: Inventory,
    /// True if the firmware could boot the disks, because they contain a boot loader and a system with a kernel.
    pub bootable: bool,
}

impl<'a> DevicePresentation<'a> {
    /// Creates links to the disks in this folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be filled.
    pub fn new(
        base: &'a Inventory,
        disks: &[ReplayedDisk],
        wiped: &[String],
        folder: &Path,
    ) -> Result<DevicePresentation<'a>> {
        let at = |name: &str| folder.join(name);
        let put = |name: String, text: String| {
            let path = at(&name);
            fs::create_dir_all(path.parent().unwrap_or(folder)).context(path.display())?;
            write(&path, text)
        };
        put("proc/cpuinfo".to_owned(), String::new())?;
        put("proc/meminfo".to_owned(), "MemTotal: 1048576 kB\n".to_owned())?;
        put("proc/self/mountinfo".to_owned(), String::new())?;
        put("proc/swaps".to_owned(), String::new())?;
        fs::create_dir_all(at("dev")).context(folder.display())?;
        fs::create_dir_all(at("sys/block")).context(folder.display())?;
        for disk in disks.iter().filter(|disk| wiped.contains(&disk.name)) {
            let name = &disk.name;
            let known = base.disks.iter().find(|known| known.name == *name).ok_or(format!("no disk {name}"))?;
            put(format!("sys/devices/{name}/size"), format!("{}\n", known.size_bytes / 512))?;
            put(format!("sys/devices/{name}/queue/logical_block_size"), format!("{}\n", known.sector_bytes))?;
            put(format!("sys/devices/{name}/ro"), "0\n".to_owned())?;
            symlink(format!("../devices/{name}"), at("sys/block").join(name)).context(name)?;
        }
        let roots = ProbeRoots { sys: at("sys"), proc: at("proc"), dev: at("dev") };
        Ok(DevicePresentation { base, roots, wiped: wiped.to_vec() })
    }

    /// Links the device names to these disks, which can be others than in the previous call.
    fn link_disks(&self, disks: &[ReplayedDisk]) -> Result<()> {
        for disk in disks.iter().filter(|disk| self.wiped.contains(&disk.name)) {
            let link = self.roots.dev.join(&disk.name);
            if fs::read_link(&link).is_ok() {
                fs::remove_file(&link).context(link.display())?;
            }
            symlink(&disk.path, &link).context(link.display())?;
        }
        Ok(())
    }

    /// Returns the inventory that the agent would collect from these disks after it has assembled and inspected
    /// everything.
    ///
    /// # Errors
    /// Fails if the disks cannot be probed.
    pub fn probe_disks(&self, disks: &[ReplayedDisk]) -> Result<ReconstructedContents> {
        self.link_disks(disks)?;
        let probed = probe::read_inventory_at(&self.roots, ProbeDepth::Deep).map_err(|error| error.to_string())?;
        let mut found = self.base.clone();
        let (mut bootable, is_uefi) = (false, self.base.system.firmware == FirmwareType::Uefi);
        let is_wiped = |device: &DevicePath| self.wiped.iter().any(|name| is_on(device.as_str(), name));
        found.filesystems.retain(|filesystem| !is_wiped(&filesystem.device));
        found.parts.retain(|part| !is_wiped(&part.device));
        found.parts.extend(probed.parts);
        found.unknown.extend(probed.unknown);
        found.arrays.extend(probed.arrays);
        for new in probed.disks {
            let Some(disk) = disks.iter().find(|disk| disk.name == new.name) else { continue };
            let Some(place) = found.disks.iter().position(|old| old.name == new.name) else { continue };
            let parts: Vec<&DiskPartition> = new.table.iter().flat_map(|table| &table.partitions).collect();
            for part in parts.iter().copied() {
                if !matches!(&part.signatures[..], [one] if one.kind == "ext4") {
                    continue;
                }
                match read_filesystem(disk, part)? {
                    Ok(inside) => {
                        bootable |= has_kernel(disk, part)? && boots_filesystem(disk, &parts, part, is_uefi)?;
                        found.filesystems.push(inside);
                    }
                    Err(why) => found
                        .failed
                        .push(InspectionFailure { tried: InspectionTarget::Filesystem(part.device.clone()), why }),
                }
            }
            let old = &mut found.disks[place];
            (old.table, old.signatures, old.unreadable, old.blank, old.uses) =
                (new.table, new.signatures, new.unreadable, new.blank, new.uses);
        }
        count_events(&mut found, disks)?;
        Ok(ReconstructedContents { inventory: found, bootable })
    }
}

/// Returns the inventory as the agent finds it in its ramdisk: the inspected filesystems are unmounted again, and the
/// agent itself has started all arrays and volumes.
pub fn remove_inspection_uses(mut found: Inventory) -> Inventory {
    let stop = |uses: &mut Vec<DeviceUse>| uses.retain(|usage| matches!(usage, DeviceUse::Holder(_)));
    for disk in &mut found.disks {
        stop(&mut disk.uses);
        disk.table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| stop(&mut part.uses));
    }
    for stacked in &mut found.stacked {
        stop(&mut stacked.uses);
        stacked.assembled = true;
    }
    found
}

/// Returns whether the device is this disk or one of its partitions.
pub fn is_on(device: &str, disk: &str) -> bool {
    let rest = device.strip_prefix("/dev/").and_then(|name| name.strip_prefix(disk));
    let separator = if disk.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix(separator).is_some_and(|number| number.parse::<u32>().is_ok())
    })
}

/// Runs debugfs on the partition, and returns its output and its error messages. Like the agent's inspection, debugfs
/// does not replay the journal.
fn run_debugfs(disk: &ReplayedDisk, part: &DiskPartition, request: &str) -> Result<(Vec<u8>, String)> {
    let place = format!("{}?offset={}", disk.path.display(), part.start_bytes);
    let output = limit_command(&["debugfs", "-R", request, &place]).output().context("debugfs")?;
    if !output.status.success() {
        return Err(format!("debugfs (package e2fsprogs) ended with {}", output.status));
    }
    let words = String::from_utf8_lossy(&output.stderr);
    // The first line is the version of debugfs.
    let words = words.lines().skip(1).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    Ok((output.stdout, words))
}

/// Returns the filesystem on a partition, or the reason why it cannot be mounted.
fn read_filesystem(
    disk: &ReplayedDisk,
    part: &DiskPartition,
) -> Result<std::result::Result<FilesystemContents, String>> {
    let (marker, words) = run_debugfs(disk, part, &format!("cat {}", model::install_marker::PATH))?;
    if words.contains("Filesystem not open") {
        return Ok(Err(words));
    }
    let mut block = [0; 32];
    let superblock = part.start_bytes + EXT4_SUPERBLOCK;
    disk.file.read_exact_at(&mut block, superblock).context(disk.path.display())?;
    let number = |at: usize| u64::from(u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]));
    let (blocks, free, block_bytes) = (number(4), number(12), 1024 << number(24).min(6));
    let (marker, unreadable_marker) = match serde_json::from_slice::<InstallMarker>(&marker) {
        _ if marker.is_empty() => (None, None),
        Ok(marker) => (Some(marker), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Ok(FilesystemContents {
        device: part.device.clone(),
        size_bytes: blocks * block_bytes,
        used_bytes: blocks.saturating_sub(free) * block_bytes,
        marker,
        unreadable_marker,
        sparse: Vec::new(),
        fstab: None,
    }))
}

fn has_kernel(disk: &ReplayedDisk, part: &DiskPartition) -> Result<bool> {
    let (found, _) = run_debugfs(disk, part, "stat /boot/vmlinuz")?;
    Ok(String::from_utf8_lossy(&found).contains("Type: regular"))
}

/// Excludes array members whose event counts are outdated. As in mdadm, a difference of one event is allowed, because
/// the missing event may be the stop of the array.
fn count_events(found: &mut Inventory, disks: &[ReplayedDisk]) -> Result<()> {
    for array in found.arrays.iter_mut().filter(|array| array.metadata == "1.2") {
        let mut events = Vec::new();
        for member in &array.members {
            let mut parts = found.disks.iter().flat_map(|disk| {
                let parts = disk.table.iter().flat_map(|table| &table.partitions);
                parts.map(move |part| (&disk.name, part))
            });
            let place = parts.find(|(_, part)| part.device == member.device);
            let disk = place.and_then(|(name, part)| Some((disks.iter().find(|disk| disk.name == *name)?, part)));
            let (disk, part) = disk.ok_or(format!("no disk with {}", member.device))?;
            let mut count = [0; 8];
            let at = part.start_bytes + MD_SUPERBLOCK + MD_EVENTS;
            disk.file.read_exact_at(&mut count, at).context(disk.path.display())?;
            events.push(u64::from_le_bytes(count));
        }
        let latest = events.iter().copied().max().unwrap_or_default();
        for (member, own) in array.members.iter_mut().zip(events) {
            if own.saturating_add(1) < latest {
                member.role = MemberRole::Faulty;
            }
        }
    }
    Ok(())
}

/// Tests that partitions and disks are distinguished, that reconstructed disks are probed, and that a plan beyond its
/// limits is detected.
pub fn self_test() {
    assert!(["/dev/vda", "/dev/vda1", "/dev/vda12"].iter().all(|device| is_on(device, "vda")));
    assert!(["/dev/vdaa", "/dev/vdb", "/dev/md/data", "vda"].iter().all(|device| !is_on(device, "vda")));
    assert!(is_on("/dev/nvme0n1p2", "nvme0n1") && !is_on("/dev/nvme0n12", "nvme0n1"));
    test_disk_probing();
    boot_loader::test_uefi_loaders();
    test_plan_checks();
}

fn test_disk_probing() {
    let folder = crate::write_log::test_folder("crash-plan");
    let mut disk = crate::crash_states::test_disk(&folder, "vda", &[(0, 128, 4), (16, 1, 0), (24, 1, 0)]);
    let known = inventory::InventoryDisk {
        name: "vda".into(),
        device: "/dev/vda".into(),
        size_bytes: 65536,
        ..Default::default()
    };
    let base =
        Inventory { disks: vec![inventory::InventoryDisk { sector_bytes: 512, ..known }], ..Inventory::default() };
    disk.advance_to(1).expect("the discard");
    let disks = [disk];
    let look = DevicePresentation::new(&base, &disks, &["vda".to_owned()], &folder.join("machine")).expect("a machine");
    let is_blank = |disks: &[ReplayedDisk]| {
        let seen = look.probe_disks(disks).expect("an inventory");
        assert!(!seen.bootable && seen.inventory.disks.len() == 1 && seen.inventory.disks[0].unreadable.is_none());
        seen.inventory.disks[0].blank
    };
    assert!(is_blank(&disks), "discarded ranges are zero");
    let [mut disk] = disks;
    disk.advance_to(2).expect("a write");
    assert!(!is_blank(&[disk]));
    fs::remove_dir_all(&folder).expect("removed");
}
