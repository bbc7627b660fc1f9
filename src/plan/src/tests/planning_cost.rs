//! Cost of planning for inventories with very many devices and links: each plan must be made within a small stack,
//! with bounded output, and in bounded time.

use super::installation_identity::{claim, planned};
use super::*;
use model::inventory::large_inventories;
use std::time::Instant;

/// Stack size of the threads of an asynchronous runtime.
const STACK_BYTES: usize = 2 << 20;

fn text(result: &Result<Plan, Box<PlanRefusal>>) -> String {
    match result {
        Ok(plan) => plan.to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap().join().unwrap()
}

/// If every device, or every pair of devices, required a search through all devices, these inventories would take
/// hours.
#[test]
fn large_inventories_are_planned_on_a_small_stack() {
    for (shape, inventory) in [
        ("towers", large_inventories::towers(300)),
        ("chain", large_inventories::chain(1000)),
        ("array", large_inventories::array(800)),
        ("holders", large_inventories::holders(100_000)),
        ("layers", large_inventories::layers(100)),
        ("partitions", large_inventories::partitions(500)),
        ("volumes", large_inventories::volumes(4, 200)),
        ("groups", large_inventories::volumes(200, 2)),
        ("markers", large_inventories::markers(60)),
    ] {
        for mode in [InstallMode::Install, InstallMode::Reinstall] {
            let inventory = inventory.clone();
            let printed = on_small_stack(move || text(&planned(&layout(), &inventory, mode, claim())));
            assert!(printed.len() < 2 << 20, "{shape} {mode:?}: {} bytes", printed.len());
        }
    }
}

/// The tree of a long chain ends at the maximum depth, with a note that devices are omitted.
#[test]
fn deep_device_tree_is_truncated() {
    let mut inventory = large_inventories::chain(1000);
    inventory.stacked.iter_mut().for_each(|stacked| stacked.signatures.clear());
    let mut layout = layout();
    layout.disks.truncate(1);
    layout.filesystems.remove(0);
    let plan = on_small_stack(move || make(&layout, &inventory, InstallMode::Install).unwrap());
    let tree = &plan.disks[1].running;
    assert!(tree.len() < 100 && tree.last().unwrap().contains("more devices not shown"), "{tree:?}");
}

/// If a filesystem has too many copies to compare, the plan is refused, and the copies are not listed.
#[test]
fn many_copies_are_refused_in_one_message() {
    let mut inventory = after(&make(&layout(), &machine(), InstallMode::Install).unwrap(), machine());
    let own = inventory.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].clone();
    for number in 0..1200 {
        let name = format!("nvme{number}n1");
        inventory
            .disks
            .push(inventory::InventoryDisk { signatures: vec![own.clone()], ..large_inventories::disk(&name) });
    }
    let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    let many = format!("1201 devices have its UUID {}", own.uuid);
    assert!(reasons.iter().any(|reason| reason.contains(&many)), "{reasons:?}");
    inventory.disks.truncate(4);
    let few = super::reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    assert!(few.iter().any(|reason| reason.contains("have the same UUID") && reason.contains("nvme0n1")), "{few:?}");
}

/// The lookup of disks below devices exceeds the step budget, so the plan is refused.
#[test]
fn refuses_plan_that_exceeds_the_step_budget() {
    let mut inventory = large_inventories::array(2000);
    inventory.disks[1].signatures.clear();
    for number in 1..2200 {
        let signatures = vec![large_inventories::signature("crypto_LUKS", "crypto", &number.to_string())];
        let lower = large_inventories::mapping(number, vec!["md0".into()]);
        inventory.stacked.push(inventory::StackedDevice { signatures, ..lower });
    }
    let reasons = reasons(planned(&layout(), &inventory, InstallMode::Reinstall, claim()));
    assert!(
        reasons.iter().any(|reason| reason.contains("in more combinations than can be examined")),
        "{}",
        reasons.len()
    );
    assert!(reasons.len() < 100);
}

/// Prints the time for planning and display in seconds, by shape and mode. `scripts/bench plan` runs it in an optimized
/// build.
#[test]
#[ignore = "measures"]
fn bench_crowded_inventories() {
    let wanted = std::env::var("DROPHAMMER_BENCH").unwrap_or_default();
    for (shape, inventory) in large_inventories::all().into_iter().filter(|(shape, _)| shape.contains(&wanted)) {
        let json = serde_json::to_vec(&inventory).unwrap().len();
        let started = Instant::now();
        let limit = inventory.find_exceeded_limit().map_or_else(String::new, |why| format!("  not registered: {why}"));
        println!("{shape:28} {json:8} B  limits {:6.3} s{limit}", started.elapsed().as_secs_f64());
        for mode in [InstallMode::Install, InstallMode::Reinstall] {
            let started = Instant::now();
            let result = planned(&layout(), &inventory, mode, claim());
            let made = started.elapsed().as_secs_f64();
            let length = text(&result).len();
            let shown = started.elapsed().as_secs_f64() - made;
            println!("{:28} {mode:?}: plan {made:7.3} s, text {shown:7.3} s, {length} B", "");
        }
    }
}

/// Prints the time in seconds for generating layouts from all disks of a machine with a template, and for planning with
/// them.
#[test]
#[ignore = "measures"]
fn bench_generated_layouts() {
    let all = serde_json::json!({ "logical_disks": [{ "size_gb": "MAX", "raid_level": "1" }] });
    let config = model::ironic_raid::RaidConfig::parse_config(&all).unwrap();
    for count in [100, 800, 4000] {
        let mut inventory = large_inventories::array(count);
        inventory.stacked.clear();
        inventory.arrays.clear();
        inventory.disks.retain(|disk| disk.name.starts_with("nvme"));
        inventory.disks.iter_mut().for_each(|disk| disk.table = None);
        let started = Instant::now();
        let layout = config.build_layout("all", &inventory).unwrap();
        let generated = started.elapsed().as_secs_f64();
        for mode in [InstallMode::Install, InstallMode::Reinstall] {
            let started = Instant::now();
            let result = planned(&layout, &inventory, mode, claim());
            let made = started.elapsed().as_secs_f64();
            println!("{count:5} disks: layout {generated:7.3} s, {mode:?} {made:7.3} s, {} B", text(&result).len());
        }
    }
}
