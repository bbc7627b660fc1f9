//! Placement of the image: a tar is extracted to mounted filesystems; a raw image is written to a disk, whose filesystems are mounted
//! afterwards.

use super::decide::PlanDecisions;
use super::filesystem_fate::PlacedFilesystem;
use super::os_definition;
use super::restore::RestorePlan;
use super::{PlanSubject, boot_entries, uuids_in_use};
use model::storage_graph::LayoutMatch;
use operations::{
    AdaptImage, BurnDisk, BurnImage, DiskIdentity, ExpectedFilesystem, ExtendFstab, FinishInputs, FstabEntry,
    GrowFilesystem, Operation, SessionOp, StageName, WriteFstab,
};

type StageOperations = (StageName, Vec<Operation>);

/// Stages and operations that depend on the type of the image.
pub struct ImageStages {
    pub first: StageOperations,
    pub second: StageOperations,
    pub installer: Operation,
    pub fstab: Vec<Operation>,
    pub entries: Option<Operation>,
}

impl ImageStages {
    pub fn for_image(
        subject: &PlanSubject,
        meant: &LayoutMatch,
        decided: &PlanDecisions,
        filesystems: &[PlacedFilesystem],
        returning: &RestorePlan,
        fstab: &[FstabEntry],
        finishing: Box<FinishInputs>,
    ) -> ImageStages {
        let inventory = meant.inventory;
        let (name, mounts) = (subject.image.clone(), returning.before_the_image());
        let Some(disk) = &decided.image_disk else {
            let (hidden, merged, fresh) = (returning.hiding_paths(), returning.merged_paths(), returning.new_paths());
            let burn = Operation::Run(SessionOp::BurnImage(BurnImage {
                name,
                hidden,
                merged,
                fresh,
                memory_bytes: inventory.memory_bytes,
            }));
            return ImageStages {
                first: (StageName::StorageMount, mounts),
                second: (StageName::ImageBurn, vec![burn]),
                entries: boot_entries::write_entries(&finishing),
                installer: Operation::Run(SessionOp::Finish(finishing)),
                fstab: vec![Operation::Run(SessionOp::WriteFstab(WriteFstab(fstab.to_vec())))],
            };
        };
        let growing = filesystems.iter().find(|(wanted, _)| wanted.grow).and_then(|(_, is)| is.as_in_image());
        let burn = BurnDisk {
            name,
            device: disk.device.clone(),
            identity: DiskIdentity::from_disk(disk),
            size_bytes: disk.size_bytes,
            sector_bytes: disk.sector_bytes,
            grow: growing.map(|(_, number)| number),
            filesystems: filesystems.iter().filter_map(expected_filesystem).collect(),
            taken: uuids_in_use::collect_uuids(inventory, &decided.disks),
            added: None,
        };
        let grows = |operation: &Operation| match operation {
            Operation::Run(SessionOp::Mount(mount)) if growing.is_some_and(|(device, _)| *device == mount.device) => {
                Some(Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(mount.clone()))))
            }
            _ => None,
        };
        let mounts = mounts.into_iter().flat_map(|mount| [grows(&mount)].into_iter().flatten().chain([mount]).rev());
        ImageStages {
            first: (
                StageName::ImageBurn,
                vec![Operation::Run(os_definition::fill_disk(burn, meant, decided, &finishing))],
            ),
            second: (StageName::StorageMount, mounts.collect()),
            installer: Operation::Run(SessionOp::AdaptImage(AdaptImage(finishing))),
            // A raw image boots as it was built.
            entries: None,
            fstab: if fstab.is_empty() {
                Vec::new()
            } else {
                vec![Operation::Run(SessionOp::ExtendFstab(ExtendFstab(fstab.to_vec())))]
            },
        }
    }
}

fn expected_filesystem((wanted, is): &PlacedFilesystem) -> Option<ExpectedFilesystem> {
    let (device, number) = is.as_in_image()?;
    Some(ExpectedFilesystem {
        number,
        device: device.clone(),
        path: wanted.path.clone().unwrap_or_default(),
        format: wanted.format,
        label: wanted.label.clone(),
    })
}
