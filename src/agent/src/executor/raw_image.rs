//! Installation of a raw image: writes the image to a disk, then adapts the system.

use super::PlanExecutor;
use common::error::{Context, Error, Phase, Result};
use image::raw::{ImageRequirements, RawTarget, TargetDisk, duplicate_uuids};
use image::{IncomingImage, PayloadKind, ResolvedImage};
use linux::storage::{disk_identity, filesystem_growth, image_table_adaptation};
use model::device_name::DevicePath;
use model::inventory::{DiskPartition, DiskTable};
use model::layout::{self, FilesystemFormat};
use newroot::system_setup::{self, PreservedEsps};
use operations::{BurnDisk, ExpectedFilesystem, FinishInputs, MountFilesystem, SeedFilesystem};
use std::time::Instant;
use time::OffsetDateTime;

/// Starts the download of an image. If the image does not fit on the disk, refuses it before anything is written.
pub(super) fn start_raw_image(reached: ResolvedImage, burn: &BurnDisk) -> Result<IncomingImage> {
    let BurnDisk { device, size_bytes, sector_bytes, .. } = burn;
    let disk = TargetDisk { name: device.clone(), size_bytes: *size_bytes, sector_bytes: *sector_bytes };
    let mut incoming = IncomingImage::start(reached, PayloadKind::AnyBytes)?;
    incoming.require_disk(&disk, &expected_disk(burn))?;
    Ok(incoming)
}

fn expected_disk(burn: &BurnDisk) -> ImageRequirements {
    let partitions = burn.filesystems.iter().map(|filesystem| filesystem.number).collect();
    ImageRequirements { partitions, grow: burn.grow, taken: burn.taken.clone(), added: burn.added.clone() }
}

impl PlanExecutor {
    pub(super) fn write_raw_image(&mut self, burn: &BurnDisk) -> Result<()> {
        let BurnDisk { name, device, .. } = burn;
        let incoming = self.take_image(name)?;
        let reporter = &*self.reporter;
        let began = Instant::now();
        let target = RawTarget::open(device)?;
        disk_identity::verify_identity(target.file(), &burn.identity)?;
        let burned =
            incoming.burn_to_disk(&target, &expected_disk(burn), &|progress| reporter.report_progress(progress))?;
        let figures = burned.to_figures(began.elapsed());
        self.print_line(&format!("{name}: {figures}"));
        self.facts.done.burn = Some(figures);
        let (bytes, raw_bytes, resumed) = (burned.bytes, burned.tar_bytes, burned.resumed);
        self.print_line(&format!(
            "image {name}: {raw_bytes} bytes written to {device} from {bytes} bytes of image data; the connection was resumed {resumed} times"
        ));
        drop(target);
        self.adapt_written_disk(burn)
    }

    /// Adapts the partition table to the disk, and verifies that all filesystems to mount exist. The disk was filled by
    /// a raw image or by a `create` program.
    pub(super) fn adapt_written_disk(&mut self, burn: &BurnDisk) -> Result<()> {
        let BurnDisk { device, grow, filesystems, taken, added, .. } = burn;
        self.held.verify_underlying_disks(device)?;
        let table = image_table_adaptation::fit_image_table(device, *grow, added.as_ref())?.unwrap_or_default();
        // The UUIDs of the filesystems in the image are known only after the image was written.
        duplicate_uuids::check_duplicate_uuids(&table, device, taken)
            .context(Phase::Image, || format!("contents of {device}"))?;
        self.brought_seed = find_seed(device, &table);
        for expected in filesystems {
            let found = verify_filesystem(device, expected, &table)?;
            if expected.path == "/" {
                self.brought_root_uuid = Some(found);
            }
        }
        Ok(())
    }

    pub(super) fn grow_filesystem(&self, mount: &MountFilesystem) -> Result<()> {
        let point = self.mounts.root().join(mount.path.trim_start_matches('/'));
        let bytes = filesystem_growth::grow_filesystem(&mount.device, mount.format, &point)?;
        self.print_line(&format!(
            "{}: {} grown to {}",
            mount.device,
            mount.format,
            common::format::format_bytes(bytes)
        ));
        Ok(())
    }

    /// Adapts the system in an image to this machine. The image contains a boot loader and does not require an
    /// installer.
    pub(super) fn adapt_image(&mut self, finishing: &FinishInputs) -> Result<()> {
        let finishing = &self.finishing_with_secrets(finishing);
        let root = self.open_root()?;
        newroot::marker_file::remove_marker(&root)?;
        let (reporter, root_uuid) = (&*self.reporter, self.root_uuid(&finishing.files));
        // A seed partition of the layout takes precedence over the one in the image.
        let seed = finishing.seed.clone().or_else(|| self.brought_seed.clone());
        let finishing = &FinishInputs { seed, ..finishing.clone() };
        system_setup::finish_raw_image(&root, finishing, root_uuid, OffsetDateTime::now_utc(), &|line| {
            reporter.print_line(line)
        })?;
        self.describe_boot_with_loader(&root, &PreservedEsps::from_esps(&finishing.esps))
    }
}

/// Returns the partition of the image that receives cloud-init's seed.
fn find_seed(disk: &DevicePath, table: &DiskTable) -> Option<SeedFilesystem> {
    let is_for_seed = |partition: &&DiskPartition| match partition.signatures.as_slice() {
        [one] => one.kind == FilesystemFormat::Vfat.name() && layout::is_seed_label(&one.label),
        _ => false,
    };
    let found = table.partitions.iter().find(is_for_seed)?;
    Some(SeedFilesystem { device: disk.partition_path(found.number), path: None })
}

/// Returns the UUID of a filesystem that the image must contain.
fn verify_filesystem(disk: &DevicePath, expected: &ExpectedFilesystem, table: &DiskTable) -> Result<String> {
    let ExpectedFilesystem { number, device, path, format, label } = expected;
    let what = if path.is_empty() { "cloud-init's seed" } else { path };
    let refuse = |why: String| Err(Error::new(Phase::Image, format!("{what} cannot be mounted from {device}: {why}")));
    let Some(partition) = table.partitions.iter().find(|partition| partition.number == *number) else {
        let there: Vec<String> = table.partitions.iter().map(|partition| describe_partition(disk, partition)).collect();
        return refuse(format!(
            "partition {number} is not in the image, which contains only {partitions}",
            partitions = there.join(", ")
        ));
    };
    // Labels of vfat are compared regardless of case: mkfs.vfat accepts lowercase labels, and other tools convert them
    // to uppercase.
    let is_called = |label: &String, found: &str| match format {
        FilesystemFormat::Vfat => label.eq_ignore_ascii_case(found),
        _ => label == found,
    };
    match partition.signatures.as_slice() {
        [one] if one.kind == format.name() && label.as_ref().is_none_or(|label| is_called(label, &one.label)) => {
            Ok(one.uuid.clone())
        }
        _ => {
            let label = label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
            refuse(format!(
                "expected {format}{label}, but the image contains {contents}",
                contents = describe_partition(disk, partition)
            ))
        }
    }
}

/// Describes a partition, such as `/dev/sda1 vfat "EFI"`.
fn describe_partition(disk: &DevicePath, partition: &DiskPartition) -> String {
    let kinds = partition.signatures.iter().map(|signature| match signature.label.as_str() {
        "" => signature.kind.clone(),
        label => format!("{} \"{label}\"", signature.kind),
    });
    let kinds: Vec<String> = kinds.collect();
    let kinds = if kinds.is_empty() { "without a filesystem".to_owned() } else { kinds.join(" and ") };
    format!("{} {kinds}", disk.partition_path(partition.number))
}

#[cfg(test)]
mod tests;
