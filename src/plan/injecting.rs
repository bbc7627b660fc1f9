//! Plan that adds files to an existing filesystem. All disks that it does not lie on are locked.

use super::lifting::{self, Lift};
use super::{
    DiskIdentity, DiskPlan, InjectedFile, Mode, MountFilesystem, OfRun, Operation, Plan, Refusal, Stage, StageName,
    Subject, Verdict, display, harmless::Harmless, opaque,
};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Disk, Inventory, Signature};
use crate::layout::Format;
use crate::problem::Problem;
use crate::topology::{Stack, Unit, units};
use std::collections::BTreeSet;

/// Name of the plan, in place of a layout.
const NAME: &str = "files for an existing filesystem";

/// The filesystem that the files are written to.
struct Found {
    /// Path after activation.
    device: DevicePath,
    format: Format,
    lift: Lift,
    below: BTreeSet<KernelName>,
}

/// Makes a plan that writes these files to the filesystem on this disk, partition, array or logical volume. Disks in `skipped` are not
/// used.
///
/// # Errors The device has no mountable filesystem, or is in use. Nothing was written.
pub fn inject(
    inventory: &Inventory,
    device: &DevicePath,
    skipped: &[KernelName],
    files: Vec<InjectedFile>,
    subject: Subject,
) -> Result<Plan, Box<Refusal>> {
    let found = find(inventory, device).and_then(|found| may_be_written(inventory, skipped, found));
    let is_below = |disk: &Disk| found.as_ref().is_ok_and(|found| found.below.contains(&disk.name));
    let verdict = |disk: &Disk| if is_below(disk) { Verdict::Keep } else { Verdict::NotOurs };
    let disks: Vec<DiskPlan> = inventory.disks.iter().map(|disk| DiskPlan::of(disk, verdict(disk))).collect();
    let layout = NAME.to_owned();
    let Found { device, format, lift, below } = match found {
        Ok(found) => found,
        Err(why) => {
            let problems = vec![Problem::new("partition", why)];
            let opaque = opaque::listed(inventory);
            return Err(Box::new(Refusal { mode: Mode::Install, subject, layout, disks, opaque, problems }));
        }
    };
    let (written, others): (Vec<&Disk>, Vec<&Disk>) =
        inventory.disks.iter().partition(|disk| below.contains(&disk.name));
    let lock = |disk: &&Disk| OfRun::LockDisk { device: disk.device.clone(), untouched: Vec::new() };
    let mount = MountFilesystem { device, path: "/".to_owned(), format, options: Vec::new(), others: Vec::new() };
    let flush = OfRun::FlushDisks { disks: written.iter().map(|disk| disk.device.clone()).collect() };
    let of_run = |operations: Vec<OfRun>| operations.into_iter().map(Operation::Run).collect::<Vec<_>>();
    let identities = written.iter().map(|disk| OfRun::IdentifyDisk(DiskIdentity::of(disk)));
    let stages = [
        (StageName::StorageIdentify, of_run(identities.collect())),
        (StageName::StorageLock, of_run(others.iter().filter(|disk| !disk.read_only).map(lock).collect())),
        (StageName::StorageMount, [lift.up(), of_run(vec![OfRun::Mount(mount)])].concat()),
        (StageName::TargetFiles, of_run(vec![OfRun::InjectFiles(files)])),
        (StageName::StorageUnmount, [of_run(vec![OfRun::Unmount]), lift.down(), of_run(vec![flush])].concat()),
    ];
    let stages = stages.into_iter().filter(|(_, operations)| !operations.is_empty());
    let stages: Vec<Stage> = stages.map(|(name, operations)| Stage { name, operations }).collect();
    let root_uuid = String::new();
    let harmless = Harmless { mode: Mode::Install, subject, layout, disks, stages, root_uuid, already: None };
    Ok(harmless.plan(inventory))
}

fn find(inventory: &Inventory, wanted: &DevicePath) -> Result<Found, String> {
    let stack = Stack::new(inventory);
    let (there, device) = lifting::meant(inventory, wanted).unwrap_or_else(|| (wanted.clone(), wanted.clone()));
    let unit = units(inventory).find(|(path, _)| **path == there).map(|(_, unit)| unit);
    // A partition within an array or a volume cannot be activated.
    let unit = unit.filter(|unit| !matches!(unit, Unit::Partition(_)) || of_a_disk(inventory, &there));
    let Some(unit) = unit else {
        return Err(format!("{wanted} is not a disk, disk partition, array or logical volume of this machine"));
    };
    if !unit.uses().is_empty() {
        return Err(format!("{wanted} is in use"));
    }
    let format = format(wanted, unit.signatures())?;
    let lift = Lift::of(&stack, inventory, &there)?;
    Ok(Found { device, format, lift, below: stack.disks(&stack.name(&there)) })
}

fn of_a_disk(inventory: &Inventory, device: &DevicePath) -> bool {
    let mut parts = inventory.disks.iter().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
    parts.any(|part| part.device == *device)
}

fn may_be_written(inventory: &Inventory, skipped: &[KernelName], found: Found) -> Result<Found, String> {
    if let Some(disk) = skipped.iter().find(|disk| found.below.contains(*disk)) {
        return Err(format!("{} lies on {disk}, which is skipped", found.device));
    }
    let below = |disk: &&Disk| found.below.contains(&disk.name);
    match inventory.disks.iter().filter(below).find(|disk| disk.read_only) {
        Some(disk) => Err(format!("{} is write-protected", disk.device)),
        None => Ok(found),
    }
}

fn format(device: &DevicePath, signatures: &[Signature]) -> Result<Format, String> {
    let mounts = |signature: &Signature| {
        let is_it = |format: &Format| format.name() == signature.kind && !matches!(format, Format::Swap | Format::None);
        Format::ALL.into_iter().find(is_it)
    };
    match signatures {
        [one] => {
            mounts(one).ok_or_else(|| format!("{device} contains {}, which cannot be mounted", display::signature(one)))
        }
        [] => Err(format!("{device} does not contain a filesystem")),
        _ => Err(format!("{device} has several signatures")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OnDevice;

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!("testdata/inventories/{name}.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn file() -> InjectedFile {
        InjectedFile {
            path: "/etc/motd".into(),
            content: Some(b"hello".to_vec()),
            mode: 0o644,
            owner: None,
            group: None,
        }
    }

    #[test]
    fn files_go_into_one_filesystem_and_every_other_disk_is_locked() {
        let inventory = machine("installed-default");
        let device = DevicePath::from("/dev/sda2");
        let plan = inject(&inventory, &device, &[], vec![file()], Subject::default()).unwrap();
        let names: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
        assert!(
            names.ends_with(&[StageName::StorageMount, StageName::TargetFiles, StageName::StorageUnmount]),
            "{names:?}"
        );
        assert!(plan.stages.iter().all(|stage| !stage.name.is_destructive()));
        let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let locked = operations.filter(|operation| matches!(operation, Operation::Run(OfRun::LockDisk { .. })));
        assert_eq!(locked.count(), inventory.disks.len() - 1);
        assert!(plan.to_string().contains("/etc/motd with 5"), "{plan}");
    }

    #[test]
    fn what_lies_on_an_array_is_started_for_it_and_taken_down_again() {
        let mut inventory = machine("raid-lvm");
        let third = Disk { name: "sdc".into(), device: "/dev/sdc".into(), ..Disk::default() };
        inventory.disks.push(third);
        for (wanted, mounted) in [("/dev/vg00/root", "/dev/vg00/root"), ("/dev/md/efi", "/dev/md126")] {
            let plan = inject(&inventory, &wanted.into(), &[], vec![file()], Subject::default()).unwrap();
            let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
            let mounts = operations().filter_map(|operation| match operation {
                Operation::Run(OfRun::Mount(mount)) => Some(mount.device.as_str()),
                _ => None,
            });
            assert_eq!(mounts.collect::<Vec<_>>(), [mounted]);
            let locked = operations().filter_map(|operation| match operation {
                Operation::Run(OfRun::LockDisk { device, .. }) => Some(device.as_str()),
                _ => None,
            });
            assert_eq!(locked.collect::<Vec<_>>(), ["/dev/sdc"]);
            let identified = operations().filter(|one| matches!(one, Operation::Run(OfRun::IdentifyDisk(_))));
            assert_eq!(identified.count(), 2);
            let last = plan.stages.last().unwrap();
            let stops = |one: &Operation| matches!(one, Operation::Device(OnDevice::StopArray { .. }));
            assert!(last.operations.iter().any(stops), "{last:?}");
        }
        let skipped = [inventory.disks[1].name.clone()];
        let refusal = inject(&inventory, &"/dev/vg00/root".into(), &skipped, vec![file()], Subject::default());
        assert!(refusal.unwrap_err().to_string().contains("lies on sdb, which is skipped"));
    }

    #[test]
    fn what_cannot_be_mounted_is_refused() {
        let mut inventory = machine("installed-default");
        let refused = |inventory: &Inventory, device: &str| {
            inject(inventory, &device.into(), &[], vec![file()], Subject::default()).unwrap_err().to_string()
        };
        assert!(
            refused(&inventory, "/dev/md1")
                .contains("is not a disk, disk partition, array or logical volume of this machine")
        );
        assert!(refused(&inventory, "/dev/sda").contains("/dev/sda does not contain a filesystem"));
        inventory.disks[0].read_only = true;
        assert!(refused(&inventory, "/dev/sda2").contains("write-protected"));
        let inventory = machine("raid-lvm");
        assert!(refused(&inventory, "/dev/md127").contains("/dev/md127 is in use"));
        assert!(refused(&inventory, "/dev/sda2").contains("/dev/sda2 is in use"));
    }
}
