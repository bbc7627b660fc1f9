//! Placement of the image: a tar is extracted to mounted filesystems; a raw image is written to a disk, whose filesystems are mounted
//! afterwards.

use super::defining;
use super::placed::Placed;
use super::returning::Returning;
use super::verdict::Decided;
use super::{
    BurnDisk, DiskIdentity, ExpectedFilesystem, Finishing, FstabEntry, OfRun, Operation, StageName, Subject, booting,
    staying,
};
use crate::topology::Match;

type Part = (StageName, Vec<Operation>);

/// Stages and operations that depend on the type of the image.
pub struct Way {
    pub first: Part,
    pub second: Part,
    pub installer: Operation,
    pub fstab: Vec<Operation>,
    pub entries: Option<Operation>,
}

impl Way {
    pub fn of(
        subject: &Subject,
        meant: &Match,
        decided: &Decided,
        filesystems: &[Placed],
        returning: &Returning,
        fstab: &[FstabEntry],
        finishing: Box<Finishing>,
    ) -> Way {
        let inventory = meant.inventory;
        let (name, mounts) = (subject.image.clone(), returning.before_the_image());
        let Some(disk) = &decided.image_disk else {
            let (hidden, merged, fresh) = (returning.hidden(), returning.merged(), returning.fresh());
            let burn =
                Operation::Run(OfRun::BurnImage { name, hidden, merged, fresh, memory_bytes: inventory.memory_bytes });
            return Way {
                first: (StageName::StorageMount, mounts),
                second: (StageName::ImageBurn, vec![burn]),
                entries: booting::entries(&finishing),
                installer: Operation::Run(OfRun::Finish(finishing)),
                fstab: vec![Operation::Run(OfRun::WriteFstab(fstab.to_vec()))],
            };
        };
        let growing = filesystems.iter().find(|(wanted, _)| wanted.grow).and_then(|(_, is)| is.in_image());
        let burn = BurnDisk {
            name,
            device: disk.device.clone(),
            identity: DiskIdentity::of(disk),
            size_bytes: disk.size_bytes,
            sector_bytes: disk.sector_bytes,
            grow: growing.map(|(_, number)| number),
            filesystems: filesystems.iter().filter_map(expected).collect(),
            taken: staying::uuids(inventory, &decided.disks),
            added: None,
        };
        let grows = |operation: &Operation| match operation {
            Operation::Run(OfRun::Mount(mount)) if growing.is_some_and(|(device, _)| *device == mount.device) => {
                Some(Operation::Run(OfRun::GrowFilesystem(mount.clone())))
            }
            _ => None,
        };
        let mounts = mounts.into_iter().flat_map(|mount| [grows(&mount)].into_iter().flatten().chain([mount]).rev());
        Way {
            first: (StageName::ImageBurn, vec![Operation::Run(defining::fill(burn, meant, decided, &finishing))]),
            second: (StageName::StorageMount, mounts.collect()),
            installer: Operation::Run(OfRun::AdaptImage(finishing)),
            // A raw image boots as it was built.
            entries: None,
            fstab: if fstab.is_empty() { Vec::new() } else { vec![Operation::Run(OfRun::ExtendFstab(fstab.to_vec()))] },
        }
    }
}

fn expected((wanted, is): &Placed) -> Option<ExpectedFilesystem> {
    let (device, number) = is.in_image()?;
    Some(ExpectedFilesystem {
        number,
        device: device.clone(),
        path: wanted.path.clone().unwrap_or_default(),
        format: wanted.format,
        label: wanted.label.clone(),
    })
}
