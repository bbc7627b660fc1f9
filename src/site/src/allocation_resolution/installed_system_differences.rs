//! Differences between the machine file and the installed system.

use super::{find_layout, layout_id};
use crate::effective_allocation::find_allocation_differences;
use crate::ganeti_os_definition_state::DefinitionState;
use crate::operator_files::{AllocationSpec, MachineSpec, format_at};
use crate::site_objects::SiteObjects;
use common::format::replace_hidden;
use model::ganeti_os_definition::OsSelector;
use model::layout::{ImageId, Layout, read_json};
use serde_json::Value;
use store::{InstallState, marker_layout_comparison};

/// Returns the reason why the machine cannot be reinstalled if its installed layout is not in the database: the layout
/// in the files, which then applies, contradicts the machine's install marker. Returns `None` if there is no
/// contradiction, or if the installed layout is in the database.
pub(crate) fn explain_layout_contradiction(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Option<String> {
    let allocation =
        machine.allocation.as_ref().filter(|_| install_state.succeeded && install_state.layout.is_none())?;
    let layout = find_layout(machine, allocation, install_state, known).ok()?;
    let why = marker_layout_comparison::find_contradiction(
        install_state.marker.as_ref()?,
        &serde_json::to_value(layout).ok()?,
    )?;
    Some(format_at(
        &allocation.id,
        &format!(
            "{why}: the machine cannot be reinstalled until this problem is solved; {remedy}",
            remedy = marker_layout_comparison::contradiction_remedy(&machine.id)
        ),
    ))
}

/// Returns notes about the differences between the machine file and the installed system. The installed system takes
/// precedence over the machine file.
pub fn find_differences(machine: &MachineSpec, install_state: &InstallState, known: &SiteObjects) -> Vec<String> {
    let Some(allocation) = machine.allocation.as_ref().filter(|_| install_state.succeeded) else { return Vec::new() };
    let mut notes = Vec::new();
    let says_other = |runs: &&String| **runs != **allocation.image && !allocation.image.is_empty();
    if let Some(runs) = install_state.image.as_ref().filter(says_other).filter(|_| install_state.order.is_none()) {
        notes.push(format_at(&allocation.image, &describe_other_image(&allocation.image, runs)));
    }
    notes.extend(describe_ignored_fields(allocation, install_state));
    notes.extend(find_version_change(allocation, install_state));
    if let (Some(layout), Some(installed)) = (&allocation.filesystemlayout, &install_state.layout) {
        let id = layout_id(installed);
        let is_other = known.layouts.get(layout.as_str()).is_some_and(|now| !is_same_layout(now, installed));
        if **layout != id {
            let says = &**layout;
            let message = format!(
                "the file specifies layout {says}, but the machine is installed with {id} and keeps that layout"
            );
            notes.push(format_at(layout, &message));
        } else if is_other {
            let message = format!(
                "layout {id} has changed since the machine was installed; the machine keeps the layout with which it was installed"
            );
            notes.push(format_at(layout, &message));
        }
    }
    notes
}

/// Describes an installed image that is not the image in the file. After a reinstall with a newer image, which does not
/// change the file, the remedy must not replace the newer image with the older one.
fn describe_other_image(specified: &str, installed: &str) -> String {
    let keep = format!("to keep {installed}, specify `image: {installed}` in the file");
    let replace = format!("`drophammer machine reinstall` installs {specified}");
    let remedy = match (ImageId::parse(specified), ImageId::parse(installed)) {
        (Ok(file), Ok(disk)) if file.os == disk.os && file.version < disk.version => keep,
        (Ok(file), Ok(disk)) if file.os == disk.os && file.version > disk.version => replace,
        _ => format!("{keep}; {replace}"),
    };
    format!("the file specifies image {specified}, but image {installed} is installed; {remedy}")
}

/// Returns a note about the fields of the machine file that a reinstall without `--apply-allocation` ignores.
fn describe_ignored_fields(allocation: &AllocationSpec, install_state: &InstallState) -> Option<String> {
    let all = find_allocation_differences(allocation, install_state);
    let kept: Vec<&str> = all.iter().filter(|one| !one.is_applied()).map(|one| one.field.as_str()).collect();
    (!kept.is_empty()).then(|| {
        let names = kept.join(", ");
        let message = format!(
            "the file differs from the installed allocation in {names}; a reinstall without `--apply-allocation` keeps \
             the installed allocation"
        );
        format_at(&allocation.id, &message)
    })
}

/// Returns a note if the version of the machine's OS definition has changed since the installation.
fn find_version_change(allocation: &AllocationSpec, install_state: &InstallState) -> Option<String> {
    let (os, DefinitionState::Usable(chosen)) = (allocation.os.as_ref()?, &allocation.definition) else { return None };
    let installed = install_state.marker.as_ref()?.definition.as_ref()?;
    let is_same = OsSelector::parse(&installed.os).is_ok_and(|installed| installed.name == chosen.name);
    let (before, now) = (installed.os_version.as_deref(), chosen.os_version());
    let [said_before, said_now] = [before, now].map(|version| version.map_or("none".to_owned(), replace_hidden));
    (is_same && before != now).then(|| {
        let message = format!(
            "os_version of {os} was {said_before} when the machine was installed, and is {said_now} now; a reinstall uses the current definition", os = chosen.name);
        format_at(os, &message)
    })
}

/// Returns whether the layouts are equal after parsing. Their JSON may differ, because another version of this
/// program may have stored the same layout with other fields.
fn is_same_layout(layout: &Layout, stored: &Value) -> bool {
    read_json(stored).is_ok_and(|stored| stored.layout == *layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_never_replace_an_installed_image_by_an_older_one() {
        let (old, new) = ("debian-12.0.20261101", "debian-12.0.20261112");
        let after_reinstall = describe_other_image(old, new);
        assert_eq!(
            after_reinstall,
            format!(
                "the file specifies image {old}, but image {new} is installed; to keep {new}, specify `image: {new}` in \
                 the file"
            )
        );
        let edited = describe_other_image(new, old);
        assert!(edited.ends_with(&format!("is installed; `drophammer machine reinstall` installs {new}")), "{edited}");
        for other in ["ubuntu-24.04.20261101", "custom"] {
            let both = describe_other_image(other, new);
            assert!(both.contains("to keep ") && both.ends_with(&format!("installs {other}")), "{both}");
        }
    }
}
