//! Wipe policy of each disk, as recorded when the machine was installed. The recorded policy applies to every reinstall
//! until an operator changes it.

use super::planner_state::PlanDecider;
use common::error_code::ErrorCode;
use model::install_marker::InstallMarker;
use model::layout;

impl PlanDecider<'_> {
    /// Refuses a layout with a wipe policy that differs from the policy in the install marker. Such a layout is not the
    /// one with which the machine was installed, for example because a file was edited or a database was lost.
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
            let Some(promised) = record.and_then(|record| record.promise) else { continue };
            let wanted = listed.wipe_policy();
            if promised == wanted {
                continue;
            }
            changes = true;
            let message = format!(
                "{disk} would be {wanted} according to the {now}, but must be {promised} according to the {then}, with which the machine was installed",
                disk = listed.device
            );
            match may_change {
                true => self.warn(format!("{message}: the wipe policy will be changed, as requested by the operator")),
                false => self.refuse(ErrorCode::WipePolicyChanged,
                    format!("disks[{index}].wipeonreinstall"),
                    format!("{message}; correct the layout, or, to accept the change, order the reinstall again with --change-promise"),
                ),
            }
        }
        if !changes && marker.layout_digest.as_ref().is_some_and(|then| *then != digest) {
            self.warn(format!("the {now} differs from the layout with which the machine was installed, {then}"));
        }
    }
}

fn describe_layout(id: &str, digest: Option<&str>) -> String {
    let digest = digest.map(|digest| format!(" ({digest})")).unwrap_or_default();
    format!("layout {id}{digest}")
}
