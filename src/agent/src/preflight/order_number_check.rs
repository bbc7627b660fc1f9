//! Comparison of the reinstall order in a machine file with the install markers on the disks. Without a server, only
//! the markers record completed orders.
//!
//! | order number in the marker of this allocation | order N in the file | action |
//! |---|---|---|
//! | none, or not a number that a file can contain | N | carried out |
//! | smaller than N | N | carried out |
//! | N | N | not carried out again: the installed system is booted |
//! | larger than N | N | refused, with both numbers: the file is outdated, or the marker is forged |
//! | larger than N | N, with `replace_newer` | carried out |
//!
//! The root user of the installed system can write N into its marker, and thereby suppress order N. The agent cannot
//! detect this, see `docs/fleet-idempotence.md`.

use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::allocation::{Allocation, OrderNumber};
use model::device_name::DevicePath;
use model::inventory::Inventory;
use plan::InstallClaim;

/// Compares the order in the file with the markers of this allocation. If a marker shows that the order was carried
/// out, removes the order from the allocation, so that the installed system is booted. Returns a line for the operator.
///
/// # Errors
/// Fails if the order has no valid number, or if a marker names a later order than the file.
pub(crate) fn compare_order(
    machine: &str,
    allocation: &mut Allocation,
    inventory: &Inventory,
) -> Result<Option<String>> {
    let (machine, former_machines) = (machine.to_owned(), allocation.former_machines.clone());
    let claim = InstallClaim { machine, former_machines, allocation: allocation.id.clone(), ..InstallClaim::default() };
    let id = allocation.order_id().unwrap_or("without an id").to_owned();
    let Some(ordered) = OrderNumber::parse(&id) else {
        let largest = OrderNumber::LARGEST;
        let message = format!(
            "order {id} cannot be carried out: its id must be a number from 1 to {largest}; correct the machine file"
        );
        return Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::OrderOutdated));
    };
    let Some((device, done)) = find_latest_order(&claim, inventory) else { return Ok(None) };
    if done > ordered && allocation.order.as_ref().is_some_and(|order| order.replace_newer) {
        return Ok(Some(format!(
            "order {ordered}: replaces the installation on {device}, whose marker records order {done}"
        )));
    }
    if done > ordered {
        let message = format!(
            "order {ordered}: cannot be carried out: the marker on {device} records the later order {done}. Nothing was written. An older machine file \
             may have been served, or the marker is forged; to reinstall, serve a machine file with an order above {done}, or with \
             \"replace_newer\": true in the order"
        );
        return Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::OrderOutdated));
    }
    if done < ordered {
        return Ok(None);
    }
    (allocation.reinstall, allocation.order, allocation.succeeded) = (false, None, true);
    Ok(Some(format!("order {ordered} is not carried out again: the marker on {device} records this order")))
}

/// Returns the largest valid order number in the markers of this allocation, and the filesystem that contains the
/// marker with this number.
fn find_latest_order<'a>(claim: &InstallClaim, inventory: &'a Inventory) -> Option<(&'a DevicePath, OrderNumber)> {
    let numbers = inventory.filesystems.iter().filter_map(|filesystem| {
        let marker = filesystem.marker.as_ref().filter(|marker| claim.is_ours(marker))?;
        Some((&filesystem.device, OrderNumber::parse(marker.order.as_deref()?)?))
    });
    numbers.max_by_key(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::OrderedReinstall;
    use model::install_marker::InstallMarker;
    use model::inventory::FilesystemContents;

    fn marked(machine: &str, allocation: &str, order: &str) -> FilesystemContents {
        let (machine, allocation, order) =
            (machine.to_owned(), allocation.to_owned(), common::empty_string_as_none::non_empty(order.to_owned()));
        let marker = Some(InstallMarker { machine, allocation, order, ..InstallMarker::default() });
        FilesystemContents { device: "/dev/sda2".into(), marker, ..FilesystemContents::default() }
    }

    fn compared(
        order: &str,
        replace_newer: bool,
        filesystems: Vec<FilesystemContents>,
    ) -> (Allocation, Result<Option<String>>) {
        let order = Some(OrderedReinstall { id: order.to_owned(), replace_newer, ..OrderedReinstall::default() });
        let mut allocation = Allocation { id: "a".into(), reinstall: true, order, ..Allocation::default() };
        let inventory = Inventory { filesystems, ..Inventory::default() };
        let result = compare_order("m", &mut allocation, &inventory);
        (allocation, result)
    }

    #[test]
    fn order_is_executed_once() {
        for (order, marker, is_done) in [
            ("1", None, false),
            ("1", Some(("m", "a", "")), false),
            ("1", Some(("m", "a", "5f0c-of-a-server")), false),
            ("10", Some(("m", "a", "9")), false),
            ("2", Some(("m", "a", "2")), true),
            ("02", Some(("m", "a", "2")), true),
            ("2", Some(("m", "other", "2")), false),
            ("2", Some(("other", "a", "7")), false),
        ] {
            let marker = marker.map(|(machine, allocation, order)| marked(machine, allocation, order));
            let (allocation, said) = compared(order, false, marker.into_iter().collect());
            assert_eq!(said.unwrap().is_some(), is_done, "{order}");
            assert_eq!((allocation.succeeded, allocation.reinstall), (is_done, !is_done), "{order}");
        }
    }

    /// The root user of the installed system writes a number into its marker, and boots the machine over PXE.
    #[test]
    fn marker_with_a_huge_number_suppresses_no_order() {
        for absent in ["18446744073709551615", "9007199254740992", "99999999999999999999999", "-1", "0"] {
            let (allocation, said) = compared("3", false, vec![marked("m", "a", absent)]);
            assert_eq!(said.unwrap(), None, "{absent}");
            assert!(allocation.reinstall && !allocation.succeeded, "{absent}");
        }
        for larger in ["4", "9007199254740991"] {
            let both = || vec![marked("m", "a", "2"), marked("m", "a", larger)];
            let (allocation, refused) = compared("3", false, both());
            let refused = refused.unwrap_err();
            assert!(refused.is_refusal(), "{refused}");
            let text = refused.to_string();
            for part in
                ["order 3: cannot", &format!("/dev/sda2 records the later order {larger}"), "replace_newer", "above"]
            {
                assert!(text.contains(part), "{text}");
            }
            assert!(allocation.reinstall && !allocation.succeeded, "the order does not count as carried out");
            let (allocation, said) = compared("3", true, both());
            assert!(said.unwrap().unwrap().contains(larger) && allocation.reinstall);
        }
    }

    #[test]
    fn refuses_order_with_another_id() {
        for id in ["", "0", "o-1", "9007199254740992"] {
            let (allocation, refused) = compared(id, false, vec![]);
            assert!(refused.unwrap_err().to_string().contains("from 1 to 9007199254740991"), "{id}");
            assert!(!allocation.succeeded);
        }
    }
}
