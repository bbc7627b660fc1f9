//! The plan that puts files into a filesystem which is there already. Every disk but that one is locked.

use super::{
    DiskIdentity, DiskPlan, Found, InjectedFile, Mode, MountFilesystem, OfRun, Operation, Plan, Refusal, Stage,
    StageName, Subject, Summary, Verdict, display, extents,
};
use crate::device::DevicePath;
use crate::inventory::{Disk, Inventory, Partition, Signature};
use crate::layout::Format;
use crate::problem::Problem;
use std::collections::BTreeMap;

/// What such a plan is called in the place of a layout.
const NAME: &str = "files into what is there";

/// These files into the filesystem on this disk or partition.
///
/// # Errors
/// There is no filesystem that can be mounted there, or somebody uses it. Nothing was written.
pub fn inject(
    inventory: &Inventory,
    device: &DevicePath,
    files: Vec<InjectedFile>,
    subject: Subject,
) -> Result<Plan, Box<Refusal>> {
    let found = find(inventory, device);
    let written = found.as_ref().ok().map(|(disk, _)| *disk);
    let disks: Vec<DiskPlan> = inventory.disks.iter().map(|disk| plan_of(disk, written)).collect();
    let layout = NAME.to_owned();
    let (disk, format) = match found {
        Ok(found) => found,
        Err(why) => {
            let problems = vec![Problem::new("partition", why)];
            return Err(Box::new(Refusal { mode: Mode::Install, subject, layout, disks, problems }));
        }
    };
    let others = inventory.disks.iter().filter(|other| other.name != disk.name && !other.read_only);
    let lock = |other: &Disk| OfRun::LockDisk { device: other.device.clone(), untouched: Vec::new() };
    let (device, path) = (device.clone(), "/".to_owned());
    let mount = MountFilesystem { device, path, format, options: Vec::new(), others: Vec::new() };
    let stages = [
        (StageName::StorageIdentify, vec![OfRun::IdentifyDisk(DiskIdentity::of(disk))]),
        (StageName::StorageLock, others.map(lock).collect()),
        (StageName::StorageMount, vec![OfRun::Mount(mount)]),
        (StageName::TargetFiles, vec![OfRun::InjectFiles(files)]),
        (StageName::StorageUnmount, vec![OfRun::Unmount, OfRun::FlushDisks { disks: vec![disk.device.clone()] }]),
    ];
    let stage = |(name, operations): (StageName, Vec<OfRun>)| Stage {
        name,
        operations: operations.into_iter().map(Operation::Run).collect(),
    };
    let stages: Vec<Stage> = stages.into_iter().map(stage).filter(|stage| !stage.operations.is_empty()).collect();
    let plan = Plan {
        mode: Mode::Install,
        subject,
        layout,
        summary: Summary::of(&disks),
        disks,
        point_of_no_return: stages.len(),
        stages,
        fstab: Vec::new(),
        root_uuid: String::new(),
        already: None,
        warnings: Vec::new(),
        torn: Vec::new(),
        sizes: BTreeMap::new(),
        extents: Vec::new(),
        verdicts: None,
    };
    Ok(Plan { extents: extents::of(&plan, inventory), ..plan })
}

/// The disk beneath, and how it is mounted.
fn find<'a>(inventory: &'a Inventory, device: &DevicePath) -> Result<(&'a Disk, Format), String> {
    let whole = inventory.disks.iter().find(|disk| disk.device == *device);
    let whole = whole.map(|disk| (disk, &disk.signatures[..], disk.uses.is_empty()));
    let mut parts = inventory.disks.iter().flat_map(|disk| {
        let partitions = disk.table.iter().flat_map(|table| &table.partitions);
        partitions.map(move |partition: &Partition| (disk, partition))
    });
    let part = parts.find(|(_, partition)| partition.device == *device);
    let part = part.map(|(disk, partition)| (disk, &partition.signatures[..], partition.uses.is_empty()));
    let Some((disk, signatures, is_free)) = whole.or(part) else {
        return Err(format!(
            "{device} is no disk and no partition of this machine; files go onto neither arrays nor volumes"
        ));
    };
    let mounts = |signature: &Signature| {
        let is_it = |format: &Format| format.name() == signature.kind && !matches!(format, Format::Swap | Format::None);
        Format::ALL.into_iter().find(is_it)
    };
    match signatures {
        _ if !is_free => Err(format!("{device} is in use")),
        _ if disk.read_only => Err(format!("{} is write-protected", disk.device)),
        [one] => match mounts(one) {
            Some(format) => Ok((disk, format)),
            None => Err(format!("{device} holds {}, which cannot be mounted", display::signature(one))),
        },
        [] => Err(format!("{device} has no filesystem")),
        _ => Err(format!("{device} has several signatures at once")),
    }
}

fn plan_of(disk: &Disk, written: Option<&Disk>) -> DiskPlan {
    let is_written = written.is_some_and(|written| written.name == disk.name);
    DiskPlan {
        name: disk.name.clone(),
        device: disk.device.clone(),
        size_bytes: disk.size_bytes,
        model: disk.model.clone(),
        serial: disk.serial.clone(),
        verdict: if is_written { Verdict::Keep } else { Verdict::NotOurs },
        listed_as: None,
        found: Found::on(disk),
        now: display::contents(disk),
        running: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let plan = inject(&inventory, &device, vec![file()], Subject::default()).unwrap();
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
    fn what_cannot_be_mounted_is_refused() {
        let mut inventory = machine("installed-default");
        let refused = |inventory: &Inventory, device: &str| {
            inject(inventory, &device.into(), vec![file()], Subject::default()).unwrap_err().to_string()
        };
        assert!(refused(&inventory, "/dev/md1").contains("neither arrays nor volumes"));
        assert!(refused(&inventory, "/dev/sda").contains("/dev/sda has no filesystem"));
        inventory.disks[0].read_only = true;
        assert!(refused(&inventory, "/dev/sda2").contains("write-protected"));
    }
}
