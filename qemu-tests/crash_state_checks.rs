//! Checks of a reconstructed state of all disks, without a machine. They check three guarantees:
//!
//! * Preserved data: on preserved, partly kept and foreign disks, every byte is unchanged, except in the extents that
//!   the agent has announced, and in the regions that the prepare script names. Each preserved filesystem is
//!   consistent after its journal was replayed, also on each half of a mirror alone, and contains the original files.
//! * No incomplete system: the condition depends on the phase of the reinstall. `Ordered`: the disks boot the complete
//!   old system. `Begun`: the machine boots over the network first, and the server boots the ramdisk; until the
//!   installer of the image runs, the disks boot only a complete old system, and a root with the new marker is the
//!   complete new system. `Done`: the disks boot the complete new system.
//! * Next plan: the agent refuses, or recreates only wiped disks. On other disks, it may write no more than the first
//!   attempt.
//!
//! Disks boot a system if they have a boot loader and an ext4 filesystem with a kernel
//! (`agent_plan_after_crash::boot_loader`). A system is complete if its filesystem is consistent after its journal
//! was replayed, and contains every file that the system had before the reinstall, or at the end of the record.

mod preparation_output;

pub use preparation_output::{PreservedExtent, parse_extents};

use crate::agent_plan_after_crash::{BOOT, DevicePresentation, PlanBounds, REINSTALL, ReconstructedContents};
use crate::crash_record::{ReinstallPhase, ReinstallRecord};
use crate::crash_states::{ByteRanges, ReplayedDisk, copy_part};
use crate::host_tools::{Context, Result};
use crate::reconstructed_filesystem::{self, FileDigests};
use model::inventory::Inventory;
use model::layout::Layout;
use preparation_output::parse_regions;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Violated guarantees in a state, and the next action of the agent.
#[derive(Debug, Default)]
pub struct StateFinding {
    pub data: Vec<String>,
    pub plan: Vec<String>,
    pub next: Vec<String>,
}

/// Checker for the crash states of one recorded reinstall. It stores the results of earlier checks.
pub struct CrashStateChecker<'a> {
    record: &'a ReinstallRecord,
    layout: Layout,
    bounds: PlanBounds,
    look: DevicePresentation<'a>,
    extents: Vec<PreservedExtent>,
    /// Paths and digests of the files that were written for the test.
    proofs: Vec<(String, String)>,
    /// Ranges for which the log contains writes, but whose contents must not have changed, by disk.
    forbidden: BTreeMap<String, ByteRanges>,
    /// All bytes that were written, by disk.
    touched: BTreeMap<String, ByteRanges>,
    scratch: PathBuf,
    /// Results of earlier checks of filesystems, by index of the filesystem and digest of its bytes.
    filesystems: HashMap<(usize, String), Option<String>>,
    plans: HashMap<(ReinstallPhase, String), std::result::Result<String, String>>,
    known_roots: HashMap<Vec<(usize, u64)>, Result<String>>,
    /// Digest of all files of the old root filesystem, and that of the new one.
    roots: [String; 2],
}

impl<'a> CrashStateChecker<'a> {
    /// Prepares the checks. `base` is the inventory from before the reinstall, and `scratch` is an empty folder.
    ///
    /// # Errors
    /// Fails if the record is incomplete.
    pub fn new(
        record: &'a ReinstallRecord,
        base: &'a Inventory,
        disks: &[ReplayedDisk],
        scratch: &Path,
    ) -> Result<CrashStateChecker<'a>> {
        let allocation = record.answers.get(&ReinstallPhase::Ordered).and_then(|machine| machine.allocation.as_ref());
        let parsed = allocation.ok_or("no allocation in the record")?.parse_layout();
        let layout = parsed.map_err(|problems| format!("the layout: {problems:?}"))?.layout;
        let bounds = PlanBounds::new(record, &layout);
        let look = DevicePresentation::new(base, disks, &bounds.wiped, &scratch.join("machine"))?;
        let proofs = record.prepared.lines().filter_map(|line| line.trim().strip_prefix("proof: "));
        let proofs = proofs.filter_map(|line| line.rsplit_once(' '));
        let (mut forbidden, mut touched) = (BTreeMap::new(), BTreeMap::new());
        for disk in disks {
            let written = ByteRanges::new(disk.records.iter().map(|record| (record.start, record.length)));
            if !bounds.is_completely_wiped(&disk.name) {
                let named = written.intersect_with(&parse_regions(&record.prepared, &disk.name)?);
                let outside = written.exclude_ranges(&bounds.open[&disk.name]);
                forbidden.insert(disk.name.clone(), ByteRanges::new(named.iter().chain(outside.iter())));
            }
            touched.insert(disk.name.clone(), written);
        }
        Ok(CrashStateChecker {
            extents: parse_extents(&record.prepared)?,
            proofs: proofs.map(|(path, digest)| (path.to_owned(), digest.to_owned())).collect(),
            record,
            layout,
            bounds,
            look,
            forbidden,
            touched,
            scratch: scratch.to_owned(),
            filesystems: HashMap::new(),
            plans: HashMap::new(),
            known_roots: HashMap::new(),
            roots: Default::default(),
        })
    }

    pub fn wiped(&self) -> &[String] {
        &self.bounds.wiped
    }

    /// Records the root filesystem that is now on the disks as the old or the new one. Also checks the next action of
    /// the agent, because an agent that refuses all states for another reason would make the checks meaningless.
    ///
    /// # Errors
    /// Fails if there is no root filesystem, it is incomplete, or the agent would carry out another action.
    pub fn record_root(&mut self, disks: &[ReplayedDisk], is_new: bool) -> Result<()> {
        let seen = self.look.probe_disks(disks)?;
        let (phase, wanted) = if is_new { (ReinstallPhase::Done, BOOT) } else { (ReinstallPhase::Ordered, REINSTALL) };
        let next = self.find_next_action(&seen.inventory, phase)?;
        if next.as_ref().map(String::as_str) != Ok(wanted) {
            return Err(format!("the agent would not {wanted} with the disks as they are: {next:?}"));
        }
        if !seen.bootable {
            return Err("the disks are not bootable before or after the reinstall".to_owned());
        }
        self.roots[usize::from(is_new)] = self.root_files(disks, &seen)??;
        Ok(())
    }

    /// Returns the violations in the current state of the disks. The server was in one of these phases at that moment.
    ///
    /// # Errors
    /// Fails if the disks cannot be inspected.
    pub fn check_state(
        &mut self,
        disks: &[ReplayedDisk],
        phases: &[ReinstallPhase],
        step: &str,
    ) -> Result<StateFinding> {
        let mut finding = StateFinding { data: self.find_forbidden_writes(disks)?, ..StateFinding::default() };
        finding.data.extend(self.find_damage(disks)?);
        let seen = self.look.probe_disks(disks)?;
        for phase in phases {
            finding.data.extend(self.find_incomplete_system(disks, &seen, *phase, step)?);
            match self.find_next_action(&seen.inventory, *phase)? {
                Ok(next) => finding.next.push(next),
                Err(words) => finding.plan.push(words),
            }
        }
        Ok(finding)
    }

    /// Returns a message for each changed range that must not be written.
    fn find_forbidden_writes(&self, disks: &[ReplayedDisk]) -> Result<Vec<String>> {
        let mut words = Vec::new();
        for disk in disks {
            for (start, length) in self.forbidden.get(&disk.name).into_iter().flat_map(ByteRanges::iter) {
                let (now, before) = disk.now_and_before(start, length)?;
                if let Some(at) = now.iter().zip(&before).position(|(now, before)| now != before) {
                    words.push(format!("{}: byte {} has changed", disk.name, start + at as u64));
                }
            }
        }
        Ok(words)
    }

    /// Returns a message for each preserved filesystem that is damaged or lacks a file.
    fn find_damage(&mut self, disks: &[ReplayedDisk]) -> Result<Vec<String>> {
        let mut words = Vec::new();
        for (index, extent) in self.extents.iter().enumerate() {
            let disk = disks.iter().find(|disk| disk.name == extent.disk).ok_or(format!("no disk {}", extent.disk))?;
            let own = ByteRanges::new([(extent.start, extent.length)]).intersect_with(&self.touched[&disk.name]);
            let key = (index, digest_ranges(disk, &own)?);
            if !self.filesystems.contains_key(&key) {
                let found = self.check_filesystem(disk, extent)?;
                self.filesystems.insert(key.clone(), found);
            }
            let found = self.filesystems[&key].as_ref();
            words.extend(found.map(|found| format!("{} of {}: {found}", disk.name, extent.path)));
        }
        Ok(words)
    }

    fn check_filesystem(&self, disk: &ReplayedDisk, extent: &PreservedExtent) -> Result<Option<String>> {
        let files = match self.read_files(disk, &extent.format, extent.start, extent.length)? {
            Ok(files) => files,
            Err(words) => return Ok(Some(words)),
        };
        let mut inside = self
            .proofs
            .iter()
            .filter_map(|(path, digest)| Some((path, path.strip_prefix(&extent.path)?.strip_prefix('/')?, digest)));
        let lost = inside.find(|(_, inside, digest)| files.get(*inside) != Some(digest));
        Ok(lost.map(|(path, ..)| format!("{path} has changed")))
    }

    /// Reads the files of the filesystem in a range of the disk. The tools read a copy, because they also write to it.
    fn read_files(&self, disk: &ReplayedDisk, format: &str, start: u64, length: u64) -> Result<Result<FileDigests>> {
        let path = self.scratch.join("view");
        let file = File::create(&path).context(path.display())?;
        file.set_len(length).context(path.display())?;
        copy_part(&disk.file, &file, start, length).context(path.display())?;
        reconstructed_filesystem::read_files(format, &path, &self.scratch.join("files"))
    }

    /// Returns a message if an incomplete system can be booted.
    fn find_incomplete_system(
        &mut self,
        disks: &[ReplayedDisk],
        seen: &ReconstructedContents,
        phase: ReinstallPhase,
        step: &str,
    ) -> Result<Option<String>> {
        let marker = seen.inventory.filesystems.iter().find_map(|inside| inside.marker.as_ref());
        let image = marker.map(|marker| marker.image.as_str());
        let record = self.record;
        let has_image = |number: usize| image == Some(record.images[number].as_str());
        let which = match (phase, seen.bootable) {
            (ReinstallPhase::Ordered, true) => 0,
            (ReinstallPhase::Done, true) => 1,
            (ReinstallPhase::Ordered | ReinstallPhase::Done, false) => {
                return Ok(Some("the disks are not bootable".to_owned()));
            }
            (ReinstallPhase::Begun, true) if has_image(1) => 1,
            (ReinstallPhase::Begun, true) if has_image(0) => 0,
            (ReinstallPhase::Begun, true) if !self.has_installer_begun(step) => {
                return Ok(Some("the disks boot a system without a marker".to_owned()));
            }
            (ReinstallPhase::Begun, _) => return Ok(None),
        };
        Ok(match self.root_files(disks, seen)? {
            Ok(files) if files == self.roots[which] => None,
            Ok(_) => {
                Some(format!("the disks boot {}, whose files are not the expected ones", image.unwrap_or("a system")))
            }
            Err(words) => Some(format!("the disks boot {}: {words}", image.unwrap_or("a system"))),
        })
    }

    fn has_installer_begun(&self, step: &str) -> bool {
        let groups = self.record.announced["extents"].as_array().into_iter().flatten();
        let steps: Vec<&str> = groups
            .flat_map(|group| group["steps"].as_array().into_iter().flatten())
            .filter_map(|it| it.as_str())
            .collect();
        let place = |name: &str| steps.iter().position(|step| *step == name);
        place(step).is_some_and(|now| place("target.installer").is_some_and(|installer| installer <= now))
    }

    /// Returns the digest of all files in the root filesystem on the disks, or the reason why the root filesystem is
    /// damaged.
    fn root_files(&mut self, disks: &[ReplayedDisk], seen: &ReconstructedContents) -> Result<Result<String>> {
        let key: Vec<(usize, u64)> =
            disks.iter().filter(|disk| self.bounds.wiped.contains(&disk.name)).map(ReplayedDisk::state_key).collect();
        if let Some(known) = self.known_roots.get(&key) {
            return Ok(known.clone());
        }
        let found = seen.inventory.filesystems.iter().find(|inside| inside.marker.is_some());
        let device = found.map(|found| found.device.clone()).ok_or("no root with a marker")?;
        let mut parts = seen.inventory.disks.iter().flat_map(|disk| {
            let parts = disk.table.iter().flat_map(|table| &table.partitions);
            parts.map(move |part| (&disk.name, part))
        });
        let (name, part) = parts.find(|(_, part)| part.device == device).ok_or(format!("no partition {device}"))?;
        let disk = disks.iter().find(|disk| disk.name == *name).ok_or(format!("no disk {name}"))?;
        let files = self.read_files(disk, "ext4", part.start_bytes, part.size_bytes)?;
        let digest = files.map(|files| format!("{:x}", Sha256::digest(format!("{files:?}"))));
        self.known_roots.insert(key, digest.clone());
        Ok(digest)
    }

    fn find_next_action(
        &mut self,
        found: &Inventory,
        phase: ReinstallPhase,
    ) -> Result<std::result::Result<String, String>> {
        let text = serde_json::to_vec(found).context("the inventory")?;
        let key = (phase, format!("{:x}", Sha256::digest(text)));
        if let Some(known) = self.plans.get(&key) {
            return Ok(known.clone());
        }
        let answer = self.record.answers.get(&phase).ok_or(format!("no answer of the server: {phase:?}"))?;
        let result = self.bounds.check_plan(answer, &self.layout, found);
        self.plans.insert(key, result.clone());
        Ok(result)
    }

    /// Returns the number of different plans, and the number of different preserved filesystems, that were checked.
    pub fn count_results(&self) -> (usize, usize) {
        (self.plans.len(), self.filesystems.len())
    }
}

/// Returns the digest of these ranges of the disk.
fn digest_ranges(disk: &ReplayedDisk, ranges: &ByteRanges) -> Result<String> {
    let mut digest = Sha256::new();
    for (start, length) in ranges.iter() {
        digest.update(disk.now_and_before(start, length)?.0);
    }
    Ok(format!("{:x}", digest.finalize()))
}

/// Tests that the output of the script is parsed, that writes are compared with the permitted ranges, and that bootable
/// systems are compared with the expected ones.
pub fn self_test() {
    let output = "noise\nextent: vdb 512 1024 ext4 /srv\r\nregion: vdb 8192 512 a place\nregion: vdbx 0 512 another\nproof: /srv/a 1\n";
    let extent = PreservedExtent {
        disk: "vdb".to_owned(),
        start: 512,
        length: 1024,
        format: "ext4".to_owned(),
        path: "/srv".to_owned(),
    };
    assert_eq!(parse_extents(output), Ok(vec![extent]));
    assert!(parse_extents("nothing").is_err() && parse_extents("extent: vdb 1 x ext4 /srv").is_err());
    assert_eq!(parse_regions(output, "vdb"), Ok(ByteRanges::new([(8192, 512)])));
    assert!(parse_regions("region: vdb x 1 y", "vdb").is_err());

    let folder = crate::write_log::test_folder("crash-checks");
    let (record, disks) = test_record(&folder, output);
    let base = record.inventory.clone();
    let mut checker = CrashStateChecker::new(&record, &base, &disks, &folder.join("scratch")).expect("a checker");
    test_forbidden_writes(&checker, disks);
    test_bootable_systems(&mut checker);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Returns a record and its two disks, which have the same write log. One disk is wiped. The other is preserved, except
/// for 4 KiB that may be written.
pub fn test_record(folder: &Path, output: &str) -> (ReinstallRecord, Vec<ReplayedDisk>) {
    use serde_json::json;
    let disks =
        ["vda", "vdb"].map(|name| crate::crash_states::test_disk(folder, name, &crate::crash_states::TEST_HEADS));
    let known = |name: &str| model::inventory::InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes: 65536,
        sector_bytes: 512,
        ..Default::default()
    };
    let inventory = Inventory { disks: vec![known("vda"), known("vdb")], ..Inventory::default() };
    let layout = json!({"id": "x", "disks": [
        {"device": "/dev/vda", "wipeonreinstall": true, "partitions": [{"number": 1, "label": "r", "size": 0, "gpttype": "8300"}]},
        {"device": "/dev/vdb", "wipeonreinstall": false, "partitions": [{"number": 1, "label": "d", "size": 0, "gpttype": "8300"}]},
    ], "filesystems": [{"path": "/", "device": "/dev/vda1", "format": "ext4", "label": "r"}]});
    let machine = json!({"id": "m", "allocation": {"allocationuuid": "a", "hostname": "h", "image": {"id": "i", "url": "u"},
        "filesystemlayout": layout}});
    let record = json!({
        "uuid": "m", "mac": "", "disks": ["vda", "vdb"], "inventory": inventory, "prepared": output, "images": ["old", "new"],
        "announced": {"extents": [{"steps": ["storage.wipe", "image.burn"], "disks": [
            {"device": "/dev/vdb", "serial": "", "ranges": [{"start": 0, "length": 4096}]},
        ]}, {"steps": ["target.installer", "target.marker"], "disks": []}]},
        "answers": {"ordered": machine}, "moments": [],
    });
    (serde_json::from_value(record).expect("a record"), disks.into())
}

fn test_forbidden_writes(checker: &CrashStateChecker, mut disks: Vec<ReplayedDisk>) {
    assert_eq!(checker.wiped(), ["vda"]);
    // The writes at 0 and 2048 and the discard at 0 are permitted; the writes at 4096, 8192 and 16384 are not.
    let changed = |disks: &[ReplayedDisk]| checker.find_forbidden_writes(disks).expect("compared");
    for disk in &mut disks {
        disk.advance_to(3).expect("advanced");
    }
    assert_eq!(changed(&disks), Vec::<String>::new());
    disks[0].advance_to(8).expect("advanced");
    assert_eq!(changed(&disks), Vec::<String>::new(), "a wiped disk may be written");
    disks[1].advance_to(4).expect("advanced");
    assert_eq!(changed(&disks), ["vdb: byte 4096 has changed"]);
    let more = crate::crash_states::take_all_parts(&disks[1], 4, 6);
    let undo = disks[1].apply_parts(&more).expect("tried");
    assert_eq!(changed(&disks), ["vdb: byte 4096 has changed", "vdb: byte 8192 has changed"]);
    disks[1].restore_contents(undo).expect("undo the writes");
    assert_eq!(changed(&disks), ["vdb: byte 4096 has changed"]);
}

fn test_bootable_systems(checker: &mut CrashStateChecker) {
    let mut words = |bootable, phase, step: &str| {
        let seen = ReconstructedContents { inventory: Inventory::default(), bootable };
        checker.find_incomplete_system(&[], &seen, phase, step).expect("checked")
    };
    assert!(words(true, ReinstallPhase::Begun, "image.burn").is_some_and(|words| words.contains("without a marker")));
    assert_eq!(words(true, ReinstallPhase::Begun, "target.installer"), None);
    assert_eq!(words(true, ReinstallPhase::Begun, "target.marker"), None);
    assert_eq!(words(false, ReinstallPhase::Begun, "image.burn"), None);
    for phase in [ReinstallPhase::Ordered, ReinstallPhase::Done] {
        assert!(words(false, phase, "").is_some_and(|words| words.contains("not bootable")));
    }
}
