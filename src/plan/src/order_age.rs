//! Age of a reinstall order. The disks may contain a newer state than the database of the control plane, for example
//! because the database was restored from a backup. The control plane may then repeat an order that was already
//! executed, and that a newer order has superseded. An order and a marker are compared by their fencing tokens, which
//! are called *numbers* here.
//!
//! | number of the order | number in a marker of this allocation | the order is |
//! |---|---|---|
//! | none: the control plane does not issue numbers | any number or none | accepted |
//! | of database D | smaller, of D | accepted |
//! | of database D | equal or larger, of D | refused: the installation is not older |
//! | of database D | of another database | refused, unless the operator has placed or confirmed the order since the last restore, or the control plane has a record of that installation |
//! | of database D | none: installed by an older version | as in the previous row |
//! | of database D | impossible: no server issues it | refused |
//! | impossible: no server issues it | any number or none | refused |
//!
//! A first installation also has a number. It is refused if a marker of an earlier allocation of this machine has the
//! same or a larger number of the same database: the control plane was reset to an earlier state. Markers without a
//! number, or with a number of another database, do not prevent a first installation.
//!
//! If the installation was made by the same order, it is recognized and booted before this check
//! (`existing_system_boot`). With `--replace-newer`, the operator permits every row except the last one.

use super::InstallClaim;
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use model::install_marker::{self, InstallMarker};
use std::cmp::Ordering;

/// Result of comparing the ages of a reinstall order and an installation on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderAge {
    /// The reinstall order is newer than the installation, or is accepted without a comparison.
    Newer,
    /// The installation is newer than the reinstall order.
    Older,
    /// The two numbers cannot be compared: they were issued by different databases, or the marker has no number.
    Unknown,
    /// The marker has a token that no server issues.
    ImpossibleMarker,
    /// The reinstall order has a token that no server issues.
    ImpossibleOrder,
}

/// Compares the ages of the reinstall order and an installation of the same allocation.
fn compare_age(claim: &InstallClaim, found: &InstallMarker) -> OrderAge {
    let Some(order) = &claim.fencing else { return OrderAge::Newer };
    if !order.is_plausible() {
        return OrderAge::ImpossibleOrder;
    }
    let is_known = || claim.confirmed || claim.installed.as_ref() == Some(found);
    let Some(installed) = &found.fencing else {
        return if is_known() { OrderAge::Newer } else { OrderAge::Unknown };
    };
    match order.compare_age(installed) {
        Some(Ordering::Greater) => OrderAge::Newer,
        Some(Ordering::Equal | Ordering::Less) => OrderAge::Older,
        None if !installed.is_plausible() => OrderAge::ImpossibleMarker,
        None if is_known() => OrderAge::Newer,
        None => OrderAge::Unknown,
    }
}

/// Returns whether the first installation was requested before the installation on the disks, of another allocation,
/// was made. Returns false if their numbers cannot be compared.
pub(crate) fn is_outdated_install(claim: &InstallClaim, found: &InstallMarker) -> bool {
    let (Some(requested), Some(installed)) = (&claim.fencing, &found.fencing) else { return false };
    requested.compare_age(installed).is_some_and(Ordering::is_le)
}

impl PlannerState<'_> {
    /// Applies the table of this module to every installation of this allocation on the disks. Refuses the reinstall if
    /// one of these installations may be newer than the order.
    pub(crate) fn refuse_outdated_order(&mut self) {
        let (request, inventory) = (self.request, self.inventory);
        let Some(claim) = &request.claim else { return };
        for filesystem in &inventory.filesystems {
            let Some(found) = filesystem.marker.as_ref().filter(|found| claim.is_ours(found)) else { continue };
            let age = compare_age(claim, found);
            if age == OrderAge::Newer {
                continue;
            }
            let message = format!("{}: {}", filesystem.device, describe_age(claim, found, age));
            if claim.replace_newer && age != OrderAge::ImpossibleOrder {
                self.warn(format!("{message}; the installation will be replaced, as requested by the operator"));
            } else {
                self.refuse(ErrorCode::OrderOutdated, "disks", format!("{message}; {}", suggest_remedy(age)));
            }
        }
    }
}

fn describe_age(claim: &InstallClaim, found: &InstallMarker, age: OrderAge) -> String {
    let order = claim.order.as_deref().unwrap_or_default();
    let number = claim.fencing.as_ref().map(ToString::to_string).unwrap_or_default();
    let installed = found.fencing.as_ref().map_or_else(|| "without a number".to_owned(), ToString::to_string);
    let installation = format!("image {} of {} ({installed}; {})", found.image, found.time, install_marker::PATH);
    match age {
        OrderAge::Older => {
            format!("order {order} ({number}) is older than the installation on the disk, {installation}")
        }
        OrderAge::ImpossibleMarker => {
            format!(
                "it is unknown whether order {order} ({number}) is older than the installation on the disk, {installation}"
            )
        }
        OrderAge::ImpossibleOrder => format!("order {order} has {number}, which a server never assigns"),
        OrderAge::Newer | OrderAge::Unknown => format!(
            "order {order} ({number}) was issued before the control plane's database was restored, and may be older than the installation on the disk, {installation}"
        ),
    }
}

fn suggest_remedy(age: OrderAge) -> &'static str {
    match age {
        OrderAge::ImpossibleOrder => "cancel the order, and submit a new order",
        _ => "if the new image must replace that installation, order the reinstall again with --replace-newer",
    }
}
