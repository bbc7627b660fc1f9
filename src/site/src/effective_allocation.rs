//! Allocation that applies to a machine. Before the first installation, the allocation of the machine file applies. A
//! reinstall preserves the installed allocation except for the image, unless it is ordered with `--apply-allocation`.
//! In that case, the allocation of the machine file applies.
//!
//! | field | without `apply_allocation` |
//! |---|---|
//! | any field except the fields below | the installed value |
//! | secrets (`user_data`, `console_password`, `vpn`, `os_parameters`), if not set at the installation | not set |
//! | `disk_key`, if not set at the installation | the key in the machine file, which unlocks preserved filesystems |
//! | secrets and `os`, if set at the installation | the value in the machine file must be the installed value, otherwise the reinstall is refused |
//! | `volumes` | the volumes in the machine file: volumes are resources of Kubernetes, and existing volumes are preserved |
//! | `image`, `filesystemlayout`, `give_up` | see `allocation_resolution` |

use crate::operator_files::recorded_allocation::{DISK_KEY, OS, OS_PARAMETERS, VOLUMES};
use crate::operator_files::{AllocationSpec, MachineSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use store::{InstallState, InstalledAllocation};

/// Stable error code of a reinstall that is refused because a value of the installed allocation is not on record.
pub const NOT_KEEPABLE_CODE: &str = "allocation-not-keepable";

/// Maximum number of characters of a value in a message.
const VALUE_CHARS: usize = 60;

/// Allocation that applies to a machine.
#[derive(Debug, Clone)]
pub struct EffectiveAllocation {
    pub allocation: AllocationSpec,
    /// Reason why a reinstall cannot preserve the installed allocation. If set, nothing may be installed.
    pub problem: Option<String>,
}

/// Difference in one field between the machine file and the installed allocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocationDifference {
    /// Name of the field in the machine file.
    pub field: String,
    /// Installed value; absent if the field was not set, or is secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Value>,
    /// Value in the machine file; absent if the field is not set, or is secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Value>,
    /// True if the values are omitted because they may be secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret: bool,
    pub effect: DifferenceEffect,
}

/// Effect of a difference on the reinstall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceEffect {
    /// The installed value is kept.
    Kept,
    /// The value in the machine file will be used.
    Applied,
    /// The reinstall is refused. The server has not recorded the installed value, so the value can be preserved only
    /// if the machine file contains it.
    Refused,
}

/// Returns the machine with its effective allocation in this state.
pub fn with_effective_allocation(machine: &MachineSpec, install_state: &InstallState) -> MachineSpec {
    let allocation = machine.allocation.as_ref().map(|in_file| effective_allocation(in_file, install_state).allocation);
    MachineSpec { allocation, ..machine.clone() }
}

/// Returns the allocation that applies to the machine in this state.
pub fn effective_allocation(file: &AllocationSpec, install_state: &InstallState) -> EffectiveAllocation {
    let of_file = |problem| EffectiveAllocation { allocation: file.clone(), problem };
    let Some(record) = install_state.preserved_allocation() else { return of_file(None) };
    let mut allocation = match file.with_recorded_fields(record) {
        Ok(allocation) => allocation,
        Err(why) => {
            return of_file(Some(format!(
                "the fields recorded at the installation cannot be combined with the machine file: {why}; {REMEDY}"
            )));
        }
    };
    // The layout that was stored at the installation applies. The layout id in the file is removed, since it would
    // conflict with templates that generate a layout.
    let changes_layout = install_state.order.as_ref().is_some_and(|order| order.change_promise);
    if install_state.layout.is_some() && !changes_layout {
        allocation.filesystemlayout = None;
    }
    EffectiveAllocation { allocation, problem: explain_refused_differences(&compare_fields(record, file, false)) }
}

const REMEDY: &str = "restore the installed values in the machine file, or apply the whole file with `drophammer machine reinstall --apply-allocation`";

/// Returns the reason why the reinstall is refused, or `None` if no difference prevents the reinstall.
fn explain_refused_differences(all: &[AllocationDifference]) -> Option<String> {
    let refused = all.iter().filter(|one| one.effect == DifferenceEffect::Refused);
    let names: Vec<&str> = refused.map(|one| one.field.as_str()).collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!(
        "the machine file differs from the installed allocation in {names}. The installed values cannot be kept, because the server records \
         only digests of secrets, and verifies only the OS definitions that the file specifies; {REMEDY}"
    ))
}

/// Returns all differences between the machine file and the installed allocation. Their effects are those of the open
/// reinstall order or, if no reinstall is ordered, those of a reinstall without options. Returns an empty list if the
/// installed allocation is not recorded.
pub fn find_allocation_differences(file: &AllocationSpec, install_state: &InstallState) -> Vec<AllocationDifference> {
    let Some(record) = install_state.installed_allocation.as_ref().filter(|_| install_state.succeeded) else {
        return Vec::new();
    };
    compare_fields(record, file, install_state.preserved_allocation().is_none())
}

/// Returns whether the fields of the installation are not recorded. If they are not recorded, a reinstall uses the
/// fields of the machine file.
pub fn is_unrecorded(install_state: &InstallState) -> bool {
    install_state.succeeded && install_state.installed_allocation.is_none()
}

fn compare_fields(
    record: &InstalledAllocation,
    file: &AllocationSpec,
    applies_file: bool,
) -> Vec<AllocationDifference> {
    let now = file.to_fields();
    let names: BTreeSet<&String> = record.plain.keys().chain(now.plain.keys()).collect();
    let plain = names.into_iter().filter(|name| record.plain.get(*name) != now.plain.get(*name)).map(|name| {
        let (installed, file) = (record.plain.get(name).cloned(), now.plain.get(name).cloned());
        let is_keepable = name != OS || installed.is_none();
        (name.clone(), installed, file, false, is_keepable)
    });
    let had_os = record.plain.contains_key(OS);
    let secrets = record.secret_names().chain(now.secrets.keys()).collect::<BTreeSet<_>>().into_iter();
    let secrets = secrets.filter(|name| !record.is_same_secret(name, now.secrets.get(*name).map(String::as_str)));
    let secrets = secrets.map(|name| {
        let is_omitted = record.has_secret(name) || (had_os && name == OS_PARAMETERS);
        (name.clone(), None, None, true, !is_omitted)
    });
    let all = plain.chain(secrets).map(|(field, installed, file, secret, is_keepable)| {
        let effect = match () {
            () if applies_file || field == VOLUMES => DifferenceEffect::Applied,
            () if is_keepable && field == DISK_KEY => DifferenceEffect::Applied,
            () if is_keepable => DifferenceEffect::Kept,
            () => DifferenceEffect::Refused,
        };
        AllocationDifference { field, installed, file, secret, effect }
    });
    all.collect()
}

/// Note for the operator about a machine whose installed allocation is not recorded.
pub const UNRECORDED: &str = "the installed allocation is not on record, because an earlier version installed the machine or the operator adopted it: all \
    values of the machine file apply";

impl AllocationDifference {
    /// Returns whether the value of this field in the machine file applies, not the installed value.
    pub fn is_applied(&self) -> bool {
        self.effect == DifferenceEffect::Applied
    }
}

impl fmt::Display for AllocationDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<Value>| match value {
            _ if self.secret => "a secret".to_owned(),
            None => "not set".to_owned(),
            Some(value) => shorten(&value.to_string()),
        };
        let (installed, file) = (show(&self.installed), show(&self.file));
        match (self.effect, self.secret) {
            (DifferenceEffect::Applied, false) => write!(f, "{}: {installed} becomes {file}", self.field),
            (DifferenceEffect::Applied, true) => {
                write!(f, "{field}: the value in the machine file replaces the installed value", field = self.field)
            }
            (DifferenceEffect::Kept, false) => {
                write!(
                    f,
                    "{field}: stays {installed}; the value in the machine file is ignored: {file}",
                    field = self.field
                )
            }
            (DifferenceEffect::Kept, true) => {
                write!(f, "{field}: stays unset; the value in the machine file is ignored", field = self.field)
            }
            (DifferenceEffect::Refused, _) => {
                write!(f, "{field}: differs from the installed value, which cannot be kept", field = self.field)
            }
        }
    }
}

fn shorten(text: &str) -> String {
    let short: String = text.chars().take(VALUE_CHARS).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests;
