//! Kubernetes volumes on random layouts and machines.

use super::*;
use crate::tests::operation_effects::effect;
use crate::tests::property_counts::PropertyCounts;
use crate::tests::random_layouts_and_machines::{NAMES, any_layout, any_machine};
use operations::{DeviceOp, Operation};
use proptest::prelude::*;

prop_compose! {
    /// Returns volumes on disks, in groups, and in files. The layout need not list these disks and groups.
    fn any_volumes()(
        drawn in prop::collection::vec((0usize..4, any::<bool>(), 0..NAMES.len(), 1u64..80), 1..6),
    ) -> Vec<Value> {
        let groups = ["vg-data4", "vg-data5", "vg-system4", "vg-system5"];
        let one = |(index, (kind, block, at, size)): (usize, (usize, bool, usize, u64))| {
            let mode = if block { "Block" } else { "Filesystem" };
            let (name, number) = (format!("kv{index}"), index as u8);
            match kind {
                0 => raw(&name, number, mode, &format!("/dev/{}", NAMES[at])),
                1 => in_group(&name, number, mode, groups[at % groups.len()], &format!("{size}Mi")),
                2 => discover(&name, number, json!({})),
                _ => sparse(&name, number, mode, &format!("{}Mi", size + 4)),
            }
        };
        drawn.into_iter().enumerate().map(one).collect()
    }
}

/// Returns the volumes without those that cause a refusal, which an operator would remove from the list.
fn accepted(layout: &Layout, machine: &Inventory, mode: InstallMode, volumes: Vec<Value>) -> Vec<Value> {
    let mut good: Vec<Value> = Vec::new();
    for volume in volumes {
        let more = [&good[..], &[volume]].concat();
        if planned(layout, machine, mode, &more).is_ok() {
            good = more;
        }
    }
    good
}

/// Returns the content (signatures, tables and groups) of disks that the plan preserves or does not write.
fn of_others(inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let written: Vec<&model::device_name::DevicePath> = plan
        .stages
        .iter()
        .flat_map(|stage| &stage.operations)
        .filter(|operation| matches!(operation, Operation::Device(DeviceOp::CreateK8sVolume(_))))
        .flat_map(|operation| effect(operation).destroyed)
        .collect();
    let stays = |disk: &&model::inventory::InventoryDisk| {
        let verdict = plan.disks.iter().find(|is| is.name == disk.name).unwrap().verdict;
        matches!(verdict, DiskVerdict::Keep | DiskVerdict::NotOurs | DiskVerdict::Volumes)
            && !written.contains(&&disk.device)
    };
    let disks = inventory.disks.iter().filter(stays);
    // Devices that were assembled only for inspection are stopped.
    let without_uses = |disk: &model::inventory::InventoryDisk| {
        let mut table = disk.table.clone();
        table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| part.uses.clear());
        format!("{} {:?} {:?}", disk.name, disk.signatures, table)
    };
    disks.map(without_uses).collect()
}

#[test]
fn no_volume_changes_another_volume() {
    let judged = PropertyCounts::new("no_volume_changes_another_volume");
    proptest!(ProptestConfig::with_cases(60), |(
        layout in any_layout(),
        machine in any_machine(),
        volumes in any_volumes(),
        more in any_volumes(),
    )| {
        judged.case();
        let mut machine = machine;
        for disk in &mut machine.disks {
            disk.blank = disk.table.is_none() && disk.signatures.is_empty() && disk.uses.is_empty();
        }
        let Ok(bare) = planned(&layout, &machine, InstallMode::Install, &[]) else { return Ok(()) };
        let volumes = accepted(&layout, &machine, InstallMode::Install, volumes);
        let first = planned(&layout, &machine, InstallMode::Install, &volumes).unwrap();
        judged.note("installations", true);
        judged.note("with volumes", !first.volumes.is_empty());
        judged.note("on disks that the layout does not name", !first.summary.volumes.is_empty());
        assert_sound(&first, &machine);
        // The disks of the layout have the same verdicts as in the plan without volumes.
        prop_assert_eq!(first.summary.wiped.clone(), bare.summary.wiped.clone());
        let installed = after(&first, machine.clone());
        prop_assert_eq!(of_others(&machine, &first), of_others(&installed, &first));
        // A reinstall refuses sparse volumes in the root filesystem, and volumes of groups on wiped disks.
        let volumes = accepted(&layout, &installed, InstallMode::Reinstall, volumes);
        let Ok(second) = planned(&layout, &installed, InstallMode::Reinstall, &volumes) else { return Ok(()) };
        judged.note("reinstalls", true);
        let made = |plan: &Plan| plan.volumes.iter().any(|volume| volume.verdict != PersistentVerdict::Keep && !volume.kind.starts_with("sparse"));
        prop_assert!(!made(&second), "{}", second);
        let rename = |mut volume: Value| {
            let number = volume["metadata"]["name"].as_str().unwrap().trim_start_matches("kv").parse::<u8>().unwrap() + 100;
            volume["metadata"] = json!({"name": format!("kv{number}"), "uid": uid(number)});
            volume
        };
        let more = [volumes, more.into_iter().map(rename).collect()].concat();
        let more = accepted(&layout, &installed, InstallMode::Reinstall, more);
        let Ok(third) = planned(&layout, &installed, InstallMode::Reinstall, &more) else { return Ok(()) };
        judged.note("reinstalls that add volumes to a preserved group", third.volumes.iter().any(|volume| volume.verdict == PersistentVerdict::Extend && volume.kind.starts_with("lvm")));
        assert_sound(&third, &installed);
        let reinstalled = after(&third, installed.clone());
        prop_assert_eq!(of_others(&installed, &third), of_others(&reinstalled, &third));
        for volume in third.volumes.iter().filter(|volume| volume.verdict == PersistentVerdict::Keep) {
            let signatures = |inventory: &Inventory| {
                let device = model::storage_graph::all_units(inventory).find(|(device, _)| **device == volume.device);
                device.map(|(_, unit)| unit.signatures().to_vec())
            };
            prop_assert_eq!(signatures(&installed), signatures(&reinstalled));
        }
    });
    judged.assert_shares(&[
        ("installations", 12),
        ("with volumes", 8),
        ("on disks that the layout does not name", 4),
        ("reinstalls", 8),
        ("reinstalls that add volumes to a preserved group", 0),
    ]);
}

/// Changes a machine as it may change between two installations: a missing disk, renamed or inactive volumes, or a
/// stale second signature.
fn disturb(machine: &mut Inventory, kind: usize, at: usize) {
    match kind {
        0 => {
            // A blank disk takes the name of an absent disk, and all devices on the absent disk are inactive.
            let gone = machine.disks[at % machine.disks.len()].clone();
            let on_it: Vec<model::device_name::KernelName> =
                model::storage_graph::DeviceStack::new(machine).topmost_first(&gone.name);
            machine.stacked.retain(|stacked| !on_it.contains(&stacked.name));
            let is_gone = |device: &model::device_name::DevicePath| on_it.contains(&device.kernel_name());
            machine.arrays.iter_mut().for_each(|array| array.members.retain(|member| !is_gone(&member.device)));
            let physical = machine.groups.iter_mut().flat_map(|group| &mut group.physical);
            physical.for_each(|physical| drop(physical.device.take_if(|device| is_gone(device))));
            machine.arrays.retain(|array| !array.members.is_empty());
            machine.groups.retain(|group| group.present_devices().next().is_some());
            let running =
                machine.groups.iter_mut().flat_map(|group| &mut group.volumes).map(|volume| &mut volume.running);
            let running = running.chain(machine.arrays.iter_mut().map(|array| &mut array.running));
            running.for_each(|running| drop(running.take_if(|name| on_it.contains(name))));
            for disk in &mut machine.disks {
                let parts = disk.table.iter_mut().flat_map(|table| &mut table.partitions).map(|part| &mut part.uses);
                let held = |usage: &DeviceUse| matches!(usage, DeviceUse::Holder(name) if on_it.contains(name));
                parts.chain([&mut disk.uses]).for_each(|uses| uses.retain(|usage| !held(usage)));
            }
            let spare =
                model::inventory::InventoryDisk { blank: true, serial: "spare".into(), ..disk(&gone.name, 900) };
            *machine.disks.iter_mut().find(|disk| disk.name == gone.name).unwrap() = spare;
        }
        1 => {
            let volumes = machine.groups.iter_mut().flat_map(|group| &mut group.volumes);
            volumes.filter(|volume| volume.name.starts_with("kv")).for_each(|volume| volume.name.insert_str(0, "old-"));
        }
        2 => {
            let stale = || DeviceSignature {
                kind: "linux_raid_member".into(),
                usage: "raid".into(),
                ..DeviceSignature::default()
            };
            let has_uid = |signatures: &[DeviceSignature]| {
                signatures.iter().any(|signature| signature.uuid.starts_with(&uid(0)[..34]))
            };
            let disks = machine.disks.iter_mut().map(|disk| &mut disk.signatures);
            let stacked = machine.stacked.iter_mut().map(|stacked| &mut stacked.signatures);
            disks.chain(stacked).filter(|is| has_uid(is)).for_each(|is| is.insert(at % 2, stale()));
        }
        _ => {
            let volumes = machine.groups.iter_mut().flat_map(|group| &mut group.volumes);
            let idle: Vec<_> =
                volumes.filter_map(|volume| volume.running.take_if(|_| volume.name.starts_with("kv"))).collect();
            machine.stacked.retain(|stacked| !idle.contains(&stacked.name));
        }
    }
}

#[test]
fn no_prepared_volume_is_prepared_again() {
    let judged = PropertyCounts::new("no_prepared_volume_is_prepared_again");
    proptest!(ProptestConfig::with_cases(160), |(
        layout in any_layout(),
        machine in any_machine(),
        volumes in any_volumes(),
        at in 0usize..16,
    )| {
        judged.case();
        let mut machine = machine;
        for disk in &mut machine.disks {
            disk.blank = disk.table.is_none() && disk.signatures.is_empty() && disk.uses.is_empty();
        }
        let volumes = accepted(&layout, &machine, InstallMode::Install, volumes);
        let Ok(first) = planned(&layout, &machine, InstallMode::Install, &volumes) else { return Ok(()) };
        let installed = after(&first, machine);
        let volumes = accepted(&layout, &installed, InstallMode::Reinstall, volumes);
        if volumes.is_empty() {
            return Ok(());
        }
        judged.note("reinstalls", true);
        // The inventory lacks the content of filesystems, as for an offline plan.
        let seen = first.volumes.iter().filter(|volume| !volume.kind.starts_with("sparse"));
        let prepared = seen.map(|seen| model::install_marker::RecordedVolume { uid: seen.uid.to_string(), ..Default::default() });
        let prepared: Vec<_> = prepared.collect();
        for (kind, volume) in (0..4).flat_map(|kind| volumes.iter().map(move |volume| (kind, volume))) {
            // Each volume is planned separately, so that the refusal of one volume does not hide the refusal of
            // another.
            let mut disturbed = installed.clone();
            disturb(&mut disturbed, kind, at);
            let mut request = request(InstallMode::Reinstall, list(std::slice::from_ref(volume)), None);
            request.assigned.allocation.prepared_volumes = Some(prepared.clone());
            let plan = super::super::super::make_plan(&layout, &disturbed, request, &mut counting_from(3000));
            let is_prepared = |uid: &str| prepared.iter().any(|is| is.uid == uid);
            judged.note("refused", plan.is_err());
            let Ok(plan) = plan else { continue };
            for is in plan.volumes.iter().filter(|volume| is_prepared(&volume.uid.to_string())) {
                judged.note("kept", true);
                prop_assert_eq!(is.verdict, PersistentVerdict::Keep, "{}", plan);
            }
            for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
                if let Operation::Device(DeviceOp::CreateK8sVolume(made)) = operation {
                    prop_assert!(!is_prepared(&made.uid.to_string()), "{}", plan);
                }
            }
        }
    });
    judged.assert_shares(&[("reinstalls", 4), ("refused", 8), ("kept", 8)]);
}
