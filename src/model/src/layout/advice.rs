//! Advice about settings that are valid but probably not intended. Examples are layouts that can never be reinstalled,
//! layouts that UEFI machines cannot boot, sizes in the wrong unit, and impossible disk names.

use super::graph::LayoutGraph;
use super::preserved_objects::PreservedObjects;
use super::root_device_hints::advice;
use super::{DiskSpec, FilesystemFormat, FilesystemSpec, Layout, PartitionType, RaidLevel, RequestedSize};
use crate::device_name::LayoutPath;
use crate::disk_identifiers::names_placeholder;
use common::diagnostic::Diagnostic;

/// Size in MiB (64 TiB) that is larger than any existing disk.
const HUGE_MIB: u64 = 64 << 20;
/// Minimum size of an ESP, in MiB, at which advice is given, because the size was probably written in KiB. For
/// example, 524288 (512 MiB in KiB) is read as 512 GiB.
const HUGE_ESP_MIB: u64 = 32 << 10;
/// Size of a root filesystem, in MiB, below which advice is given: such a size was probably written in GiB, because no
/// image fits into so few MiB.
const TINY_ROOT_MIB: u64 = 64;

impl Layout {
    /// Returns advice for the author of the layout. The layout must be valid.
    pub(crate) fn collect_advice(&self) -> Vec<Diagnostic> {
        let mut said = Vec::new();
        self.advise_reinstall(&mut said);
        self.advise_uefi(&mut said);
        self.advise_sizes(&mut said);
        self.advise_disks(&mut said);
        self.advise_constraints(&mut said);
        said
    }

    fn advise_reinstall(&self, said: &mut Vec<Diagnostic>) {
        const NO_REINSTALL_CONSEQUENCE: &str = "so machines with this layout cannot be reinstalled";
        if !self.disks.iter().any(|disk| disk.wipeonreinstall) {
            return said.push(Diagnostic::new(
                "disks",
                format!("no disk has wipeonreinstall: true, {NO_REINSTALL_CONSEQUENCE}"),
            ));
        }
        let graph = LayoutGraph::from_layout(self);
        // Returns whether a reinstall wipes any of the disks below these devices, and whether it preserves any.
        let wipes = |devices: &[LayoutPath]| {
            let below = graph.objects_below(devices);
            let wiped = |wanted: bool| below.disks.iter().any(|disk| self.disks[*disk].wipeonreinstall == wanted);
            (wiped(true), wiped(false))
        };
        let arrays =
            self.raid.iter().enumerate().map(|(index, raid)| ("raid", index, raid.arrayname.as_str(), &raid.devices));
        let groups = self.volumegroups.iter().enumerate();
        let groups = groups.map(|(index, group)| ("volumegroups", index, group.name.as_str(), &group.devices));
        let preserved = PreservedObjects::from_graph(&graph);
        for (list, index, name, devices) in arrays.chain(groups) {
            let is_preserved = devices.iter().all(|device| preserved.includes_device(device));
            if wipes(devices) == (true, true) && !is_preserved {
                let message = format!(
                    "{name} spans disks that a reinstall wipes and disks that a reinstall preserves, {NO_REINSTALL_CONSEQUENCE}"
                );
                said.push(Diagnostic::new(format!("{list}[{index}].devices"), message));
            }
        }
        if let Some((index, root)) = self.find_mounted_at(&["/"])
            && wipes(std::slice::from_ref(&root.device)) == (false, true)
        {
            let message = format!(
                "/ is on a disk that a reinstall preserves, {NO_REINSTALL_CONSEQUENCE}: set wipeonreinstall: true on that disk"
            );
            said.push(Diagnostic::new(format!("filesystems[{index}].device"), message));
        }
    }

    fn advise_uefi(&self, said: &mut Vec<Diagnostic>) {
        said.extend(self.find_missing_esp());
    }

    /// Returns the reason why UEFI machines cannot boot this layout; `None` if they can. A raw image is not checked,
    /// because it contains its own EFI system partition.
    pub fn find_missing_esp(&self) -> Option<Diagnostic> {
        if self.disks.iter().any(|disk| disk.image) {
            return None;
        }
        let Some((index, esp)) =
            self.find_mounted_at(&["/boot/efi", "/efi", "/boot"]).filter(|(_, at)| at.format == FilesystemFormat::Vfat)
        else {
            let message =
                "no vfat filesystem is mounted at /boot/efi: UEFI machines cannot boot without an EFI system partition";
            return Some(Diagnostic::new("filesystems", message));
        };
        let what = self.explain_unusable_esp(&esp.device)?;
        let message = format!("{device} is used as the EFI system partition, but {what}", device = esp.device);
        Some(Diagnostic::new(format!("filesystems[{index}].device"), message))
    }

    fn explain_unusable_esp(&self, device: &LayoutPath) -> Option<String> {
        let mut parts = self.disks.iter().flat_map(|disk| disk.partitions.iter().map(move |part| (disk, part)));
        if let Some((_, part)) = parts.find(|(disk, part)| disk.device.partition_path(part.number) == *device) {
            let found = part.kind.unwrap_or(PartitionType::Linux);
            let said = || format!("its partition type is {code}: UEFI machines require type ef00", code = found.code());
            return (found != PartitionType::Boot).then(said);
        }
        if let Some(raid) = self.raid.iter().find(|raid| raid.arrayname == *device) {
            let metadata = self.effective_metadata(raid);
            let is_read = raid.level == RaidLevel::Raid1 && ["1.0", "0.90"].contains(&metadata.as_str());
            let said = || {
                let level = raid.level;
                format!(
                    "the array is {level} with metadata {metadata}: UEFI machines can read only members of raid1 with metadata 1.0"
                )
            };
            return (!is_read).then(said);
        }
        let kind =
            if self.disks.iter().any(|disk| disk.device == *device) { "a whole disk" } else { "a logical volume" };
        Some(format!("the device is {kind}: UEFI machines require a partition of type ef00"))
    }

    fn advise_sizes(&self, said: &mut Vec<Diagnostic>) {
        let mounts = |device: &LayoutPath, paths: &[&str]| {
            let mut on = self.filesystems.iter().filter(|filesystem| filesystem.device == *device);
            on.any(|filesystem| filesystem.path.as_deref().is_some_and(|path| paths.contains(&path)))
        };
        let mut advise = |place: String, device: &LayoutPath, size: RequestedSize| {
            let Some(size_mib) = size.as_mib() else { return };
            let is_esp = mounts(device, &["/boot/efi", "/efi"]);
            let unit = match size_mib {
                _ if size_mib >= HUGE_MIB && size_mib.is_multiple_of(1 << 20) => {
                    format!("if bytes were intended, write {size}", size = size_mib >> 20)
                }
                _ if size_mib >= HUGE_MIB || is_esp && size_mib >= HUGE_ESP_MIB => {
                    format!("if you meant KiB, write {size}", size = size_mib >> 10)
                }
                _ if size_mib < TINY_ROOT_MIB && mounts(device, &["/"]) => {
                    format!("if GiB were intended, write {size}", size = size_mib << 10)
                }
                _ => return,
            };
            let size = common::format::format_bytes(size_mib.saturating_mul(1 << 20));
            said.push(Diagnostic::new(place, format!("{device} is {size_mib} MiB ({size}): sizes are in MiB; {unit}")));
        };
        for (index, disk) in self.disks.iter().enumerate() {
            for (number, part) in disk.partitions.iter().enumerate() {
                let place = format!("disks[{index}].partitions[{number}].size");
                advise(place, &disk.device.partition_path(part.number), part.size);
            }
        }
        for (index, volume) in self.logicalvolumes.iter().enumerate() {
            advise(format!("logicalvolumes[{index}].size"), &volume.device_path(), volume.size);
        }
    }

    /// Reports constraints without effect: if only images or only sizes are constrained, the constraints never select
    /// the layout.
    fn advise_constraints(&self, said: &mut Vec<Diagnostic>) {
        let super::LayoutConstraints { sizes, images } = &self.constraints;
        let (missing, without_effect) = match (sizes.is_empty(), images.is_empty()) {
            (true, false) => ("sizes", "images"),
            (false, true) => ("images", "sizes"),
            _ => return,
        };
        let message = format!(
            "the list is empty, so constraints.{without_effect} has no effect, and the layout is used only by \
            allocations that specify this layout; add {missing} to the list, or remove constraints.{without_effect}"
        );
        said.push(Diagnostic::new(format!("constraints.{missing}"), message));
    }

    fn advise_disks(&self, said: &mut Vec<Diagnostic>) {
        for (index, disk) in self.disks.iter().enumerate() {
            if let Some(message) = check_disk_name(disk) {
                said.push(Diagnostic::new(format!("disks[{index}].device"), message));
            }
            for (hint, message) in advice::collect_doubts(&disk.hints) {
                said.push(Diagnostic::new(format!("disks[{index}].hints.{hint}"), message));
            }
        }
    }

    fn find_mounted_at(&self, paths: &[&str]) -> Option<(usize, &FilesystemSpec)> {
        let at = |path: &&str| self.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some(path));
        let index = paths.iter().find_map(at)?;
        Some((index, &self.filesystems[index]))
    }
}

fn check_disk_name(disk: &DiskSpec) -> Option<String> {
    let name = disk.device.as_str().strip_prefix("/dev/")?;
    if disk.hints.is_empty() && names_placeholder(disk.device.as_str()) {
        return Some(format!(
            "the device name {device} contains a placeholder that many disks report, so the name does not identify a disk",
            device = disk.device
        ));
    }
    if !disk.hints.is_empty() || ["disk/by-id/", "disk/by-path/"].iter().any(|start| name.starts_with(start)) {
        return None;
    }
    let message = match is_kernel_disk(name) {
        true => return None,
        false if name.starts_with("disk/by-") => {
            "links of this type are not supported: use /dev/disk/by-id or /dev/disk/by-path".to_owned()
        }
        false => match suggest_disk(disk.device.as_str()) {
            Some(likely) => {
                format!("{device} is not a kernel name of a disk; did you mean {likely}?", device = disk.device)
            }
            None => format!("{device} is not a kernel name of a disk, so no machine has it", device = disk.device),
        },
    };
    Some(message)
}

/// Prefixes of the kernel names that consist of a prefix and letters, such as `sda`.
const LETTERED: [&str; 6] = ["sd", "vd", "hd", "xvd", "dasd", "rssd"];
const NUMBERED: [&str; 5] = ["mmcblk", "pmem", "nbd", "loop", "md"];

/// Returns whether a name can be the kernel name of a disk. Returns false for the name of a partition.
pub(super) fn is_kernel_disk(name: &str) -> bool {
    let some = |text: &str, is: fn(u8) -> bool| !text.is_empty() && text.bytes().all(is);
    let digits = |text: &str| some(text, |byte| byte.is_ascii_digit());
    let lettered =
        |start: &&str| name.strip_prefix(*start).is_some_and(|rest| some(rest, |byte| byte.is_ascii_lowercase()));
    let nvme = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    LETTERED.iter().any(lettered)
        || NUMBERED.iter().any(|start| name.strip_prefix(start).is_some_and(digits))
        || nvme.is_some_and(|(controller, namespace)| digits(controller) && digits(namespace))
}

/// Returns the path that the author probably intended if a path cannot be the path of a disk: `/dev/nvme0n1` for
/// `/dev/nvmne0n1`.
pub(crate) fn suggest_disk(device: &str) -> Option<String> {
    let name = device.strip_prefix("/dev/").filter(|name| !is_kernel_disk(name) && name.len() <= 32)?;
    let letters = name.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (word, rest) = name.split_at(letters);
    let known = NUMBERED.iter().chain(&["nvme"]).filter(|known| strsim::damerau_levenshtein(word, known) <= 1);
    let named = known.map(|known| format!("{known}{rest}")).find(|name| is_kernel_disk(name));
    // If the name is that of a partition, the disk that contains the partition is suggested.
    let whole = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let whole = [whole, whole.strip_suffix('p').unwrap_or(whole)]
        .into_iter()
        .find(|whole| *whole != name && is_kernel_disk(whole));
    named.or(whole.map(str::to_owned)).map(|name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::read_yaml;

    /// Returns the advice for a valid layout whose text was changed by these replacements.
    fn advise_replaced(replaced: &[(&str, &str)]) -> Vec<String> {
        let mut text = "id: x
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, size: 500, gpttype: ef00}, {number: 2, size: 5000}, {number: 3, size: 0}]
- device: /dev/sdb
filesystems:
- {path: /boot/efi, device: /dev/sda1, format: vfat}
- {path: /, device: /dev/sda2, format: ext4}
constraints: {sizes: [], images: {}}
"
        .to_owned();
        for (old, new) in replaced {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        let layout = read_yaml(&text).unwrap_or_else(|problems| panic!("{text}{problems:?}")).layout;
        layout.collect_advice().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn advises_about_probable_mistakes() {
        let never = "so machines with this layout cannot be reinstalled";
        for (replaced, expected) in [
            (&[][..], &[][..]),
            (&[("sizes: []", "sizes: [c1]"), ("images: {}", "images: {debian: '*'}")], &[]),
            (
                &[("images: {}", "images: {debian: '*'}")],
                &["constraints.sizes: the list is empty, so constraints.images has no"],
            ),
            (
                &[("sizes: []", "sizes: [c1]")],
                &["constraints.images: the list is empty, so constraints.sizes has no effect"],
            ),
            (&[("wipeonreinstall: true", "wipeonreinstall: false")], &["disks: no disk has wipeonreinstall: true, "]),
            (
                &[
                    ("wipeonreinstall: true", "wipeonreinstall: false"),
                    ("/dev/sdb", "/dev/sdb\n  wipeonreinstall: true"),
                ],
                &["filesystems[1].device: / is on a disk that a reinstall preserves, so"],
            ),
            (
                &[("constraints", "volumegroups: [{name: vg, devices: [/dev/sda3, /dev/sdb]}]\nconstraints")],
                &[
                    "volumegroups[0].devices: vg spans disks that a reinstall wipes and disks that a reinstall preserves, so",
                ],
            ),
            (
                &[(
                    "constraints",
                    "raid: [{arrayname: /dev/md0, level: \"1\", devices: [/dev/sda3, /dev/sdb]}]\nconstraints",
                )],
                &[
                    "raid[0].devices: /dev/md0 spans disks that a reinstall wipes and disks that a reinstall preserves, so",
                ],
            ),
            (&[("path: /boot/efi", "path: /srv")], &["filesystems: no vfat filesystem is mounted at /boot/efi: UEFI"]),
            (
                &[(", gpttype: ef00", "")],
                &[
                    "filesystems[0].device: /dev/sda1 is used as the EFI system partition, but its partition type is 8300: UEFI",
                ],
            ),
            (
                &[("/dev/sda1, format", "/dev/sdb, format")],
                &[
                    "filesystems[0].device: /dev/sdb is used as the EFI system partition, but the device is a whole disk: UEFI",
                ],
            ),
            (
                &[("size: 5000", "size: 5242880000")],
                &[
                    "disks[0].partitions[1].size: /dev/sda2 is 5242880000 MiB (5.50 PB): sizes are in MiB; if bytes were intended, write 5000",
                ],
            ),
            (
                &[("size: 500,", "size: 512000,")],
                &[
                    "disks[0].partitions[0].size: /dev/sda1 is 512000 MiB (537 GB): sizes are in MiB; if you meant KiB, write 500",
                ],
            ),
            (
                &[("size: 5000", "size: 50")],
                &[
                    "disks[0].partitions[1].size: /dev/sda2 is 50 MiB (52.4 MB): sizes are in MiB; if GiB were intended, write 51200",
                ],
            ),
            (
                &[("/dev/sdb", "/dev/nvmne0n1")],
                &["disks[1].device: /dev/nvmne0n1 is not a kernel name of a disk; did you mean /dev/nvme0n1?"],
            ),
            (
                &[("/dev/sdb", "/dev/sdb1")],
                &["disks[1].device: /dev/sdb1 is not a kernel name of a disk; did you mean /dev/sdb?"],
            ),
            (&[("/dev/sdb", "/dev/disk/by-uuid/x")], &["disks[1].device: links of this type are not supported"]),
            (
                &[("/dev/sdb", "/dev/data")],
                &["disks[1].device: /dev/data is not a kernel name of a disk, so no machine has it"],
            ),
            (&[("/dev/sdb", "/dev/disk/by-id/wwn-0x5")], &[]),
            (
                &[("/dev/sdb", "/dev/disk/by-id/wwn-0x0000000000000000")],
                &[
                    "disks[1].device: the device name /dev/disk/by-id/wwn-0x0000000000000000 contains a placeholder that many",
                ],
            ),
            (
                &[("/dev/sdb", "data\n  hints: {name: nvmne0n1, tran: pata, size: \"> 500000\"}")],
                &[
                    "disks[1].hints.name: nvmne0n1 is not a kernel name of a disk; did you mean /dev/nvme0n1?",
                    "disks[1].hints.size: no existing disk has 500000 GiB",
                    "disks[1].hints.tran: pata is not a transport; supported: ",
                ],
            ),
        ] {
            let found = advise_replaced(replaced);
            assert_eq!(found.len(), expected.len(), "{replaced:?}: {found:#?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
                assert!(!expected.ends_with("so") || found.contains(never), "{found}");
            }
        }
    }

    #[test]
    fn disk_names_are_distinguished_from_misspelt_ones() {
        for name in ["sda", "sdaa", "vdb", "xvda", "nvme0n1", "nvme10n2", "mmcblk0", "pmem0", "dasda", "md127"] {
            assert!(is_kernel_disk(name) && suggest_disk(&format!("/dev/{name}")).is_none(), "{name}");
        }
        for (name, likely) in [
            ("nvmne0n1", Some("/dev/nvme0n1")),
            ("nvem1n1", Some("/dev/nvme1n1")),
            ("nvme0n1p2", Some("/dev/nvme0n1")),
            ("sda1", Some("/dev/sda")),
            ("mmcblk0p1", Some("/dev/mmcblk0")),
            ("root", None),
            ("SDA", None),
            ("é0n1", None),
        ] {
            assert_eq!(suggest_disk(&format!("/dev/{name}")).as_deref(), likely, "{name}");
            assert!(!is_kernel_disk(name), "{name}");
        }
    }
}
