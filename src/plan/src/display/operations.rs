//! Operations of a stage, as lines. The same operation on several devices is one line.

use super::{bootable, luks, migration, strip_dev};
use crate::sectors::MIB;
use crate::{
    ActivateGroup, ArraySlot, AssembleArray, BootEntries, BootOrder, BurnDisk, CreateArray, CreateGroup, CreateSystem,
    CreateVolume, DeviceOp, FinalReport, Holder, InjectedFile, MakeFilesystem, MountFilesystem, OpenContainer,
    Operation, PartitionTable, PreparePersistent, PreservedObject, Rehearsal, RemoveVariables, SessionOp, SparseVolume,
    TryArray, TryFilesystem, VolumeFilling, WipeDisk, WritePersistent, ZeroProof,
};
use common::format::{self, format_bytes, format_seconds};
use model::device::DevicePath;
use model::inventory::EraseMethod;
use model::layout::RequestedSize;
use std::collections::BTreeMap;

/// Size in bytes by device path, if known.
type DeviceSizes = BTreeMap<DevicePath, u64>;

/// Returns one text for each operation, or for each group of equal operations.
pub fn operation_lines(operations: &[Operation], sizes: &DeviceSizes) -> Vec<String> {
    let mut said: Vec<(Vec<&str>, OperationText)> = Vec::new();
    for operation in operations {
        let (device, what) = describe_operation(operation, sizes);
        match said.iter_mut().find(|(devices, before)| *before == what && !devices.is_empty() && device.is_some()) {
            Some((devices, _)) => devices.extend(device),
            None => said.push((device.into_iter().collect(), what)),
        }
    }
    said.into_iter().flat_map(|(devices, what)| what.lines(&devices.join(", "))).collect()
}

/// Text about devices: before their names, after them, and on the lines below.
#[derive(PartialEq, Eq)]
pub(super) struct OperationText {
    before: String,
    after: String,
    below: Vec<String>,
}

impl OperationText {
    pub(super) fn after(after: impl Into<String>) -> OperationText {
        OperationText { before: String::new(), after: after.into(), below: Vec::new() }
    }

    pub(super) fn with(self, below: Vec<String>) -> OperationText {
        OperationText { below, ..self }
    }

    pub(super) fn and(mut self, line: Option<String>) -> OperationText {
        self.below.extend(line);
        self
    }

    fn before(before: &str) -> OperationText {
        OperationText { before: before.to_owned(), after: String::new(), below: Vec::new() }
    }

    fn lines(self, devices: &str) -> Vec<String> {
        let first = format!("{}{devices}{}", self.before, self.after);
        std::iter::once(first).chain(self.below.into_iter().map(|line| format!("  {line}"))).collect()
    }
}

/// Returns the device of an operation that can share a line with others, and the text.
fn describe_operation<'a>(operation: &'a Operation, sizes: &DeviceSizes) -> (Option<&'a str>, OperationText) {
    match operation {
        Operation::Device(operation) => describe_device_op(operation, sizes),
        Operation::Run(operation) => describe_session_op(operation, sizes),
    }
}

fn describe_device_op<'a>(operation: &'a DeviceOp, sizes: &DeviceSizes) -> (Option<&'a str>, OperationText) {
    let alone = |line: String| (None, OperationText::after(line));
    match operation {
        DeviceOp::Release(holder) => describe_release(holder),
        DeviceOp::AssertFree { disks } => alone(format!("check that nothing holds {}", join_devices(disks))),
        DeviceOp::ProveZeros(proofs) => alone(describe_zero_proofs(proofs)),
        DeviceOp::WipeDisk(disk) => {
            (Some(strip_dev(&disk.device)), OperationText::after(format!(": {}", describe_erasure(disk))))
        }
        DeviceOp::WriteTable(table) => (
            Some(strip_dev(&table.device)),
            OperationText { before: String::new(), after: ": GPT".to_owned(), below: partition_rows(table) },
        ),
        DeviceOp::CreateArray(array) => alone(describe_array(array) + &describe_size(sizes, &array.device)),
        DeviceOp::CreateGroup(group) => alone(describe_group(group)),
        DeviceOp::CreateVolume(volume) => alone(describe_logical_volume(volume, sizes)),
        DeviceOp::CreateContainer(container) => alone(luks::describe_creation(container)),
        DeviceOp::OpenContainer(OpenContainer { container, read_only }) => {
            let read_only = if *read_only { " read-only" } else { "" };
            alone(format!("open {}{read_only}, key: {}", strip_dev(&container.device), container.source))
        }
        DeviceOp::CloseContainer { mapping } => (Some(strip_dev(mapping)), OperationText::before("close ")),
        DeviceOp::TakeDown { devices } => {
            alone(format!("stop arrays and mappings on {} that were assembled for inspection", join_devices(devices)))
        }
        DeviceOp::AssembleArray(AssembleArray { device, members, .. }) => {
            alone(format!("assemble {} ({})", strip_dev(device), join_devices(members)))
        }
        DeviceOp::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
            alone(format!("activate {} of {name} ({})", volumes.join(", "), join_devices(devices)))
        }
        DeviceOp::TryArray(trial) => alone(describe_array_trial(trial)),
        DeviceOp::TryFilesystem(trial) => alone(describe_filesystem_trial(trial)),
        DeviceOp::MakeFilesystem(make) => alone(describe_filesystem(make) + &describe_size(sizes, &make.device)),
        DeviceOp::PreparePersistent(volume) => alone(describe_volume(volume)),
        DeviceOp::DeactivateGroup { name, .. } => (Some(name), OperationText::before("deactivate ")),
        DeviceOp::StopArray { device } => (Some(strip_dev(device)), OperationText::before("stop ")),
    }
}

fn describe_session_op<'a>(operation: &'a SessionOp, sizes: &DeviceSizes) -> (Option<&'a str>, OperationText) {
    let alone = |line: String| (None, OperationText::after(line));
    match operation {
        SessionOp::ReachImage { url, .. } => alone(format!("query {url} for size and digest")),
        SessionOp::VerifyDefinition { os, parameters, .. } => alone(describe_verify(os, parameters)),
        SessionOp::FindPrograms { os, programs } => {
            alone(format!("check for programs of create of {os}: {}", programs.join(", ")))
        }
        SessionOp::IdentifyDisk(disk) => {
            (Some(strip_dev(&disk.device)), OperationText::after(": size, serial and WWN as planned"))
        }
        SessionOp::CheckContainers(containers) => alone(luks::describe_check(containers)),
        SessionOp::LockDisk { device, .. } => (Some(strip_dev(device)), OperationText::after(" read-only")),
        SessionOp::UnlockDisk { device, others } => {
            (Some(strip_dev(device)), OperationText::after(describe_unlock(others)))
        }
        SessionOp::Mount(filesystem) => alone(describe_mount(filesystem)),
        SessionOp::MountReadOnly(filesystem) => alone(describe_mount(filesystem)),
        SessionOp::BurnDisk(disk) => (None, describe_raw_image(disk)),
        SessionOp::CreateSystem(create) => (None, describe_create(create)),
        SessionOp::Receive(receive) => (None, migration::describe_migration(receive)),
        SessionOp::AdaptMoved(finishing) => (None, bootable::describe_migrated(finishing)),
        SessionOp::GrowFilesystem(mount) => {
            alone(format!("{}: grow {} to the size of its partition", strip_dev(&mount.device), mount.format))
        }
        SessionOp::BurnImage { name, hidden, merged, .. } => (None, describe_image(name, hidden, merged)),
        SessionOp::WriteMachineFiles { files } => {
            let more = if files.assigned.allocation.definition.is_some() { ", os-parameters" } else { "" };
            alone(format!("/etc/metal/install.yaml, userdata, disk.json{more}"))
        }
        SessionOp::InjectFiles(files) => (None, describe_injection(files)),
        SessionOp::Finish(finishing) => (None, bootable::describe_tree(finishing)),
        SessionOp::AdaptImage(finishing) => (None, bootable::describe_raw(finishing)),
        SessionOp::ExtendFstab(_) => {
            alone("/etc/fstab of the image, with lines for filesystems on other disks".to_owned())
        }
        SessionOp::WriteFstab(_) => alone("/etc/fstab, by filesystem UUID".to_owned()),
        SessionOp::WriteCrypttab(_) => alone("/etc/crypttab, and the keys in /etc/cryptsetup-keys.d".to_owned()),
        SessionOp::FindLoader => alone("find the boot loader of the image".to_owned()),
        SessionOp::WritePersistent(write) => (None, describe_volume_files(write)),
        SessionOp::RemoveVariables(removal) => alone(describe_removal(removal)),
        SessionOp::WriteBootEntries(entries) => alone(describe_boot_entries(entries)),
        SessionOp::LoadKernel => alone("kernel and initrd of /etc/metal/boot-info.yaml".to_owned()),
        SessionOp::Rehearse(rehearsal) => (None, describe_rehearsal(rehearsal, sizes)),
        // Without extents, nothing may be written after this operation.
        SessionOp::TellPointOfNoReturn { extents, .. } if extents.is_empty() => {
            alone("the control plane confirms the run, and records that this boot has received everything".to_owned())
        }
        SessionOp::TellPointOfNoReturn { .. } => {
            alone("the control plane confirms the run, and records that disks are about to change".to_owned())
        }
        SessionOp::MoveStands { .. } => alone("the control plane has not cancelled the migration".to_owned()),
        SessionOp::ProveKept(kept) => (None, describe_proof(kept)),
        SessionOp::WriteMarker(_) => alone("/etc/metal/drophammer.json".to_owned()),
        SessionOp::Unmount => alone("everything".to_owned()),
        SessionOp::FlushDisks { disks } => alone(format!("flush {}", join_devices(disks))),
        SessionOp::Report(FinalReport { taken_back, .. }) if !taken_back.is_empty() => alone(format!(
            "acknowledged by the control plane; if it denies the migration, both ends of {} are wiped",
            join_devices(taken_back)
        )),
        SessionOp::Report(_) => alone("acknowledged by the control plane".to_owned()),
        SessionOp::Kexec => alone("into the installed system".to_owned()),
    }
}

/// Describes a proof of zeros: `read all of sdb1 (4 GB): every byte must be zero`.
fn describe_zero_proofs(proofs: &[ZeroProof]) -> String {
    let device = |proof: &ZeroProof| format!("{} ({})", strip_dev(&proof.device), format_bytes(proof.total_bytes()));
    let devices: Vec<String> = proofs.iter().map(device).collect();
    format!("read all of {}: every byte must be zero", devices.join(", "))
}

/// Describes a run of `verify`: `verify of web+small accepts ns1, track`.
fn describe_verify(os: &str, parameters: &[String]) -> String {
    match parameters {
        [] => format!("verify of {os} passes"),
        some => format!("verify of {os} accepts {}", some.join(", ")),
    }
}

/// Describes new boot entries: `EFI entries "drophammer: web-1" for sda1, sdb1; PXE stays first`.
fn describe_boot_entries(BootEntries { label, esps, order, unless_installer }: &BootEntries) -> String {
    let esps: Vec<&str> = esps.iter().map(|esp| strip_dev(&esp.device)).collect();
    let order = match order {
        BootOrder::Pxe => "PXE stays first",
        BootOrder::Disk => "first in the boot order",
        BootOrder::Keep => "boot order unchanged",
    };
    let unless = if *unless_installer { "; not if the image has an installer" } else { "" };
    format!("EFI entries \"{label}\" for {}; {order}{unless}", esps.join(", "))
}

fn describe_removal(removal: &RemoveVariables) -> String {
    let names: Vec<&str> = removal.variables.iter().map(|variable| variable.name.as_str()).collect();
    let required = if removal.required { "" } else { ", as far as the firmware permits" };
    format!("remove EFI variables {}{required}", names.join(", "))
}

fn describe_unlock(others: &[u32]) -> String {
    let numbers = others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match others {
        [] => " writable again".to_owned(),
        [_] => format!(" writable again, except partition {numbers}, which is not in the layout"),
        _ => format!(" writable again, except partitions {numbers}, which are not in the layout"),
    }
}

fn describe_group(group: &CreateGroup) -> String {
    let tags = if group.tags.is_empty() { String::new() } else { format!(" tags {}", group.tags.join(" ")) };
    format!("{} ({}){tags}", group.name, join_devices(&group.devices))
}

fn describe_filesystem(make: &MakeFilesystem) -> String {
    let label = make.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    format!("{}: {}{label}", strip_dev(&make.device), make.format)
}

/// Describes a new Kubernetes volume: `volume db-1: sdc if it is still blank, ext4`, `volume web: vg00/web in free space of sdb1, xfs`.
fn describe_volume(volume: &PreparePersistent) -> String {
    let PreparePersistent { name, device, create, must_be_blank, filling, .. } = volume;
    let place = match create {
        Some(create) => format!(" in free space of {}", join_devices(&create.physical)),
        None if *must_be_blank => " if it is still blank".to_owned(),
        None => String::new(),
    };
    format!("volume {name}: {}{place}, {}", strip_dev(device), describe_filling(filling))
}

fn describe_filling(filling: &VolumeFilling) -> String {
    match filling {
        VolumeFilling::Filesystem(make) => make.format.to_string(),
        VolumeFilling::Partition { .. } => "GPT with one partition".to_owned(),
        VolumeFilling::Nothing => "uninitialized".to_owned(),
    }
}

fn describe_volume_files(write: &WritePersistent) -> OperationText {
    let file = |sparse: &SparseVolume| match &sparse.make {
        Some(filling) => {
            format!(
                "volume {}: {}, {}, {}",
                sparse.name,
                sparse.path,
                format::format_bytes(sparse.size_bytes),
                describe_filling(filling)
            )
        }
        None => format!("volume {}: {} unchanged", sparse.name, sparse.path),
    };
    let first = OperationText::after("/etc/metal/volumes.yaml");
    OperationText { below: write.sparse.iter().map(file).collect(), ..first }
}

/// Returns the minimum size of a device: `  19498 MiB`. UUIDs of new objects are not printed, because an offline plan cannot predict them.
fn describe_size(sizes: &DeviceSizes, device: &DevicePath) -> String {
    sizes.get(device).map(|bytes| format!("  {} MiB", bytes / MIB)).unwrap_or_default()
}

/// Describes a trial of an array: `try raid1 --bitmap=internal for md/root in memory`.
fn describe_array_trial(trial: &TryArray) -> String {
    let CreateArray { device, level, createoptions, .. } = &trial.make;
    format!("try {level} {} for {} in memory", createoptions.join(" "), strip_dev(device))
}

/// Describes a trial of a filesystem: `try ext4 -m 0 for sda2 in memory, mounted with noatime`.
fn describe_filesystem_trial(trial: &TryFilesystem) -> String {
    let MakeFilesystem { device, format, createoptions, .. } = &trial.make;
    let format = std::iter::once(format.name()).chain(createoptions.iter().map(String::as_str));
    let format = format.collect::<Vec<_>>().join(" ");
    let mounted = trial.mount.as_ref().map(|options| match options.is_empty() {
        true => ", mounted".to_owned(),
        false => format!(", mounted with {}", options.join(",")),
    });
    format!("try {format} for {} in memory{}", strip_dev(device), mounted.unwrap_or_default())
}

fn describe_mount(mount: &MountFilesystem) -> String {
    let mut options = mount.options.iter().flat_map(|option| option.split(','));
    let read_only = if options.any(|option| option == "ro") { " read-only" } else { "" };
    format!("{} at {}{read_only}", strip_dev(&mount.device), mount.path)
}

fn describe_rehearsal(rehearsal: &Rehearsal, sizes: &DeviceSizes) -> OperationText {
    let first = OperationText::after(format!(
        "on in-memory snapshots of {}, and deactivated again:",
        join_devices(&rehearsal.over)
    ));
    let operations: Vec<Operation> = rehearsal.operations.iter().cloned().map(Operation::from).collect();
    OperationText { below: operation_lines(&operations, sizes), ..first }
}

fn describe_proof(kept: &[PreservedObject]) -> OperationText {
    let first = OperationText::after("identity unchanged:");
    OperationText { below: kept.iter().map(|kept| kept.object.to_string()).collect(), ..first }
}

fn describe_raw_image(burn: &BurnDisk) -> OperationText {
    let held_back = "its first MiB is written last, after the digest is verified".to_owned();
    OperationText {
        below: std::iter::once(held_back).chain(describe_expected(burn)).chain(describe_added(burn)).collect(),
        ..OperationText::after(format!("{} onto {}{}", burn.name, strip_dev(&burn.device), describe_growth(burn)))
    }
}

fn describe_create(create: &CreateSystem) -> OperationText {
    let CreateSystem { os, disks, onto, .. } = create;
    let given = format!("it may write {}; other disks are not visible to it", join_devices(disks));
    OperationText {
        below: std::iter::once(given).chain(describe_expected(onto)).collect(),
        ..OperationText::after(format!("create of {os} onto {}{}", strip_dev(&onto.device), describe_growth(onto)))
    }
}

fn describe_growth(burn: &BurnDisk) -> String {
    let number = |number: u32| strip_dev(&burn.device.partition_path(number)).to_owned();
    burn.grow.map(|grow| format!(", grow {}", number(grow))).unwrap_or_default()
}

fn describe_injection(files: &[InjectedFile]) -> OperationText {
    let line = |file: &InjectedFile| match &file.content {
        Some(content) => format!("{} with {}", file.path, format::format_bytes(content.len() as u64)),
        None => format!("{} deleted", file.path),
    };
    OperationText { below: files.iter().map(line).collect(), ..OperationText::after("files of the step:".to_owned()) }
}

fn describe_added(burn: &BurnDisk) -> Option<String> {
    let added = burn.added.as_ref()?;
    Some(format!(
        "a partition {} with {} at the end of the disk",
        added.name,
        format::format_bytes(added.content.len() as u64)
    ))
}

fn describe_expected(burn: &BurnDisk) -> impl Iterator<Item = String> {
    burn.filesystems.iter().map(|is| {
        let label = is.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
        format!("{} must be {}{label}", strip_dev(&is.device), is.format)
    })
}

fn describe_image(name: &str, hidden: &[String], merged: &[String]) -> OperationText {
    let below = |said: &str, paths: &[String]| (!paths.is_empty()).then(|| format!("{said} {}", paths.join(", ")));
    let hidden = below("files of the image are hidden below", hidden);
    let merged = below("files of the image are added, and replace those of the same name, below", merged);
    let first = OperationText::after(format!("{name}, digest verified before any of it runs"));
    OperationText { below: hidden.into_iter().chain(merged).collect(), ..first }
}

fn describe_release(holder: &Holder) -> (Option<&str>, OperationText) {
    // One line for each holder, in order of release.
    let alone = |verb: &str, device: &DevicePath| (None, OperationText::after(format!("{verb} {}", strip_dev(device))));
    match holder {
        Holder::Swap { device } => alone("swap off", device),
        Holder::Array { device } => alone("stop", device),
        Holder::Mapping { device } => alone("remove", device),
        Holder::Volume { name, .. } => (None, OperationText::after(format!("deactivate {}", strip_dev(name)))),
        Holder::Bcache { device } => alone("stop", device),
    }
}

/// Describes the erasure of a disk: `discard, verified as zero, if possible (at most 2 h); then zero and read back both ends of …`.
fn describe_erasure(disk: &WipeDisk) -> String {
    let methods: Vec<&str> = disk
        .methods
        .iter()
        .filter(|method| **method != EraseMethod::Ends)
        .map(|method| describe_method(*method))
        .collect();
    let methods = match (methods.is_empty(), disk.strict) {
        (true, _) => String::new(),
        (false, true) => {
            format!("{}, or fail (at most {}); then ", methods.join(" or "), format_seconds(disk.budget_seconds as f64))
        }
        (false, false) => {
            format!(
                "{} if possible (at most {}); then ",
                methods.join(" or "),
                format_seconds(disk.budget_seconds as f64)
            )
        }
    };
    format!("{methods}zero and read back both ends of the disk and of its partitions, old and new")
}

fn describe_method(method: EraseMethod) -> &'static str {
    match method {
        EraseMethod::NvmeSanitizeCrypto => "NVMe sanitize (crypto erase)",
        EraseMethod::NvmeSanitizeBlock => "NVMe sanitize (block erase)",
        EraseMethod::NvmeFormatCrypto => "NVMe format (crypto erase)",
        EraseMethod::NvmeFormat => "NVMe format (user data erase)",
        EraseMethod::AtaEnhancedErase => "ATA enhanced secure erase",
        EraseMethod::AtaErase => "ATA secure erase",
        EraseMethod::Discard => "discard that reads back as zero",
        EraseMethod::WriteZeroes => "zeros over the whole disk",
        EraseMethod::Ends => "ends only",
    }
}

fn partition_rows(table: &PartitionTable) -> Vec<String> {
    let mut partitions: Vec<_> = table.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.number);
    let row = |partition: &&crate::NewPartition| {
        let sectors = partition.last_lba + 1 - partition.first_lba;
        let mib = sectors * u64::from(table.sector_bytes) / MIB;
        let name = if partition.name.is_empty() { String::new() } else { format!(" \"{}\"", partition.name) };
        format!("{}{name}  {mib} MiB  {}", partition.number, describe_partition_type(partition.kind))
    };
    partitions.iter().map(row).collect()
}

/// Describes a new array: `md/root raid1 metadata 1.2 (sda2 sdb2) spare sdc2`.
fn describe_array(array: &CreateArray) -> String {
    let active = array.devices.len().saturating_sub(array.spares as usize);
    let (members, spares) = array.devices.split_at(active);
    let word = |member: &ArraySlot| strip_dev(&member.to_string()).to_owned();
    let spaced = |members: &[ArraySlot]| members.iter().map(word).collect::<Vec<_>>().join(" ");
    let spares = if spares.is_empty() { String::new() } else { format!(" spare {}", spaced(spares)) };
    let options =
        if array.createoptions.is_empty() { String::new() } else { format!(" {}", array.createoptions.join(" ")) };
    format!(
        "{} {} metadata {} ({}){spares}{options}",
        strip_dev(&array.device),
        array.level,
        array.metadata,
        spaced(members)
    )
}

fn describe_logical_volume(volume: &CreateVolume, sizes: &DeviceSizes) -> String {
    let size = match volume.size {
        RequestedSize::Rest => format!("remaining space{}", describe_size(sizes, &volume.device)),
        RequestedSize::Mib(mib) => format!("{mib} MiB"),
    };
    format!("{}/{} {} {size}", volume.group, volume.name, volume.kind)
}

fn describe_partition_type(guid: uuid::Uuid) -> String {
    let known = model::layout::PartitionType::ALL.iter().find(|kind| kind.guid() == guid);
    known.map(|kind| kind.code().to_owned()).unwrap_or_else(|| guid.to_string())
}

fn join_devices(devices: &[DevicePath]) -> String {
    devices.iter().map(strip_dev).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Esp;

    #[test]
    fn boot_entries_say_where_and_in_which_order() {
        let esp = |device: &str| Esp { device: device.into(), ..Esp::default() };
        for (order, unless_installer, words) in [
            (BootOrder::Pxe, false, "PXE stays first"),
            (BootOrder::Disk, false, "first in the boot order"),
            (BootOrder::Keep, true, "boot order unchanged; not if the image has an installer"),
        ] {
            let (label, esps) = ("drophammer: web-1".to_owned(), vec![esp("/dev/sda1"), esp("/dev/sdb1")]);
            let operation =
                Operation::Run(SessionOp::WriteBootEntries(BootEntries { label, esps, order, unless_installer }));
            let line = format!("EFI entries \"drophammer: web-1\" for sda1, sdb1; {words}");
            assert_eq!(operation_lines(&[operation], &DeviceSizes::new()), [line]);
        }
    }
}
