//! Stages that write the image. A tar is extracted to mounted filesystems; a raw image is written to a disk, and then
//! the filesystems in the image are mounted.

use super::filesystem_fate::PlacedFilesystem;
use super::plan_decisions::PlanDecisions;
use super::system_source::{SourceInputs, StageOperations, SystemSource, SystemStages};
use super::{
    PlanRequest, boot_entry_operations, ganeti_os_definition, image_boot_setup, image_bootability, operation_args,
    stale_boot_variables, uuids_in_use,
};
use common::diagnostic::Diagnostic;
use model::inventory::{Inventory, InventoryDisk};
use model::layout::Layout;
use operations::{
    AdaptImage, BurnDisk, BurnImage, DiskIdentity, ExpectedFilesystem, ExtendFstab, FinishInputs, GrowFilesystem,
    Operation, SessionOp, StageName, WriteFstab,
};
use std::borrow::Cow;

/// Installation from an image, or from the `create` program of an OS definition.
pub(crate) struct ImageSource<'a>(pub &'a PlanRequest);

/// Operations of the stages that write the image. These operations depend on the type of the image.
struct ImagePlacement {
    first: StageOperations,
    second: StageOperations,
    installer: Operation,
    fstab: Vec<Operation>,
    entries: Option<Operation>,
}

impl SystemSource for ImageSource<'_> {
    fn adapt_layout<'a>(&self, layout: &'a Layout, _: &Inventory) -> Cow<'a, Layout> {
        Cow::Borrowed(layout)
    }

    fn find_problems(&self, layout: &Layout, inventory: &Inventory, _: &PlanDecisions) -> Vec<Diagnostic> {
        image_boot_setup::refuse_finishing(layout, inventory, self.0)
    }

    fn is_created(&self, _: &Operation) -> bool {
        true
    }

    fn build_stages(&self, inputs: &SourceInputs, finishing: Box<FinishInputs>) -> SystemStages {
        let (request, inventory) = (self.0, inputs.meant.inventory);
        let mut warnings = image_bootability::check_image_contents(inputs.layout, inventory, request).warnings;
        warnings.extend(image_boot_setup::warn_firmware(inputs.layout, inventory, &finishing));
        let needs = image_bootability::determine_needs(inputs.layout, inventory, request);
        let ImagePlacement { first, second, installer, fstab, entries } = self.place_image(inputs, finishing);
        let reach =
            ganeti_os_definition::has_image(request).then(|| operation_args::query_image(request, &first.1, needs));
        let verify = ganeti_os_definition::verify_parameters(request).into_iter();
        let checks = verify.chain(ganeti_os_definition::find_programs(request)).collect();
        SystemStages { reach, checks, first, second, installer, fstab, entries, before_marker: None, warnings }
    }
}

impl ImageSource<'_> {
    fn place_image(&self, inputs: &SourceInputs, finishing: Box<FinishInputs>) -> ImagePlacement {
        match &inputs.decided.image_disk {
            Some(disk) => self.place_raw_image(inputs, disk, finishing),
            None => self.place_tree(inputs, finishing),
        }
    }

    fn place_tree(&self, inputs: &SourceInputs, finishing: Box<FinishInputs>) -> ImagePlacement {
        let returning = inputs.returning;
        let burn = BurnImage {
            name: self.0.subject.image.clone(),
            hidden: returning.hiding_paths(),
            merged: returning.merged_paths(),
            fresh: returning.new_paths(),
            memory_bytes: inputs.meant.inventory.memory_bytes,
        };
        ImagePlacement {
            first: (StageName::StorageMount, returning.before_the_image()),
            second: (StageName::ImageBurn, vec![Operation::Run(SessionOp::BurnImage(burn))]),
            entries: boot_entry_operations::write_entries(
                &finishing,
                stale_boot_variables::preserved_partitions(inputs, &finishing.esps),
            ),
            installer: Operation::Run(SessionOp::Finish(finishing)),
            fstab: vec![Operation::Run(SessionOp::WriteFstab(WriteFstab(inputs.fstab.to_vec())))],
        }
    }

    fn place_raw_image(
        &self,
        inputs: &SourceInputs,
        disk: &InventoryDisk,
        finishing: Box<FinishInputs>,
    ) -> ImagePlacement {
        let SourceInputs { meant, decided, filesystems, returning, fstab, .. } = *inputs;
        let growing = filesystems.iter().find(|(wanted, _)| wanted.grow).and_then(|(_, is)| is.as_in_image());
        let burn = BurnDisk {
            name: self.0.subject.image.clone(),
            device: disk.device.clone(),
            identity: DiskIdentity::from_disk(disk),
            size_bytes: disk.size_bytes,
            sector_bytes: disk.sector_bytes,
            grow: growing.map(|(_, number)| number),
            filesystems: filesystems.iter().filter_map(expected_filesystem).collect(),
            taken: uuids_in_use::collect_uuids(meant.inventory, &decided.disks),
            added: None,
        };
        let grows = |operation: &Operation| match operation {
            Operation::Run(SessionOp::Mount(mount)) if growing.is_some_and(|(device, _)| *device == mount.device) => {
                Some(Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(mount.clone()))))
            }
            _ => None,
        };
        let mounts = returning.before_the_image();
        let mounts = mounts.into_iter().flat_map(|mount| [grows(&mount)].into_iter().flatten().chain([mount]).rev());
        ImagePlacement {
            first: (
                StageName::ImageBurn,
                vec![Operation::Run(ganeti_os_definition::fill_disk(burn, meant, decided, &finishing))],
            ),
            second: (StageName::StorageMount, mounts.collect()),
            installer: Operation::Run(SessionOp::AdaptImage(AdaptImage(finishing))),
            // A raw image contains its own boot loader, so no boot entries are written.
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
