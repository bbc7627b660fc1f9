//! Tests the wipe of a disk that has copies of BlueStore labels. A preserved partition and an unlisted disk have the
//! same content.

use super::*;
use linux::storage::partition_table::write_partition_table;
use model::inventory::{DeviceSignature, DiskPartition, DiskTable, InventoryDisk};
use model::layout::{DiskSpec, FilesystemSpec, PartitionSpec, PartitionType};
use nix::unistd::{Whence, lseek};
use plan::DiskVerdict;
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SIZE: u64 = 12 * GIB;
const SECOND: u64 = 10 * GIB + 512 * MIB;
const LABEL: &[u8] = b"bluestore block device\n";

/// Start and end of the zeroed ranges on a disk with two old partitions: from 1 MiB to [`SECOND`], and from there to
/// the last MiB.
const ZEROED: [(u64, u64); 11] = [
    (0, 7 * MIB),
    (GIB, GIB + 4096),
    (GIB + MIB, GIB + MIB + 4096),
    (GIB + 2 * MIB, GIB + 2 * MIB + 4096),
    (10 * GIB, 10 * GIB + 4096),
    (10 * GIB + MIB, 10 * GIB + MIB + 4096),
    (10 * GIB + 2 * MIB, 10 * GIB + 2 * MIB + 4096),
    (SECOND - 2 * MIB, SECOND + 6 * MIB),
    (SECOND + GIB, SECOND + GIB + 4096),
    (SECOND + GIB + MIB, SECOND + GIB + MIB + 4096),
    (SIZE - 3 * MIB, SIZE),
];

/// Sparse disk with labels directly inside and outside both ends of each range in [`ZEROED`].
struct LabeledDisk {
    disk: TestLoopDevice,
    sector: u64,
}

impl LabeledDisk {
    fn new(sector_bytes: u32) -> LabeledDisk {
        let labeled = LabeledDisk { disk: TestLoopDevice::new(SIZE, sector_bytes), sector: sector_bytes.into() };
        let image = fs::OpenOptions::new().write(true).open(labeled.disk.image()).unwrap();
        let inside = ZEROED.iter().flat_map(|(start, end)| [*start, end - labeled.sector]);
        labeled.outside().into_iter().chain(inside).for_each(|at| image.write_all_at(LABEL, at).unwrap());
        labeled
    }

    fn outside(&self) -> Vec<u64> {
        let all = ZEROED.iter().flat_map(|(start, end)| [start.checked_sub(self.sector), Some(*end)]);
        all.flatten().filter(|at| *at < SIZE).collect()
    }

    /// Writes a partition table with these partitions, given as start and end. Returns the disk as in an inventory.
    fn partitioned(&self, partitions: &[(u64, u64)]) -> InventoryDisk {
        let numbered = || (1..).zip(partitions.iter().copied());
        let sectors: Vec<_> =
            numbered().map(|(number, (start, end))| (number, start / self.sector, end / self.sector - 1)).collect();
        write_partition_table(&self.disk.table(self.sector as u32, &sectors)).unwrap();
        let partitions = numbered().map(|(number, (start, end))| DiskPartition {
            number,
            device: self.disk.partition(number),
            start_bytes: start,
            size_bytes: end - start,
            kind: PartitionType::Linux.guid().to_string(),
            ..DiskPartition::default()
        });
        let partitions = partitions.collect();
        InventoryDisk {
            table: Some(DiskTable { kind: "gpt".into(), partitions, ..DiskTable::default() }),
            ..self.found()
        }
    }

    fn found(&self) -> InventoryDisk {
        let device = self.disk.path().clone();
        InventoryDisk {
            name: device.as_str().trim_start_matches("/dev/").into(),
            diskseq: self.disk.identity().diskseq.map_or(0, |number| number.get()),
            size_bytes: SIZE,
            sector_bytes: self.sector as u32,
            device,
            ..InventoryDisk::default()
        }
    }

    /// Returns all sectors that are not zero, with their content.
    fn content(&self) -> BTreeMap<u64, Vec<u8>> {
        let image = fs::File::open(self.disk.image()).unwrap();
        let (mut found, mut end) = (BTreeMap::new(), 0);
        while let Ok(start) = lseek(&image, end, Whence::SeekData) {
            end = lseek(&image, start, Whence::SeekHole).unwrap();
            for at in (start as u64..end as u64).step_by(self.sector as usize) {
                let mut sector = vec![0; self.sector as usize];
                image.read_exact_at(&mut sector, at).unwrap();
                if sector.iter().any(|byte| *byte != 0) {
                    found.insert(at, sector);
                }
            }
        }
        found
    }
}

/// Returns a layout with one partition on each disk. A reinstall preserves the second disk.
fn layout(wiped: &LabeledDisk, preserved: &LabeledDisk) -> Layout {
    let disk = |device: &DevicePath, wipeonreinstall| DiskSpec {
        device: device.as_str().into(),
        hints: BTreeMap::new(),
        wipeonreinstall,
        image: false,
        partitions: vec![PartitionSpec { number: 1, label: None, size: 0.into(), kind: None, preserve: false }],
    };
    let filesystem = |path: &str, device: DevicePath| FilesystemSpec {
        path: Some(path.to_owned()),
        device: device.as_str().into(),
        format: FilesystemFormat::Ext4,
        label: None,
        mountoptions: vec![],
        createoptions: vec![],
        reinstall: Default::default(),
        grow: false,
        encrypted: None,
        preserve: false,
    };
    Layout {
        disks: vec![disk(wiped.disk.path(), true), disk(preserved.disk.path(), false)],
        filesystems: vec![filesystem("/", wiped.disk.partition(1)), filesystem("/srv", preserved.disk.partition(1))],
        ..Layout::default()
    }
}

/// Plans a reinstall, and runs its stages up to `last`.
fn reinstall_up_to(last: StageName, layout: &Layout, inventory: &Inventory) -> Vec<DiskVerdict> {
    let (steps, assigned) = (StepList::default(), PlanAssignment::default());
    let request =
        PlanRequest { mode: InstallMode::Reinstall, steps, subject: PlanSubject::default(), assigned, claim: None };
    let whole =
        plan::make_plan(layout, inventory, request, &mut uuid::Uuid::new_v4).unwrap_or_else(|no| panic!("{no}"));
    let (verdicts, root_uuid) = (whole.disks.iter().map(|disk| disk.verdict).collect(), whole.root_uuid);
    let runs = |name| name >= StageName::StorageIdentify && name <= last && name != StageName::StorageRehearse;
    let stages = whole.stages.into_iter().filter(|stage| runs(stage.name));
    let mut session = Bench::new().session();
    let stages = stages.map(|stage| (stage.name, stage.operations)).collect();
    session.run_plan(&plan(stages)).map_err(|failure| failure.error).unwrap();
    session.leave_session(FailureState::Complete);
    // Removes the symbolic link to the root filesystem, which the plan has created.
    let _ = fs::remove_file(Path::new("/dev/disk/by-uuid").join(root_uuid));
    verdicts
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_label_copies_are_zeroed_only_on_wiped_disks() {
    for sector_bytes in [512, 4096] {
        let [wiped, preserved, unlisted] = [(); 3].map(|()| LabeledDisk::new(sector_bytes));
        let layout = layout(&wiped, &preserved);
        let old = wiped.partitioned(&[(MIB, SECOND), (SECOND, SIZE - MIB)]);
        let mut stays = preserved.partitioned(&[(MIB, SIZE - MIB)]);
        let ext4 = DeviceSignature {
            kind: "ext4".into(),
            usage: "filesystem".into(),
            uuid: UUID.into(),
            ..DeviceSignature::default()
        };
        stays.table.as_mut().unwrap().partitions[0].signatures = vec![ext4];
        let inventory = Inventory { disks: vec![old, stays, unlisted.found()], ..Inventory::default() };
        let others = || (preserved.content(), unlisted.content());
        let before = others();

        let verdicts = reinstall_up_to(StageName::StorageWipe, &layout, &inventory);
        assert!(others() == before, "a disk that is not wiped has changed");
        assert_eq!(verdicts, [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::NotOurs]);
        let left: Vec<u64> = wiped.content().into_keys().collect();
        assert_eq!(left, wiped.outside(), "sectors of {sector_bytes} bytes");
        assert!(wiped.content().values().all(|sector| sector.starts_with(LABEL)));

        // The interrupted attempt has erased the partition table. The next attempt also zeroes the copies of labels in
        // its new partition.
        let inventory = Inventory { disks: [&[wiped.found()], &inventory.disks[1..]].concat(), ..inventory };
        reinstall_up_to(StageName::StorageFormat, &layout, &inventory);
        assert!(others() == before, "a disk that is not wiped has changed");
        assert_eq!(signature(&wiped.disk.partition(1)), "ext4");
    }
}

/// Disks are wiped at the same time, so all of them are verified before the first one is written.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_no_disk_is_wiped_if_another_one_has_changed() {
    let [unchanged, grown] = [(); 2].map(|()| LabeledDisk::new(512));
    let disks = [&unchanged.disk, &grown.disk];
    let identify = (StageName::StorageIdentify, disks.map(identify_operation).into());
    let zero = || ZEROED.iter().map(|(start, end)| ByteRange { start: *start, length: end - start }).collect();
    let wipe = (StageName::StorageWipe, disks.map(|disk| wipe_operation(disk.path().clone(), zero())).into());
    let mut session = Bench::new().session();
    session.run_plan(&plan(vec![identify])).map_err(|failure| failure.error).unwrap();
    fs::OpenOptions::new().write(true).open(grown.disk.image()).and_then(|image| image.set_len(SIZE + MIB)).unwrap();
    linux::process::ToolCommand::new("losetup").args(["--set-capacity", grown.disk.path().as_str()]).run().unwrap();
    let before = (unchanged.content(), grown.content());
    let failure = session.run_plan(&plan(vec![wipe])).unwrap_err();
    let expected = format!("{SIZE} bytes are now {}; the disk was not changed", SIZE + MIB);
    assert!(failure.error.to_string().contains(&expected), "{}", failure.error);
    assert!(before == (unchanged.content(), grown.content()), "a disk was wiped");
}
