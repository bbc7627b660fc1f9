//! Comparison of the inputs that a saved plan contains with the current inputs.

use api::plan_input::{PlanInput, RegisteredInventory};
use model::allocation::AssignedMachine;
use serde::Serialize;
use serde_json::Value;
use site::approved_input_digests::describe_changed_input;

/// Returns a line for each difference between the machine in the saved plan and the current machine.
pub(super) fn compare_machines(planned: &AssignedMachine, present: &PlanInput) -> Vec<String> {
    let Some(now) = &present.machine.allocation else {
        let why = present.withheld.as_deref().unwrap_or("the server offers no allocation");
        return vec![format!("nothing would be installed on the machine: {why}")];
    };
    let mut lines = Vec::new();
    if (&planned.name, &planned.size) != (&present.machine.name, &present.machine.size) {
        lines.push("the machine's name or size has changed".to_owned());
    }
    let mut then = planned.allocation.clone().unwrap_or_default();
    let mut now = now.clone();
    for image in [&mut then.image, &mut now.image] {
        // URLs are not compared, because they depend on the server name that the client uses. The digest identifies the
        // image.
        if image.digest.is_some() {
            image.url.clear();
        }
    }
    lines.extend(differing_fields(&then, &now).iter().map(|field| describe_changed_input(field, &then.image.id)));
    lines
}

/// Returns a line if the inventory in the saved plan differs from the last registered inventory of the machine.
pub(super) fn compare_inventories(
    planned: &RegisteredInventory,
    present: Option<&RegisteredInventory>,
) -> Option<String> {
    let Some(now) = present else {
        return Some("the server no longer has an inventory of the machine".to_owned());
    };
    if now.outdated && !planned.outdated {
        return Some(
            "an installation has started on the machine, so the contents of its disks have changed".to_owned(),
        );
    }
    if planned.outdated && !now.outdated {
        return Some(format!("the machine has registered again, at {time}", time = now.time));
    }
    let fields = differing_fields(&planned.inventory, &now.inventory);
    (!fields.is_empty()).then(|| {
        format!(
            "the inventory of {time} differs from the inventory of the plan: {fields}",
            time = now.time,
            fields = fields.join(", ")
        )
    })
}

/// Returns the names of fields with different values.
fn differing_fields(then: &impl Serialize, now: &impl Serialize) -> Vec<String> {
    let [then, now] = [serde_json::to_value(then), serde_json::to_value(now)].map(Result::unwrap_or_default);
    let (Value::Object(then), Value::Object(now)) = (then, now) else { return Vec::new() };
    let mut names: Vec<String> = then.keys().chain(now.keys()).cloned().collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| then.get(name) != now.get(name));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::{AllocatedImage, Allocation};
    use model::inventory::Inventory;
    use serde_json::json;

    fn input(change: impl FnOnce(&mut Allocation)) -> PlanInput {
        let image = AllocatedImage {
            id: "debian-13".to_owned(),
            digest: Some("sha256:1".to_owned()),
            ..AllocatedImage::default()
        };
        let mut allocation = Allocation { image, filesystemlayout: json!({"id": "default"}), ..Allocation::default() };
        change(&mut allocation);
        let mut input = PlanInput::default();
        input.machine.allocation = Some(allocation);
        input
    }

    #[test]
    fn every_changed_input_is_named() {
        let planned = input(|_| {}).machine;
        let changes = |present: PlanInput| compare_machines(&planned, &present);
        assert!(changes(input(|_| {})).is_empty());
        assert!(changes(input(|now| now.image.url = "http://other/".to_owned())).is_empty());
        assert_eq!(
            changes(input(|now| now.image.digest = Some("sha256:2".to_owned()))),
            ["image debian-13 has changed"]
        );
        assert_eq!(changes(input(|now| now.filesystemlayout["disks"] = json!([]))), ["the layout has changed"]);
        assert_eq!(
            changes(input(|now| now.hostname = "other".to_owned())),
            ["the allocation's field hostname has changed"]
        );
        let mut renamed = input(|_| {});
        renamed.machine.name = "other".to_owned();
        assert_eq!(changes(renamed), ["the machine's name or size has changed"]);
        let withheld = PlanInput { withheld: Some("locked".to_owned()), ..PlanInput::default() };
        assert_eq!(changes(withheld), ["nothing would be installed on the machine: locked"]);
    }

    #[test]
    fn a_changed_inventory_is_detected() {
        let planned = RegisteredInventory::default();
        let changed = |present: &RegisteredInventory| compare_inventories(&planned, Some(present)).unwrap_or_default();
        assert_eq!(changed(&RegisteredInventory { seconds_ago: 9, ..RegisteredInventory::default() }), "");
        assert!(
            changed(&RegisteredInventory { outdated: true, ..planned.clone() })
                .starts_with("an installation has started")
        );
        let outdated = RegisteredInventory { outdated: true, ..planned.clone() };
        assert_eq!(compare_inventories(&outdated, Some(&outdated)), None);
        assert_eq!(compare_inventories(&outdated, Some(&planned)).unwrap(), "the machine has registered again, at ");
        let mut inventory = Inventory::default();
        inventory.system.uuid = Some("4c".to_owned());
        let present = RegisteredInventory { inventory, time: "2026-11-22T10:00:00Z".to_owned(), ..planned.clone() };
        assert_eq!(
            changed(&present),
            "the inventory of 2026-11-22T10:00:00Z differs from the inventory of the plan: system"
        );
        assert!(compare_inventories(&planned, None).unwrap().contains("no longer"));
    }
}
