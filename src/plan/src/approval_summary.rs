//! Effect of a plan on the data of a machine, in a canonical form: the server and the agent produce the same bytes for
//! the same plan. The effect is a list of verdicts: for each disk and object, whether it is wiped, created or
//! preserved. The operator approves this effect, and the agent compares it with the effect of its own plan.
//!
//! Each disk is listed with its serial number, WWN and current content. Other objects are identified by their names
//! in the layout. Random ids of new objects are omitted. Kernel names of disks are omitted if the disks have a unique
//! identifier.
//!
//! A table in docs/approval-verdicts.md describes the format. A change of the format or of its wording requires a
//! new [`VERSION`].

mod disks;

use common::error_code::ErrorCode;
use disks::DiskNames;

pub use super::types::{ApprovalSummary, ApprovedDisk, ApprovedObject, ObjectFate, VERSION};

use super::plan_decisions::{ArrayFate, GroupFate, PlanDecisions};

use super::planner_state::verdict_on_disk;
use super::{
    DiskVerdict, FilesystemFate, InstallMode, PersistentVerdict, PersistentVolume, PlanRequest, image_boot_setup,
    migration_target, step_selection,
};
use common::diagnostic::Diagnostic;
use model::device_name::LayoutPath;
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{self, FilesystemFormat, Layout};
use model::storage_graph::{LayoutMatch, disk_lookup};

/// Returns the summary of a plan without problems.
pub(crate) fn summarize_plan(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    decided: &PlanDecisions,
) -> ApprovalSummary {
    let meant = LayoutMatch::new(layout, inventory);
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let disk = |listed: usize| {
        let disk = meant.matched_disk(listed)?;
        let verdict = decided.disks.iter().find(|is| is.name == disk.name)?.verdict;
        Some(ApprovedDisk::new(&layout.disks[listed], disk, &identifiers, verdict))
    };
    let head = SummaryInputs { layout, request, disks: (0..layout.disks.len()).map(disk).collect() };
    let kind = |is_preserved: bool| Some(if is_preserved { ObjectFate::Kept } else { ObjectFate::Made });
    let is_made = |volume: &layout::LogicalVolumeSpec| {
        decided.volumes.iter().any(|made| made.name == volume.name && made.group == volume.volumegroup)
    };
    let volumes = summarize_volumes(inventory, &identifiers, decided);
    let verdicts = head.build_summary(ObjectFates {
        array: &|index, _| kind(matches!(decided.arrays.get(index), Some(ArrayFate::Preserved { .. }))),
        group: &|index, _| kind(matches!(decided.groups.get(index), Some(GroupFate::Preserved { .. }))),
        volume: &|index, _| kind(!is_made(&layout.logicalvolumes[index])),
        filesystem: &|index, _| match decided.filesystems.get(index)? {
            FilesystemFate::Tmpfs => None,
            FilesystemFate::Preserved { .. } | FilesystemFate::Unformatted { is_preserved: true, .. } => {
                Some(ObjectFate::Kept)
            }
            FilesystemFate::Created(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Unformatted { is_preserved: false, .. } => Some(ObjectFate::Made),
        },
    });
    let mut things = [verdicts.things, volumes].concat();
    things.sort();
    let names = DiskNames::new(&inventory.disks, &identifiers);
    let mut dismantled: Vec<String> = decided.dismantled.iter().map(|dismantled| names.describe(dismantled)).collect();
    dismantled.sort();
    ApprovalSummary { things, dismantled, ..verdicts }
}

/// Returns the verdicts on Kubernetes volumes.
fn summarize_volumes(
    inventory: &Inventory,
    identifiers: &UniqueIdentifiers,
    decided: &PlanDecisions,
) -> Vec<ApprovedObject> {
    let name = |disk: &inventory::InventoryDisk| ApprovedDisk::identify_disk("a disk", disk, identifiers).name();
    let thing = |volume: &PersistentVolume| {
        let disks = inventory.disks.iter().filter(|disk| volume.disks.contains(&disk.name));
        let mut on: Vec<String> = disks.map(name).collect();
        on.sort();
        let fate = match volume.verdict {
            PersistentVerdict::Make => ObjectFate::Made,
            PersistentVerdict::Keep => ObjectFate::Kept,
            PersistentVerdict::Extend => ObjectFate::Added,
            PersistentVerdict::Leave => return None,
        };
        Some(ApprovedObject { fate, name: format!("kubernetes volume {} {}", volume.name, volume.uid), on })
    };
    decided.persistent.planned.iter().filter_map(thing).collect()
}

/// Problem of a prediction for a machine with Kubernetes volumes.
pub(crate) const UNKNOWN_VOLUMES: &str = "it is unknown which Kubernetes volumes would be created or preserved, because \
    the disks must be read again; boot the machine into the ramdisk";

/// Predicts the verdicts for a machine whose disks have changed since the inventory was read. The prediction assumes
/// that the machine still has the same disks, and that they have the content that the layout specifies. The agent
/// refuses to run a plan that differs from the prediction.
///
/// # Errors
/// Returns the problems that do not depend on the content of the disks.
pub(crate) fn predict_summary(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
) -> Result<ApprovalSummary, Vec<Diagnostic>> {
    let meant = request.source().adapt_layout(layout, inventory);
    let layout = &*meant;
    let mut problems = Vec::new();
    if !request.assigned.allocation.volumes.is_null() {
        problems.push(Diagnostic::new("volumes", UNKNOWN_VOLUMES).with_code(ErrorCode::KubernetesVolume));
    }
    let disks = predict_disks(layout, inventory, request, &mut problems);
    if request.mode == InstallMode::Reinstall && !layout.disks.iter().any(|disk| disk.wipeonreinstall) {
        let why = format!("filesystemlayout:{} is not reinstallable, abort reinstallation", layout.id);
        problems.push(Diagnostic::new("disks", why).with_code(ErrorCode::NotReinstallable));
    }
    problems.extend(step_selection::missing_steps(&request.steps));
    problems.extend(image_boot_setup::refuse_finishing(layout, inventory, request));
    if !problems.is_empty() {
        return Err(problems);
    }
    let graph = LayoutGraph::from_layout(layout);
    let preserved = PreservedObjects::from_graph(&graph);
    let kind = |device: Option<&LayoutPath>, on: &[&ApprovedDisk]| {
        let is_marked =
            request.mode == InstallMode::Reinstall && device.is_some_and(|device| preserved.includes_device(device));
        let is_preserved = !on.is_empty() && (is_marked || on.iter().all(|disk| disk.verdict == DiskVerdict::Keep));
        Some(if is_preserved { ObjectFate::Kept } else { ObjectFate::Made })
    };
    let array = |index: usize, on: &[&ApprovedDisk]| kind(Some(&layout.raid[index].arrayname), on);
    // A group is preserved only together with all of its devices, so the fate of the first device is that of the
    // group.
    let group = |index: usize, on: &[&ApprovedDisk]| kind(layout.volumegroups[index].devices.first(), on);
    let volume = |index: usize, on: &[&ApprovedDisk]| kind(Some(&layout.logicalvolumes[index].device_path()), on);
    let filesystem = |index: usize, on: &[&ApprovedDisk]| match layout.filesystems[index].format {
        FilesystemFormat::Tmpfs => None,
        _ => kind(Some(&layout.filesystems[index].device), on),
    };
    let fates = ObjectFates { array: &array, group: &group, volume: &volume, filesystem: &filesystem };
    Ok(SummaryInputs { layout, request, disks }.build_summary(fates))
}

/// Predicts the verdict on each disk of the layout. Disks that cannot be identified are added to `problems`.
fn predict_disks(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    problems: &mut Vec<Diagnostic>,
) -> Vec<Option<ApprovedDisk>> {
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let graph = LayoutGraph::from_layout(layout);
    let mut seen: Vec<&inventory::InventoryDisk> = Vec::new();
    let mut disks = Vec::new();
    for (index, listed) in layout.disks.iter().enumerate() {
        let place = format!("disks[{index}].device");
        match disk_lookup::find_disk(listed, inventory) {
            Ok(disk) if seen.iter().any(|other| other.name == disk.name) => {
                let why = format!(
                    "{listed} refers to {device}, which the layout already lists",
                    listed = listed.device,
                    device = disk.device
                );
                problems.push(Diagnostic::new(place, why).with_code(ErrorCode::DiskListedTwice));
            }
            Ok(disk) => {
                seen.push(disk);
                let verdict = verdict_on_disk(request.mode, Some((&graph, listed)));
                let verdict = ApprovedDisk::new(listed, disk, &identifiers, verdict);
                // The content of the disks has changed since the inventory was read, so the current content is unknown.
                disks.push(Some(ApprovedDisk { contents: None, ..verdict }));
            }
            Err(why) => problems.push(Diagnostic::new(place, why).with_code(ErrorCode::DiskMissing)),
        }
    }
    disks
}

/// Returns the fate of the object with this index in the layout, derived from the disks below it. `None` for a tmpfs.
type ObjectFateFn<'a> = &'a dyn Fn(usize, &[&ApprovedDisk]) -> Option<ObjectFate>;

/// Functions that return the fate of an object of the layout, one for each type of object.
struct ObjectFates<'a> {
    array: ObjectFateFn<'a>,
    group: ObjectFateFn<'a>,
    volume: ObjectFateFn<'a>,
    filesystem: ObjectFateFn<'a>,
}

/// Layout, request and disk verdicts from which a summary is built.
struct SummaryInputs<'a> {
    layout: &'a Layout,
    request: &'a PlanRequest,
    /// Disks in the order of the layout; `None` for an absent disk that the plan does not require.
    disks: Vec<Option<ApprovedDisk>>,
}

impl SummaryInputs<'_> {
    fn build_summary(self, fates: ObjectFates) -> ApprovalSummary {
        let mut things = self.list_objects(&fates);
        things.sort();
        let SummaryInputs { layout, request, disks } = self;
        let mut disks: Vec<ApprovedDisk> = disks.into_iter().flatten().collect();
        disks.sort();
        ApprovalSummary {
            allocation: request.assigned.allocation.id.clone(),
            disks,
            image: request.subject.image.clone(),
            layout: layout.id.clone(),
            layout_digest: migration_target::stored_layout_digest(layout, request),
            machine: request.subject.machine.to_lowercase(),
            mode: request.mode,
            things,
            dismantled: Vec::new(),
            version: VERSION,
        }
    }

    fn list_objects(&self, fates: &ObjectFates) -> Vec<ApprovedObject> {
        let layout = self.layout;
        let graph = LayoutGraph::from_layout(layout);
        let mut things = Vec::new();
        let mut add = |fate: ObjectFateFn, index: usize, name: String, devices: &[LayoutPath]| {
            // The graph numbers disks first, in the order of the layout, so a node number is also an index of `disks`.
            let bottoms = graph.find_bottoms(devices.iter().filter_map(|device| graph.find_device(device)));
            let on: Vec<&ApprovedDisk> =
                bottoms.into_iter().filter_map(|node| self.disks.get(node)?.as_ref()).collect();
            let Some(fate) = fate(index, &on) else { return };
            let mut on: Vec<String> = on.into_iter().map(ApprovedDisk::name).collect();
            on.sort();
            things.push(ApprovedObject { fate, name, on });
        };
        for (index, raid) in layout.raid.iter().enumerate() {
            add(fates.array, index, format!("array {}", raid.arrayname), &raid.devices);
        }
        for (index, group) in layout.volumegroups.iter().enumerate() {
            add(fates.group, index, format!("group {}", group.name), &group.devices);
        }
        for (index, volume) in layout.logicalvolumes.iter().enumerate() {
            let name = format!("volume {}/{}", volume.volumegroup, volume.name);
            add(fates.volume, index, name, &[volume.device_path()]);
        }
        for (index, filesystem) in layout.filesystems.iter().enumerate() {
            let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'));
            let name = match (path, &filesystem.label) {
                (Some(path), _) => format!("{} {path}", filesystem.format.name()),
                (None, Some(label)) => format!("{} {label:?}", filesystem.format.name()),
                (None, None) => filesystem.format.name().to_owned(),
            };
            add(fates.filesystem, index, name, std::slice::from_ref(&filesystem.device));
        }
        things
    }
}
