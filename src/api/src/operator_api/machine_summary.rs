//! Summary of a machine, as shown in the machine lists of the API and of the web page.

use crate::migration_requests::machine_migration_view::MachineMigration;
use crate::out_of_band::progress::OutOfBandProgress;
use model::install_report::ProgressEvent;
use serde::{Deserialize, Deserializer, Serialize};
use site::effective_allocation::AllocationDifference;
use store::{ATTEMPTS, AttemptFailure, MachineContact, ReinstallOrder, ReinstallOutcome, WaitingMarker};

/// Summary of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineSummary {
    pub id: String,
    pub name: String,
    /// Project of the machine, to which the access of users can be restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(default, deserialize_with = "read_reference")]
    pub size: Option<String>,
    /// Id of the allocation.
    #[serde(default, deserialize_with = "read_reference")]
    pub allocation: Option<String>,
    /// Id of the installed image.
    pub image: Option<String>,
    /// Id of the image that the operator has selected for the machine: the image of the open reinstall order. Without
    /// an order, the image in the machine file.
    #[serde(default)]
    pub wanted: Option<String>,
    /// Id of the installed layout.
    pub layout: Option<String>,
    pub installed: bool,
    /// True if the operator has recorded the machine as installed, and no report from the machine has confirmed the
    /// installation yet.
    #[serde(default)]
    pub adopted: bool,
    /// True if the installation is known only from an adopted install marker. `image` and `layout` are then values
    /// from the disk that the server has not verified.
    #[serde(default)]
    pub claimed: bool,
    /// Install marker that the operator must adopt before the machine continues, because this server has no record of
    /// the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitingMarker>,
    /// True if the database was restored from a backup, and the record of this machine has not been confirmed since
    /// then.
    #[serde(default)]
    pub needs_confirmation: bool,
    /// Installation that the machine has reported, but that the server has not recorded. Set only while the server's
    /// record of the machine needs confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disk: Option<WaitingMarker>,
    /// True if the system of a previous tenant may still run on the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_clean: bool,
    /// Reason why the machine is locked. Nothing can be ordered for a locked machine.
    pub locked: Option<String>,
    pub order: Option<ReinstallOrder>,
    /// Older reinstall order that `order` has replaced. Set only in the response to the request that placed `order`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReinstallOrder>,
    /// Differences between the machine file and the installed allocation, with their effects on the open order. If no
    /// order is open, the effects on a reinstall that does not set `apply_allocation` are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<AllocationDifference>,
    /// True if the server has no record of the installed allocation, in which case a reinstall applies all values of
    /// the machine file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allocation_unrecorded: bool,
    /// Open migration of the machine, as source or target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MachineMigration>,
    /// Progress of the steps that run over Redfish before the installation; absent if all steps are completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_band: Option<OutOfBandProgress>,
    /// Maximum number of attempts of a reinstall order.
    pub attempts: u32,
    /// Time of the last registration, event or request of the machine.
    pub last_seen: Option<String>,
    pub last_event: Option<ProgressEvent>,
    /// True if the machine has reported the end of an installation, and has sent no event since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Result of the last reinstall.
    pub outcome: Option<ReinstallOutcome>,
    /// State of the machine in one word or a few words, as on the web page, such as `new`, `installing` or `failed`.
    #[serde(default)]
    pub phase: String,
    /// True if the machine has registered, but `machines/` contains no file for the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new: bool,
    /// Error of the machine file, with path, line and code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_error: Option<String>,
    /// True if the machine file has an error, and no version of the file is in force. The phase is then `file error`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unusable: bool,
    /// True if the allocation in the machine file belongs to another machine, on which it is installed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Address from which the machine registered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Failure of the last attempt to install the machine; absent if the last attempt has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<MachineFailure>,
}

impl MachineSummary {
    /// Returns the last event, unless the machine has reported the end of the installation since then. The event that
    /// follows the report may have been lost.
    pub fn current_event(&self) -> Option<&ProgressEvent> {
        self.last_event.as_ref().filter(|_| !self.ended)
    }

    /// Returns a summary that contains only the last contact of the machine.
    pub(crate) fn from_contact(id: &str, contact: MachineContact) -> MachineSummary {
        let MachineContact { last_seen, last_event, has_reported, boot } = contact;
        MachineSummary {
            id: id.to_owned(),
            attempts: ATTEMPTS,
            last_seen,
            // An event that cannot be parsed is omitted: a newer version may have stored it in another format.
            last_event: last_event.and_then(|event| serde_json::from_str(&event).ok()),
            ended: has_reported,
            address: boot.and_then(|boot| boot.address),
            ..MachineSummary::default()
        }
    }

    /// Returns the name, or the id if the machine has no name.
    pub fn display_name(&self) -> &str {
        if self.name.is_empty() { &self.id } else { &self.name }
    }
}

/// Reason why the last attempt to install a machine has failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineFailure {
    #[serde(flatten)]
    pub attempt: AttemptFailure,
    /// Remedy for the operator, or the next action of the machine itself.
    pub remedy: String,
}

impl MachineFailure {
    /// Describes the failed attempt to install the machine whose summary is `machine`, with a remedy.
    pub(crate) fn new(attempt: AttemptFailure, machine: &MachineSummary) -> MachineFailure {
        let reinstall = |image: &str| {
            format!("drophammer machine reinstall {machine} --image {image}", machine = machine.display_name())
        };
        let remedy = match &machine.order {
            Some(order) if order.is_suspended() => format!(
                "the machine boots its old system, and the order is suspended: remove the cause, then run `{command}`", command = reinstall(&order.image)),
            Some(order) if order.given_up => format!(
                "the machine is only partially installed and waits at its console: remove the cause, then run `{command}`", command = reinstall(&order.image)),
            Some(order) => format!("attempt {attempt} of {attempts}: the machine retries at its next boot", attempt = order.attempts, attempts = ATTEMPTS),
            None if machine.installed => {
                "every disk is unchanged, and the machine boots its old system: remove the cause, then order the reinstall again"
                    .to_owned()
            }
            None if attempt.untouched => {
                "every disk is unchanged: remove the cause, then boot the machine over PXE".to_owned()
            }
            None => "remove the cause, then boot the machine over PXE: the installation starts again on the same disks"
                .to_owned(),
        };
        MachineFailure { attempt, remedy }
    }
}

/// Formats the failure as `storage.format: mkfs.ext4: no space left on device; REMEDY`.
impl std::fmt::Display for MachineFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.attempt, self.remedy)
    }
}

/// Size or allocation in a response: either its id, or an object in the format of metal-api. Responses to orders
/// contain the object.
#[derive(Deserialize)]
#[serde(untagged)]
enum ObjectReference {
    Id(String),
    Size { id: String },
    Allocation { allocationuuid: String },
}

fn read_reference<'de, D: Deserializer<'de>>(source: D) -> Result<Option<String>, D::Error> {
    Ok(Option::deserialize(source)?.map(|reference| match reference {
        ObjectReference::Id(id) | ObjectReference::Size { id } => id,
        ObjectReference::Allocation { allocationuuid } => allocationuuid,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn summary_is_parsed_from_lists_and_order_responses() {
        let read = |size: serde_json::Value, allocation: serde_json::Value| {
            let document = json!({"id": "m", "name": "one", "size": size, "allocation": allocation, "installed": true,
                "image": null, "layout": null, "locked": null, "order": null, "attempts": 3, "last_seen": null,
                "last_event": null, "outcome": null});
            serde_json::from_value::<MachineSummary>(document).map(|read| (read.size, read.allocation))
        };
        let texts = (Some("c1".to_owned()), Some("a1".to_owned()));
        assert_eq!(read(json!("c1"), json!("a1")).unwrap(), texts);
        let size = json!({"id": "c1", "constraints": []});
        assert_eq!(read(size, json!({"allocationuuid": "a1", "hostname": "h"})).unwrap(), texts);
        assert_eq!(read(json!(null), json!(null)).unwrap(), (None, None));
        assert!(read(json!(7), json!(null)).is_err() && read(json!(null), json!({"name": "a1"})).is_err());
    }
}
