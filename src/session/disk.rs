//! Raw image: written to its disk, then adapted.

use super::Session;
use super::undo::Undo;
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::image::raw::{Disk, Expected, Target, unique};
use crate::image::{Incoming, Plain, Reached};
use crate::inventory::{Partition, Table};
use crate::layout::{self, Format};
use crate::plan::{BurnDisk, ExpectedFilesystem, Finishing, MountFilesystem, Seed};
use crate::storage::{fit, grow, identify};
use crate::target::{self, finish};
use std::time::Instant;
use time::OffsetDateTime;

/// Starts an image, and refuses one that does not fit the disk before anything is written.
pub(super) fn arriving(reached: Reached, burn: &BurnDisk) -> Result<Incoming> {
    let BurnDisk { device, size_bytes, sector_bytes, .. } = burn;
    let disk = Disk { name: device.clone(), size_bytes: *size_bytes, sector_bytes: *sector_bytes };
    let mut incoming = Incoming::start(reached, Plain::AnyBytes)?;
    incoming.require_disk(&disk, &expected(burn))?;
    Ok(incoming)
}

fn expected(burn: &BurnDisk) -> Expected {
    let partitions = burn.filesystems.iter().map(|is| is.number).collect();
    Expected { partitions, grow: burn.grow, taken: burn.taken.clone(), added: burn.added.clone() }
}

impl Session {
    pub(super) fn burn_disk(&mut self, burn: &BurnDisk) -> Result<()> {
        let BurnDisk { name, device, .. } = burn;
        let incoming = self.reached(name)?;
        let reporter = &*self.reporter;
        let began = Instant::now();
        let target = Target::open(device)?;
        identify::prove(target.file(), &burn.identity)?;
        let burned = incoming.burn_raw(&target, &expected(burn), &|progress| reporter.progress(progress))?;
        let figures = burned.figures(began.elapsed());
        self.say(&format!("{name}: {figures}"));
        self.facts.done.burn = Some(figures);
        let (bytes, raw_bytes, resumed) = (burned.bytes, burned.tar_bytes, burned.resumed);
        self.say(&format!("{name}: {raw_bytes} bytes onto {device} from {bytes}, connection resumed {resumed} times"));
        drop(target);
        self.arrived(burn)
    }

    /// Adapts the table to the disk, and verifies that the filesystems to mount exist, whatever has filled the disk.
    pub(super) fn arrived(&mut self, burn: &BurnDisk) -> Result<()> {
        let BurnDisk { device, grow, filesystems, taken, added, .. } = burn;
        self.held.prove_below(device)?;
        let table = fit::fit(device, *grow, added.as_ref())?.unwrap_or_default();
        // Ids of filesystems are known only now.
        unique::check(&table, device, taken).context(Phase::Image, || format!("contents of {device}"))?;
        self.brought_seed = seed_in(device, &table);
        for expected in filesystems {
            let found = brought(device, expected, &table)?;
            if expected.path == "/" {
                self.brought_root_uuid = Some(found);
            }
        }
        Ok(())
    }

    pub(super) fn grow(&self, mount: &MountFilesystem) -> Result<()> {
        let point = self.mounts.root().join(mount.path.trim_start_matches('/'));
        let bytes = grow::grow(&mount.device, mount.format, &point)?;
        self.say(&format!("{}: {} grown to {}", mount.device, mount.format, crate::text::bytes(bytes)));
        Ok(())
    }

    /// Adapts an image that requires no installer, and contains its boot loader.
    pub(super) fn adapt_image(&mut self, finishing: &Finishing) -> Result<()> {
        let finishing = &self.finishing_with_secrets(finishing);
        let root = self.root()?;
        target::marker::forget(&root)?;
        self.undo.push(Undo::EndProcesses);
        let (reporter, root_uuid) = (&*self.reporter, self.root_uuid(&finishing.files));
        // The layout's seed has precedence over the image's.
        let seed = finishing.seed.clone().or_else(|| self.brought_seed.clone());
        let finishing = &Finishing { seed, ..finishing.clone() };
        finish::raw(&root, finishing, root_uuid, OffsetDateTime::now_utc(), &|line| reporter.say(line))?;
        self.say_what_boots(&root)
    }
}

/// Returns the partition of the image for cloud-init's seed.
fn seed_in(disk: &DevicePath, table: &Table) -> Option<Seed> {
    let is_for_seed = |partition: &&Partition| match partition.signatures.as_slice() {
        [one] => one.kind == Format::Vfat.name() && layout::is_for_seed(&one.label),
        _ => false,
    };
    let found = table.partitions.iter().find(is_for_seed)?;
    Some(Seed { device: disk.partition(found.number), path: None })
}

/// Returns the UUID of a filesystem that the image must contain.
fn brought(disk: &DevicePath, expected: &ExpectedFilesystem, table: &Table) -> Result<String> {
    let ExpectedFilesystem { number, device, path, format, label } = expected;
    let what = if path.is_empty() { "cloud-init's seed" } else { path };
    let refuse = |why: String| Err(Error::new(Phase::Image, format!("{what} cannot be mounted from {device}: {why}")));
    let Some(partition) = table.partitions.iter().find(|partition| partition.number == *number) else {
        let there: Vec<String> = table.partitions.iter().map(|partition| in_words(disk, partition)).collect();
        return refuse(format!("the image lacks partition {number}; it has {}", there.join(", ")));
    };
    // mkfs.vfat accepts lowercase labels, and other tools convert them to uppercase.
    let is_called = |label: &String, found: &str| match format {
        Format::Vfat => label.eq_ignore_ascii_case(found),
        _ => label == found,
    };
    match partition.signatures.as_slice() {
        [one] if one.kind == format.name() && label.as_ref().is_none_or(|label| is_called(label, &one.label)) => {
            Ok(one.uuid.clone())
        }
        _ => {
            let label = label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
            refuse(format!("expected {format}{label}, but the image has {}", in_words(disk, partition)))
        }
    }
}

/// Describes a partition, such as `/dev/sda1 vfat "EFI"`.
fn in_words(disk: &DevicePath, partition: &Partition) -> String {
    let kinds = partition.signatures.iter().map(|is| match is.label.as_str() {
        "" => is.kind.clone(),
        label => format!("{} \"{label}\"", is.kind),
    });
    let kinds: Vec<String> = kinds.collect();
    let kinds = if kinds.is_empty() { "without a filesystem".to_owned() } else { kinds.join(" and ") };
    format!("{} {kinds}", disk.partition(partition.number))
}

#[cfg(test)]
mod tests;
