//! Texts about reinstall orders that were placed.

use super::MachineSummary;
use site::effective_allocation::UNRECORDED;
use store::ReinstallOrder;

/// Describes a new order: its image and options, the fields of the allocation, and the order that it has replaced.
pub(super) fn describe_placed_order(order: &ReinstallOrder, listed: &MachineSummary) -> String {
    let replaced = listed.replaced.as_ref().map(|replaced| format!("; {}", describe_replaced_order(replaced)));
    format!(
        "ordered: image {image}{options}{fields}{replaced}",
        image = order.image,
        options = describe_options(order),
        fields = describe_fields(listed),
        replaced = replaced.unwrap_or_default()
    )
}

/// Describes an order that another order has replaced, such as `replaces order 4f… (image debian-12, ordered by ann at
/// 2026-11-28T10:00:00Z)`.
pub fn describe_replaced_order(replaced: &ReinstallOrder) -> String {
    let ReinstallOrder { id, image, created, created_by, .. } = replaced;
    let user = if created_by.is_empty() { String::new() } else { format!(" by {created_by}") };
    let state = match replaced.given_up {
        true if replaced.started => ", abandoned",
        true => ", suspended",
        false => "",
    };
    format!("replaces order {id} (image {image}, ordered{user} at {created}{state})")
}

/// Describes the options of an order.
fn describe_options(order: &ReinstallOrder) -> String {
    let waived = if order.without_marker { ", without the marker" } else { "" };
    let changed = if order.change_promise { ", with the layout of the machine file" } else { "" };
    let given_up: String = order.give_up.iter().map(|serial| format!(", erasing {serial}")).collect();
    let locked: String = order.leave_locked.iter().map(|uuid| format!(", leaving {uuid} locked")).collect();
    let replaced = if order.replace_newer { ", replacing a newer installation" } else { "" };
    let applied = if order.apply_allocation { ", with the allocation of the machine file" } else { "" };
    format!("{waived}{changed}{given_up}{locked}{replaced}{applied}")
}

/// Describes, for the log, which fields of the allocation the reinstall changes, and which fields stay as installed.
fn describe_fields(listed: &MachineSummary) -> String {
    if listed.allocation_unrecorded {
        return format!("; {UNRECORDED}");
    }
    let names = |is_applied: bool| {
        let all = listed.differences.iter().filter(|one| one.is_applied() == is_applied);
        all.map(|one| one.field.as_str()).collect::<Vec<_>>().join(", ")
    };
    let [applied, kept] = [("changed by the machine file", names(true)), ("kept as installed", names(false))]
        .map(|(what, names)| if names.is_empty() { names } else { format!("; {what}: {names}") });
    format!("{applied}{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_replaced_order_is_identified() {
        let order = json!({"id": "o1", "image": "debian-12", "created": "2026-11-28T10:00:00Z", "created_by": "ann",
            "attempts": 0, "begun": false, "without_marker": false, "given_up": false});
        let replaced: ReinstallOrder = serde_json::from_value(order).unwrap();
        let text = "replaces order o1 (image debian-12, ordered by ann at 2026-11-28T10:00:00Z)";
        assert_eq!(describe_replaced_order(&replaced), text);
        let suspended = ReinstallOrder { given_up: true, created_by: String::new(), ..replaced.clone() };
        let text = "replaces order o1 (image debian-12, ordered at 2026-11-28T10:00:00Z, suspended)";
        assert_eq!(describe_replaced_order(&suspended), text);
        let order = ReinstallOrder { id: "o2".to_owned(), image: "debian-13".to_owned(), ..replaced.clone() };
        let listed = MachineSummary { replaced: Some(suspended), ..MachineSummary::default() };
        assert_eq!(describe_placed_order(&order, &listed), format!("ordered: image debian-13; {text}"));
    }
}
