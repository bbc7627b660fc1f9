//! Operations of a stage, as lines. The same operation on several devices is one line.

use super::{containers, finish, received, short};
use crate::device::DevicePath;
use crate::inventory::EraseMethod;
use crate::layout::Size;
use crate::order;
use crate::plan::sectors::MIB;
use crate::plan::{
    ActivateGroup, AssembleArray, BootEntries, BootOrder, BurnDisk, Closing, CreateArray, CreateGroup, CreateSystem,
    CreateVolume, Filling, Holder, InjectedFile, Kept, MakeFilesystem, Member, MountFilesystem, OfRun, OnDevice,
    OpenContainer, Operation, PartitionTable, PreparePersistent, Rehearsal, RemoveVariables, SparseVolume, TryArray,
    TryFilesystem, WipeDisk, WritePersistent, ZeroProof,
};
use crate::text::{self, bytes, seconds};
use std::collections::BTreeMap;

/// Size in bytes by device path, if known.
type Sizes = BTreeMap<DevicePath, u64>;

/// Returns one text for each operation, or for each group of equal operations.
pub fn lines(operations: &[Operation], sizes: &Sizes) -> Vec<String> {
    let mut said: Vec<(Vec<&str>, Said)> = Vec::new();
    for operation in operations {
        let (device, what) = of(operation, sizes);
        match said.iter_mut().find(|(devices, before)| *before == what && !devices.is_empty() && device.is_some()) {
            Some((devices, _)) => devices.extend(device),
            None => said.push((device.into_iter().collect(), what)),
        }
    }
    said.into_iter().flat_map(|(devices, what)| what.lines(&devices.join(", "))).collect()
}

/// Text about devices: before their names, after them, and on the lines below.
#[derive(PartialEq, Eq)]
pub(super) struct Said {
    before: String,
    after: String,
    below: Vec<String>,
}

impl Said {
    pub(super) fn after(after: impl Into<String>) -> Said {
        Said { before: String::new(), after: after.into(), below: Vec::new() }
    }

    pub(super) fn with(self, below: Vec<String>) -> Said {
        Said { below, ..self }
    }

    pub(super) fn and(mut self, line: Option<String>) -> Said {
        self.below.extend(line);
        self
    }

    fn before(before: &str) -> Said {
        Said { before: before.to_owned(), after: String::new(), below: Vec::new() }
    }

    fn lines(self, devices: &str) -> Vec<String> {
        let first = format!("{}{devices}{}", self.before, self.after);
        std::iter::once(first).chain(self.below.into_iter().map(|line| format!("  {line}"))).collect()
    }
}

/// Returns the device of an operation that can share a line with others, and the text.
fn of<'a>(operation: &'a Operation, sizes: &Sizes) -> (Option<&'a str>, Said) {
    match operation {
        Operation::Device(operation) => on_device(operation, sizes),
        Operation::Run(operation) => of_run(operation, sizes),
    }
}

fn on_device<'a>(operation: &'a OnDevice, sizes: &Sizes) -> (Option<&'a str>, Said) {
    let alone = |line: String| (None, Said::after(line));
    match operation {
        OnDevice::Release(holder) => release(holder),
        OnDevice::AssertFree { disks } => alone(format!("check that nothing holds {}", listed(disks))),
        OnDevice::ProveZeros(proofs) => alone(prove_zeros(proofs)),
        OnDevice::WipeDisk(disk) => (Some(short(&disk.device)), Said::after(format!(": {}", erasing(disk)))),
        OnDevice::WriteTable(table) => {
            (Some(short(&table.device)), Said { before: String::new(), after: ": GPT".to_owned(), below: rows(table) })
        }
        OnDevice::CreateArray(array) => alone(create_array(array) + &size(sizes, &array.device)),
        OnDevice::CreateGroup(group) => alone(create_group(group)),
        OnDevice::CreateVolume(volume) => alone(create_volume(volume, sizes)),
        OnDevice::CreateContainer(container) => alone(containers::made(container)),
        OnDevice::OpenContainer(OpenContainer { container, read_only }) => {
            let read_only = if *read_only { " read-only" } else { "" };
            alone(format!("open {}{read_only}, key: {}", short(&container.device), container.source))
        }
        OnDevice::CloseContainer { mapping } => (Some(short(mapping)), Said::before("close ")),
        OnDevice::TakeDown { devices } => {
            alone(format!("stop arrays and mappings on {} that were assembled for inspection", listed(devices)))
        }
        OnDevice::AssembleArray(AssembleArray { device, members, .. }) => {
            alone(format!("assemble {} ({})", short(device), listed(members)))
        }
        OnDevice::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
            alone(format!("activate {} of {name} ({})", volumes.join(", "), listed(devices)))
        }
        OnDevice::TryArray(trial) => alone(try_array(trial)),
        OnDevice::TryFilesystem(trial) => alone(try_filesystem(trial)),
        OnDevice::MakeFilesystem(make) => alone(make_filesystem(make) + &size(sizes, &make.device)),
        OnDevice::PreparePersistent(volume) => alone(prepare(volume)),
        OnDevice::DeactivateGroup { name, .. } => (Some(name), Said::before("deactivate ")),
        OnDevice::StopArray { device } => (Some(short(device)), Said::before("stop ")),
    }
}

fn of_run<'a>(operation: &'a OfRun, sizes: &Sizes) -> (Option<&'a str>, Said) {
    let alone = |line: String| (None, Said::after(line));
    match operation {
        OfRun::ReachImage { url, .. } => alone(format!("query {url} for size and digest")),
        OfRun::VerifyDefinition { os, parameters, .. } => alone(verify(os, parameters)),
        OfRun::FindPrograms { os, programs } => {
            alone(format!("check for programs of create of {os}: {}", programs.join(", ")))
        }
        OfRun::IdentifyDisk(disk) => (Some(short(&disk.device)), Said::after(": size, serial and WWN as planned")),
        OfRun::CheckContainers(containers) => alone(containers::checked(containers)),
        OfRun::LockDisk { device, .. } => (Some(short(device)), Said::after(" read-only")),
        OfRun::UnlockDisk { device, others } => (Some(short(device)), Said::after(writable_again(others))),
        OfRun::Mount(filesystem) => alone(mount(filesystem)),
        OfRun::MountReadOnly(filesystem) => alone(mount(filesystem)),
        OfRun::BurnDisk(disk) => (None, burn_disk(disk)),
        OfRun::CreateSystem(create) => (None, create_system(create)),
        OfRun::Receive(receive) => (None, received::from(receive)),
        OfRun::AdaptMoved(finishing) => (None, finish::moved(finishing)),
        OfRun::GrowFilesystem(mount) => {
            alone(format!("{}: grow {} to the size of its partition", short(&mount.device), mount.format))
        }
        OfRun::BurnImage { name, hidden, merged, .. } => (None, burn(name, hidden, merged)),
        OfRun::WriteMachineFiles { files } => {
            let more = if files.assigned.allocation.definition.is_some() { ", os-parameters" } else { "" };
            alone(format!("/etc/metal/install.yaml, userdata, disk.json{more}"))
        }
        OfRun::InjectFiles(files) => (None, inject(files)),
        OfRun::Finish(finishing) => (None, finish::tree(finishing)),
        OfRun::AdaptImage(finishing) => (None, finish::raw(finishing)),
        OfRun::ExtendFstab(_) => alone("/etc/fstab of the image, with lines for filesystems on other disks".to_owned()),
        OfRun::WriteFstab(_) => alone("/etc/fstab, by filesystem UUID".to_owned()),
        OfRun::WriteCrypttab(_) => alone("/etc/crypttab, and the keys in /etc/cryptsetup-keys.d".to_owned()),
        OfRun::FindLoader => alone("find the boot loader of the image".to_owned()),
        OfRun::WritePersistent(write) => (None, write_persistent(write)),
        OfRun::RemoveVariables(removal) => alone(remove_variables(removal)),
        OfRun::WriteBootEntries(entries) => alone(boot_entries(entries)),
        OfRun::LoadKernel => alone("kernel and initrd of /etc/metal/boot-info.yaml".to_owned()),
        OfRun::Rehearse(rehearsal) => (None, rehearse(rehearsal, sizes)),
        // Without extents, nothing may be written after this operation.
        OfRun::TellPointOfNoReturn { extents, .. } if extents.is_empty() => {
            alone("the control plane confirms the run, and records that this boot has received everything".to_owned())
        }
        OfRun::TellPointOfNoReturn { .. } => {
            alone("the control plane confirms the run, and records that disks are about to change".to_owned())
        }
        OfRun::MoveStands { .. } => alone("the control plane has not cancelled the migration".to_owned()),
        OfRun::ProveKept(kept) => (None, prove_kept(kept)),
        OfRun::WriteMarker(_) => alone("/etc/metal/drophammer.json".to_owned()),
        OfRun::Unmount => alone("everything".to_owned()),
        OfRun::FlushDisks { disks } => alone(format!("flush {}", listed(disks))),
        OfRun::Report(Closing { taken_back, .. }) if !taken_back.is_empty() => alone(format!(
            "acknowledged by the control plane; if it denies the migration, both ends of {} are wiped",
            listed(taken_back)
        )),
        OfRun::Report(_) => alone("acknowledged by the control plane".to_owned()),
        OfRun::Kexec => alone("into the installed system".to_owned()),
    }
}

/// Describes a proof of zeros: `read all of sdb1 (4 GB): every byte must be zero`.
fn prove_zeros(proofs: &[ZeroProof]) -> String {
    let device = |proof: &ZeroProof| format!("{} ({})", short(&proof.device), bytes(proof.bytes()));
    let devices: Vec<String> = proofs.iter().map(device).collect();
    format!("read all of {}: every byte must be zero", devices.join(", "))
}

/// Describes a run of `verify`: `verify of web+small accepts ns1, track`.
fn verify(os: &str, parameters: &[String]) -> String {
    match parameters {
        [] => format!("verify of {os} passes"),
        some => format!("verify of {os} accepts {}", some.join(", ")),
    }
}

/// Describes new boot entries: `EFI entries "drophammer: web-1" for sda1, sdb1; PXE stays first`.
fn boot_entries(BootEntries { label, esps, order, unless_installer }: &BootEntries) -> String {
    let esps: Vec<&str> = esps.iter().map(|esp| short(&esp.device)).collect();
    let order = match order {
        BootOrder::Pxe => "PXE stays first",
        BootOrder::Disk => "first in the boot order",
        BootOrder::Keep => "boot order unchanged",
    };
    let unless = if *unless_installer { "; not if the image has an installer" } else { "" };
    format!("EFI entries \"{label}\" for {}; {order}{unless}", esps.join(", "))
}

fn remove_variables(removal: &RemoveVariables) -> String {
    let names: Vec<&str> = removal.variables.iter().map(|variable| variable.name.as_str()).collect();
    let required = if removal.required { "" } else { ", as far as the firmware permits" };
    format!("remove EFI variables {}{required}", names.join(", "))
}

fn writable_again(others: &[u32]) -> String {
    let numbers = others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match others {
        [] => " writable again".to_owned(),
        [_] => format!(" writable again, except partition {numbers}, which is not in the layout"),
        _ => format!(" writable again, except partitions {numbers}, which are not in the layout"),
    }
}

fn create_group(group: &CreateGroup) -> String {
    let tags = if group.tags.is_empty() { String::new() } else { format!(" tags {}", group.tags.join(" ")) };
    format!("{} ({}){tags}", group.name, listed(&group.devices))
}

fn make_filesystem(make: &MakeFilesystem) -> String {
    let label = make.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    format!("{}: {}{label}", short(&make.device), make.format)
}

/// Describes a new Kubernetes volume: `volume db-1: sdc if it is still blank, ext4`, `volume web: vg00/web in free space of sdb1, xfs`.
fn prepare(volume: &PreparePersistent) -> String {
    let PreparePersistent { name, device, create, must_be_blank, filling, .. } = volume;
    let place = match create {
        Some(create) => format!(" in free space of {}", listed(&create.physical)),
        None if *must_be_blank => " if it is still blank".to_owned(),
        None => String::new(),
    };
    format!("volume {name}: {}{place}, {}", short(device), filled(filling))
}

fn filled(filling: &Filling) -> String {
    match filling {
        Filling::Filesystem(make) => make.format.to_string(),
        Filling::Partition { .. } => "GPT with one partition".to_owned(),
        Filling::Nothing => "uninitialized".to_owned(),
    }
}

fn write_persistent(write: &WritePersistent) -> Said {
    let file = |sparse: &SparseVolume| match &sparse.make {
        Some(filling) => {
            format!("volume {}: {}, {}, {}", sparse.name, sparse.path, text::bytes(sparse.size_bytes), filled(filling))
        }
        None => format!("volume {}: {} unchanged", sparse.name, sparse.path),
    };
    let first = Said::after("/etc/metal/volumes.yaml");
    Said { below: write.sparse.iter().map(file).collect(), ..first }
}

/// Returns the minimum size of a device: `  19498 MiB`. UUIDs of new objects are not printed, because an offline plan cannot predict them.
fn size(sizes: &Sizes, device: &DevicePath) -> String {
    sizes.get(device).map(|bytes| format!("  {} MiB", bytes / MIB)).unwrap_or_default()
}

/// Describes a trial of an array: `try raid1 --bitmap=internal for md/root in memory`.
fn try_array(trial: &TryArray) -> String {
    let CreateArray { device, level, createoptions, .. } = &trial.make;
    format!("try {level} {} for {} in memory", createoptions.join(" "), short(device))
}

/// Describes a trial of a filesystem: `try ext4 -m 0 for sda2 in memory, mounted with noatime`.
fn try_filesystem(trial: &TryFilesystem) -> String {
    let MakeFilesystem { device, format, createoptions, .. } = &trial.make;
    let format = std::iter::once(format.name()).chain(createoptions.iter().map(String::as_str));
    let format = format.collect::<Vec<_>>().join(" ");
    let mounted = trial.mount.as_ref().map(|options| match options.is_empty() {
        true => ", mounted".to_owned(),
        false => format!(", mounted with {}", options.join(",")),
    });
    format!("try {format} for {} in memory{}", short(device), mounted.unwrap_or_default())
}

fn mount(mount: &MountFilesystem) -> String {
    let mut options = mount.options.iter().flat_map(|option| option.split(','));
    let read_only = if options.any(|option| option == "ro") { " read-only" } else { "" };
    format!("{} at {}{read_only}", short(&mount.device), mount.path)
}

fn rehearse(rehearsal: &Rehearsal, sizes: &Sizes) -> Said {
    let first = Said::after(format!("on in-memory snapshots of {}, and deactivated again:", listed(&rehearsal.over)));
    let operations: Vec<Operation> = rehearsal.operations.iter().cloned().map(Operation::from).collect();
    Said { below: lines(&operations, sizes), ..first }
}

fn prove_kept(kept: &[Kept]) -> Said {
    let first = Said::after("identity unchanged:");
    Said { below: kept.iter().map(|kept| kept.object.to_string()).collect(), ..first }
}

fn burn_disk(burn: &BurnDisk) -> Said {
    let held_back = "its first MiB is written last, after the digest is verified".to_owned();
    Said {
        below: std::iter::once(held_back).chain(brought(burn)).chain(added(burn)).collect(),
        ..Said::after(format!("{} onto {}{}", burn.name, short(&burn.device), growing(burn)))
    }
}

fn create_system(create: &CreateSystem) -> Said {
    let CreateSystem { os, disks, onto, .. } = create;
    let given = format!("it may write {}; other disks are not visible to it", listed(disks));
    Said {
        below: std::iter::once(given).chain(brought(onto)).collect(),
        ..Said::after(format!("create of {os} onto {}{}", short(&onto.device), growing(onto)))
    }
}

fn growing(burn: &BurnDisk) -> String {
    let number = |number: u32| short(&burn.device.partition(number)).to_owned();
    burn.grow.map(|grow| format!(", grow {}", number(grow))).unwrap_or_default()
}

fn inject(files: &[InjectedFile]) -> Said {
    let line = |file: &InjectedFile| match &file.content {
        Some(content) => format!("{} with {}", file.path, text::bytes(content.len() as u64)),
        None => format!("{} deleted", file.path),
    };
    Said { below: files.iter().map(line).collect(), ..Said::after("files of the step:".to_owned()) }
}

fn added(burn: &BurnDisk) -> Option<String> {
    let added = burn.added.as_ref()?;
    Some(format!("a partition {} with {} at the end of the disk", added.name, text::bytes(added.content.len() as u64)))
}

fn brought(burn: &BurnDisk) -> impl Iterator<Item = String> {
    burn.filesystems.iter().map(|is| {
        let label = is.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
        format!("{} must be {}{label}", short(&is.device), is.format)
    })
}

fn burn(name: &str, hidden: &[String], merged: &[String]) -> Said {
    let below = |said: &str, paths: &[String]| (!paths.is_empty()).then(|| format!("{said} {}", paths.join(", ")));
    let hidden = below("files of the image are hidden below", hidden);
    let merged = below("files of the image are added, and replace those of the same name, below", merged);
    let first = Said::after(format!("{name}, digest verified before any of it runs"));
    Said { below: hidden.into_iter().chain(merged).collect(), ..first }
}

fn release(holder: &Holder) -> (Option<&str>, Said) {
    // One line for each holder, in order of release.
    let alone = |verb: &str, device: &DevicePath| (None, Said::after(format!("{verb} {}", short(device))));
    match holder {
        Holder::Swap { device } => alone("swap off", device),
        Holder::Array { device } => alone("stop", device),
        Holder::Mapping { device } => alone("remove", device),
        Holder::Volume { name, .. } => (None, Said::after(format!("deactivate {}", short(name)))),
        Holder::Bcache { device } => alone("stop", device),
    }
}

/// Describes the erasure of a disk: `discard, verified as zero, if possible (at most 2 h); then zero and read back both ends of …`.
fn erasing(disk: &WipeDisk) -> String {
    let methods: Vec<&str> = disk
        .methods
        .iter()
        .filter(|method| **method != EraseMethod::Ends)
        .map(|method| method_in_words(*method))
        .collect();
    let methods = match (methods.is_empty(), disk.strict) {
        (true, _) => String::new(),
        (false, true) => {
            format!("{}, or fail (at most {}); then ", methods.join(" or "), seconds(disk.budget_seconds as f64))
        }
        (false, false) => {
            format!("{} if possible (at most {}); then ", methods.join(" or "), seconds(disk.budget_seconds as f64))
        }
    };
    format!("{methods}zero and read back both ends of the disk and of its partitions, old and new")
}

fn method_in_words(method: EraseMethod) -> &'static str {
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

fn rows(table: &PartitionTable) -> Vec<String> {
    let mut partitions: Vec<_> = table.partitions.iter().collect();
    order::by_key(&mut partitions, |partition| partition.number);
    let row = |partition: &&crate::plan::NewPartition| {
        let sectors = partition.last_lba + 1 - partition.first_lba;
        let mib = sectors * u64::from(table.sector_bytes) / MIB;
        let name = if partition.name.is_empty() { String::new() } else { format!(" \"{}\"", partition.name) };
        format!("{}{name}  {mib} MiB  {}", partition.number, kind(partition.kind))
    };
    partitions.iter().map(row).collect()
}

/// Describes a new array: `md/root raid1 metadata 1.2 (sda2 sdb2) spare sdc2`.
fn create_array(array: &CreateArray) -> String {
    let active = array.devices.len().saturating_sub(array.spares as usize);
    let (members, spares) = array.devices.split_at(active);
    let word = |member: &Member| short(&member.to_string()).to_owned();
    let spaced = |members: &[Member]| members.iter().map(word).collect::<Vec<_>>().join(" ");
    let spares = if spares.is_empty() { String::new() } else { format!(" spare {}", spaced(spares)) };
    let options =
        if array.createoptions.is_empty() { String::new() } else { format!(" {}", array.createoptions.join(" ")) };
    format!(
        "{} {} metadata {} ({}){spares}{options}",
        short(&array.device),
        array.level,
        array.metadata,
        spaced(members)
    )
}

fn create_volume(volume: &CreateVolume, sizes: &Sizes) -> String {
    let size = match volume.size {
        Size::Rest => format!("remaining space{}", size(sizes, &volume.device)),
        Size::Mib(mib) => format!("{mib} MiB"),
    };
    format!("{}/{} {} {size}", volume.group, volume.name, volume.kind)
}

fn kind(guid: uuid::Uuid) -> String {
    let known = crate::layout::PartitionKind::ALL.iter().find(|kind| kind.guid() == guid);
    known.map(|kind| kind.code().to_owned()).unwrap_or_else(|| guid.to_string())
}

fn listed(devices: &[DevicePath]) -> String {
    devices.iter().map(short).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Esp;

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
                Operation::Run(OfRun::WriteBootEntries(BootEntries { label, esps, order, unless_installer }));
            let line = format!("EFI entries \"drophammer: web-1\" for sda1, sdb1; {words}");
            assert_eq!(lines(&[operation], &Sizes::new()), [line]);
        }
    }
}
