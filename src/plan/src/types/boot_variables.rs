//! Boot variables of a UEFI firmware, and the decision of the plan whether each variable is removed.

use serde::Serialize;
use uuid::Uuid;

/// Boot variables of the machine, each with the decision whether it is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FirmwarePlan {
    /// Reason why no variable can be read; `None` if the variables were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Number of the boot entry that the firmware started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_current: Option<u16>,
    pub boot_order: Vec<u16>,
    pub variables: Vec<PlannedVariable>,
    /// Number of variables that were not read because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A boot variable, with its origin, and the decision whether it is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedVariable {
    /// Name of the variable, such as `Boot0003` or `BootNext`.
    pub name: String,
    #[serde(skip)]
    pub vendor: Uuid,
    /// Description and device path, as text for the operator.
    pub content: String,
    pub origin: VariableOrigin,
    /// Reason why the variable has this origin.
    pub reason: String,
    /// True if drophammer created the variable, according to the prefix of its description.
    #[serde(skip)]
    pub own: bool,
    pub removed: bool,
    #[serde(skip)]
    pub digest: Option<String>,
}

/// Origin of a boot variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VariableOrigin {
    /// The variable was created by the firmware, or is identical to an entry that the firmware creates.
    Firmware,
    /// Variable in which drophammer stores its own state.
    Drophammer,
    /// The variable starts a system on a partition that this plan does not destroy.
    Preserved,
    /// The variable starts a system on a partition that this plan destroys.
    Destroyed,
    /// The variable was created by an operating system or an operator, and does not refer to any disk of the machine.
    Foreign,
}
