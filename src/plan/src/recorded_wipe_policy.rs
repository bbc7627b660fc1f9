//! Wipe policy of each disk, as recorded when the machine was installed. The recorded policy applies to every reinstall
//! until an operator changes it.

use super::planner_state::PlannerState;
use super::renewed_volumes;
use common::error_code::ErrorCode;
use model::install_marker::InstallMarker;
use model::layout;
use model::layout::preserved_objects::PreservedObjects;

impl PlannerState<'_> {
    /// Refuses a layout whose wipe policy differs from the policy in the install marker, unless the operator accepts
    /// the change. A difference shows that the machine was installed with another layout: for example, a file was
    /// edited or a database was lost since then.
    pub(crate) fn check_wipe_policy(&mut self, finished: Option<&InstallMarker>) {
        let Some(marker) = finished else { return };
        let layout = self.layout;
        let digest = layout::compute_digest(layout);
        let then = describe_layout(&marker.layout, marker.layout_digest.as_deref());
        let now = describe_layout(&layout.id, Some(&digest));
        let may_change = self.request.claim.as_ref().is_some_and(|claim| claim.change_promise);
        let mut changes = false;
        for (index, listed) in layout.disks.iter().enumerate() {
            let record = marker.disks.iter().find(|record| record.device == listed.device);
            let Some(record) = record else { continue };
            let wanted = listed.wipe_policy();
            if let Some(promised) = record.promise.filter(|promised| *promised != wanted) {
                changes = true;
                let message = format!(
                    "{device} would be {wanted} according to the {now}, but must be {promised} according to the {then}, with which the machine was installed",
                    device = listed.device
                );
                self.report_policy_change(format!("disks[{index}].wipeonreinstall"), message, may_change);
            }
        }
        let preserved = PreservedObjects::from_graph(self.graph);
        for object in preserved.find_given_up(marker) {
            changes = true;
            let message = format!(
                "{object} would be renewed according to the {now}, but must be preserved according to the {then}, with which the machine was installed"
            );
            self.report_policy_change("layout".to_owned(), message, may_change);
        }
        let is_same_layout = marker.layout_digest.as_ref().is_none_or(|then| *then == digest);
        for volume in preserved.find_removed(marker, is_same_layout, &self.list_removed(&preserved)) {
            changes = true;
            let message = format!(
                "volume {volume} exists, and would be removed and created again according to the {now}, but the {then}, with which the machine was installed, preserves the volume group and does not renew this volume"
            );
            self.report_policy_change("layout".to_owned(), message, may_change);
        }
        if !changes && marker.layout_digest.as_ref().is_some_and(|then| *then != digest) {
            self.warn(format!("the {now} differs from the layout with which the machine was installed, {then}"));
        }
    }
}

impl PlannerState<'_> {
    /// Returns the existing volumes that the layout renews, as `GROUP/NAME`. The remains of a volume count as the
    /// volume.
    fn list_removed(&self, preserved: &PreservedObjects) -> Vec<String> {
        let listed = self.layout.volumegroups.iter().flat_map(|group| preserved.renewed_volumes(group));
        let exists = |volume: &&layout::LogicalVolumeSpec| {
            let mut groups = self.inventory.groups.iter().filter(|group| group.name == volume.volumegroup);
            groups.any(|group| group.volumes.iter().any(|found| renewed_volumes::is_removed(found, &[*volume])))
        };
        listed.filter(exists).map(|volume| format!("{}/{}", volume.volumegroup, volume.name)).collect()
    }

    fn report_policy_change(&mut self, place: String, message: String, may_change: bool) {
        match may_change {
            true => self.warn(format!("{message}: the wipe policy will be changed, as requested by the operator")),
            false => self.refuse(
                ErrorCode::WipePolicyChanged,
                place,
                format!("{message}; correct the layout, or, to accept the change, order the reinstall again with --change-promise"),
            ),
        }
    }
}

fn describe_layout(id: &str, digest: Option<&str>) -> String {
    let digest = digest.map(|digest| format!(" ({digest})")).unwrap_or_default();
    format!("layout {id}{digest}")
}
