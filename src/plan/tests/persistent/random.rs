//! Volumes of Kubernetes on layouts and machines drawn at random.

use super::*;
use crate::plan::tests::drawn::{NAMES, any_layout, any_machine};
use crate::plan::tests::effect::effect;
use crate::plan::tests::judged::Judged;
use proptest::prelude::*;

prop_compose! {
    /// On disks that the layout may list or not, in groups that it may have or not, and in files.
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

/// Those that are not refused, as an operator would leave them.
fn accepted(layout: &Layout, machine: &Inventory, mode: Mode, volumes: Vec<Value>) -> Vec<Value> {
    let mut good: Vec<Value> = Vec::new();
    for volume in volumes {
        let more = [&good[..], &[volume]].concat();
        if planned(layout, machine, mode, &more).is_ok() {
            good = more;
        }
    }
    good
}

/// Bytes that somebody could have on disks which the plan keeps, or does not name: signatures, tables, groups.
fn of_others(inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let written: Vec<&crate::device::DevicePath> = plan
        .stages
        .iter()
        .flat_map(|stage| &stage.operations)
        .filter(|operation| matches!(operation, Operation::Device(OnDevice::PreparePersistent(_))))
        .flat_map(|operation| effect(operation).destroyed)
        .collect();
    let stays = |disk: &&crate::inventory::Disk| {
        let verdict = plan.disks.iter().find(|is| is.name == disk.name).unwrap().verdict;
        matches!(verdict, Verdict::Keep | Verdict::NotOurs | Verdict::Volumes) && !written.contains(&&disk.device)
    };
    let disks = inventory.disks.iter().filter(stays);
    // What only ran to look inside is taken down.
    let without_uses = |disk: &crate::inventory::Disk| {
        let mut table = disk.table.clone();
        table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| part.uses.clear());
        format!("{} {:?} {:?}", disk.name, disk.signatures, table)
    };
    disks.map(without_uses).collect()
}

#[test]
fn no_volume_touches_what_another_has() {
    let judged = Judged::new("no_volume_touches_what_another_has");
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
        let Ok(bare) = planned(&layout, &machine, Mode::Install, &[]) else { return Ok(()) };
        let volumes = accepted(&layout, &machine, Mode::Install, volumes);
        let first = planned(&layout, &machine, Mode::Install, &volumes).unwrap();
        judged.note("installations", true);
        judged.note("with volumes", !first.volumes.is_empty());
        judged.note("on disks that the layout does not name", !first.summary.volumes.is_empty());
        assert_sound(&first, &machine);
        // The layout's own is done as without them.
        prop_assert_eq!(first.summary.wiped.clone(), bare.summary.wiped.clone());
        let installed = after(&first, machine.clone());
        prop_assert_eq!(of_others(&machine, &first), of_others(&installed, &first));
        // Sparse ones are refused where the root carries them; groups on wiped disks are made anew.
        let volumes = accepted(&layout, &installed, Mode::Reinstall, volumes);
        let Ok(second) = planned(&layout, &installed, Mode::Reinstall, &volumes) else { return Ok(()) };
        judged.note("reinstalls", true);
        let made = |plan: &Plan| plan.volumes.iter().any(|is| is.verdict != PersistentVerdict::Keep && !is.kind.starts_with("sparse"));
        prop_assert!(!made(&second), "{}", second);
        let rename = |mut volume: Value| {
            let number = volume["metadata"]["name"].as_str().unwrap().trim_start_matches("kv").parse::<u8>().unwrap() + 100;
            volume["metadata"] = json!({"name": format!("kv{number}"), "uid": uid(number)});
            volume
        };
        let more = [volumes, more.into_iter().map(rename).collect()].concat();
        let more = accepted(&layout, &installed, Mode::Reinstall, more);
        let Ok(third) = planned(&layout, &installed, Mode::Reinstall, &more) else { return Ok(()) };
        judged.note("reinstalls that add to a kept group", third.volumes.iter().any(|is| is.verdict == PersistentVerdict::Extend && is.kind.starts_with("lvm")));
        assert_sound(&third, &installed);
        let reinstalled = after(&third, installed.clone());
        prop_assert_eq!(of_others(&installed, &third), of_others(&reinstalled, &third));
        for volume in third.volumes.iter().filter(|is| is.verdict == PersistentVerdict::Keep) {
            let signatures = |inventory: &Inventory| {
                let device = crate::topology::units(inventory).find(|(device, _)| **device == volume.device);
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
        ("reinstalls that add to a kept group", 0),
    ]);
}
