//! Boot variables that earlier systems have left in the firmware: their origin, and the decision whether they are
//! removed.
//!
//! | a variable that | origin | removed by default | with `cleanfirmware`, and when every disk is erased |
//! |---|---|---|---|
//! | starts a partition that the plan destroys | destroyed | yes | yes |
//! | starts a partition of a disk that the plan preserves | preserved | no | no |
//! | starts a firmware program without arguments, a whole device, or the network with DHCP | firmware | no | no |
//! | starts the URI from which the running system was booted | foreign | no | no |
//! | starts another URI, a fixed network address, or an unknown program or partition | foreign | no | yes |
//! | is a `Driver####` or `SysPrep####` that does not start a preserved partition | foreign | no | yes |
//! | is `BootNext` | foreign | if the entry to which it refers is removed | yes |
//! | is a request to shim or the firmware, or a setting of systemd-boot | foreign | no | unless a system is preserved |
//! | contains keys for shim, or is an `OsRecovery####` | foreign | cannot be removed | cannot be removed |

mod partitions;

use super::plan_decisions::PlanDecisions;
use super::system_source::SourceInputs;
use super::{FirmwarePlan, PlannedVariable, VariableOrigin};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::inventory::{
    FirmwareLoadOption, FirmwareType, FirmwareVariables, GLOBAL_VENDOR, Inventory, LoadOptionClass, LoadTarget,
    OtherFirmwareVariable, VariablePurpose,
};
use model::layout::Layout;
use operations::{Esp, OWN_PREFIX, Operation, RemoveVariables, SessionOp, VariableRemoval};
use partitions::{BootPartitions, PartitionFate};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Selection of the boot variables that a plan removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalPolicy {
    KeepAll,
    /// Boot entries that start a partition which the plan destroys.
    Destroyed,
    /// All variables that earlier systems left.
    Foreign,
}

impl RemovalPolicy {
    pub(crate) fn from_layout(layout: &Layout) -> RemovalPolicy {
        if layout.cleanfirmware { RemovalPolicy::Foreign } else { RemovalPolicy::Destroyed }
    }
}

/// Returns a problem if the layout requests the removal of foreign variables, but not all variables of the firmware
/// are known.
pub(crate) fn refuse_cleaning(layout: &Layout, inventory: &Inventory) -> Option<Diagnostic> {
    if !layout.cleanfirmware || inventory.system.firmware != FirmwareType::Uefi {
        return None;
    }
    let reason = match &inventory.firmware_variables {
        None => "the inventory does not contain the boot variables; read the inventory again with this version of drophammer".to_owned(),
        Some(FirmwareVariables { unreadable: Some(reason), .. }) => {
            format!("{reason}; mount efivarfs and boot without the kernel argument efi=noruntime, or set cleanfirmware: false")
        }
        Some(FirmwareVariables { omitted, .. }) if *omitted > 0 => {
            format!("the firmware has {omitted} more boot variables than are supported; reset the boot entries in the \
                firmware setup")
        }
        Some(_) => return None,
    };
    Some(
        Diagnostic::new("cleanfirmware", format!("boot variables cannot be removed: {reason}"))
            .with_code(ErrorCode::BootVariables),
    )
}

/// Returns the boot variables, each with the decision whether it is removed; `None` if the inventory contains no boot
/// variables.
pub(crate) fn plan_variables(
    inventory: &Inventory,
    decided: Option<&PlanDecisions>,
    policy: RemovalPolicy,
) -> Option<FirmwarePlan> {
    let found = inventory.firmware_variables.as_ref()?;
    let check_input = VariableClassifier { found, policy, partitions: BootPartitions::new(inventory, decided) };
    let mut variables: Vec<PlannedVariable> =
        found.load_options.iter().map(|option| check_input.classify_load_option(option)).collect();
    variables.extend(check_input.classify_boot_next(&variables));
    variables.extend(found.others.iter().map(|other| check_input.classify_other(other)));
    Some(FirmwarePlan {
        unreadable: found.unreadable.clone(),
        boot_current: found.boot_current,
        boot_order: found.boot_order.clone(),
        variables,
        omitted: found.omitted,
    })
}

/// Returns the GUIDs of the partitions from which other systems of drophammer start: systems on preserved disks, or on
/// disks that cannot be read. The EFI system partitions of this installation are omitted, because it replaces the
/// entries for them.
pub(crate) fn preserved_partitions(inputs: &SourceInputs, esps: &[Esp]) -> Vec<Uuid> {
    let inventory = inputs.meant.inventory;
    let partitions = BootPartitions::new(inventory, Some(inputs.decided));
    list_preserved(inventory, |guid| {
        let is_preserved = matches!(partitions.find_fate(guid), PartitionFate::Preserved(_) | PartitionFate::Unread(_));
        is_preserved && esps.iter().all(|esp| esp.guid != guid)
    })
}

/// Returns the partitions of drophammer's boot entries that fulfil the condition.
pub(crate) fn list_preserved(inventory: &Inventory, is_preserved: impl Fn(Uuid) -> bool) -> Vec<Uuid> {
    let options = inventory.firmware_variables.iter().flat_map(|found| &found.load_options);
    let guids = options.filter(|option| is_own(option)).filter_map(|option| match option.target {
        LoadTarget::Partition(guid) => Some(guid).filter(|guid| is_preserved(*guid)),
        _ => None,
    });
    guids.collect::<BTreeSet<Uuid>>().into_iter().collect()
}

/// Classifies boot variables by origin, and decides which are removed.
struct VariableClassifier<'a> {
    found: &'a FirmwareVariables,
    policy: RemovalPolicy,
    partitions: BootPartitions,
}

impl VariableClassifier<'_> {
    fn classify_load_option(&self, option: &FirmwareLoadOption) -> PlannedVariable {
        let (origin, reason) = self.find_origin(option);
        let is_fixed = matches!(option.class, LoadOptionClass::PlatformRecovery | LoadOptionClass::OsRecovery);
        let is_current_uri = matches!(option.target, LoadTarget::Uri(_)) && self.is_current(option);
        PlannedVariable {
            name: option.variable_name(),
            vendor: GLOBAL_VENDOR,
            content: describe_option(option),
            own: is_own(option),
            removed: !is_fixed && !is_current_uri && self.is_removed(origin),
            origin,
            reason,
            digest: option.digest.clone(),
        }
    }

    fn is_removed(&self, origin: VariableOrigin) -> bool {
        match self.policy {
            RemovalPolicy::KeepAll => false,
            RemovalPolicy::Destroyed => origin == VariableOrigin::Destroyed,
            RemovalPolicy::Foreign => matches!(origin, VariableOrigin::Destroyed | VariableOrigin::Foreign),
        }
    }

    fn is_current(&self, option: &FirmwareLoadOption) -> bool {
        option.class == LoadOptionClass::Boot && self.found.boot_current == Some(option.number)
    }

    /// Returns the origin of a load option, and the reason for this classification.
    fn find_origin(&self, option: &FirmwareLoadOption) -> (VariableOrigin, String) {
        use VariableOrigin::{Firmware, Foreign};
        let (origin, reason) = match &option.target {
            LoadTarget::Partition(guid) => self.partition_origin(self.partitions.find_fate(*guid)),
            LoadTarget::MbrPartition => self.partition_origin(self.partitions.mbr_fate()),
            LoadTarget::Uri(_) if self.is_current(option) => {
                (Foreign, "starts the URI from which the machine has booted".to_owned())
            }
            LoadTarget::Uri(_) => (Foreign, "starts a URI".to_owned()),
            LoadTarget::RemoteAddress => (Foreign, "starts from a fixed network address".to_owned()),
            LoadTarget::Malformed => (Foreign, "cannot be read".to_owned()),
            LoadTarget::Unknown => (Foreign, "starts an unknown program".to_owned()),
            LoadTarget::Network | LoadTarget::Firmware | LoadTarget::Device if option.arguments.is_some() => {
                (Foreign, "passes arguments to a firmware program".to_owned())
            }
            LoadTarget::Network => (Firmware, "network".to_owned()),
            LoadTarget::Firmware => (Firmware, "firmware program".to_owned()),
            LoadTarget::Device => (Firmware, "whole device".to_owned()),
        };
        match option.class {
            LoadOptionClass::Boot => (origin, reason),
            LoadOptionClass::PlatformRecovery => (Firmware, "only the firmware can write this variable".to_owned()),
            LoadOptionClass::OsRecovery => (Foreign, "the running system cannot remove this variable".to_owned()),
            // No known firmware creates `Driver####` or `SysPrep####` variables itself.
            LoadOptionClass::Driver | LoadOptionClass::SysPrep if origin == Firmware => {
                (Foreign, format!("runs before every boot entry; {reason}"))
            }
            LoadOptionClass::Driver | LoadOptionClass::SysPrep => {
                (origin, format!("runs before every boot entry; {reason}"))
            }
        }
    }

    fn partition_origin(&self, fate: PartitionFate) -> (VariableOrigin, String) {
        match fate {
            PartitionFate::Destroyed(device) => {
                (VariableOrigin::Destroyed, format!("starts from {device}, whose contents are destroyed"))
            }
            PartitionFate::Preserved(device) => (VariableOrigin::Preserved, format!("starts from {device}")),
            PartitionFate::Unread(device) => {
                (VariableOrigin::Preserved, format!("may start from a partition of {device}, which cannot be read"))
            }
            PartitionFate::Absent => {
                (VariableOrigin::Foreign, "starts from a partition that does not exist on any disk".to_owned())
            }
        }
    }

    fn classify_boot_next(&self, options: &[PlannedVariable]) -> Option<PlannedVariable> {
        let number = self.found.boot_next?;
        let entry = format!("Boot{number:04X}");
        let is_named_removed = options.iter().any(|option| option.removed && option.name == entry);
        Some(PlannedVariable {
            name: "BootNext".to_owned(),
            vendor: GLOBAL_VENDOR,
            content: entry,
            origin: VariableOrigin::Foreign,
            reason: "takes precedence over the boot order for one boot".to_owned(),
            own: false,
            removed: is_named_removed || self.is_removed(VariableOrigin::Foreign),
            digest: Some(format!("{:x}", Sha256::digest(number.to_le_bytes()))),
        })
    }

    fn classify_other(&self, other: &OtherFirmwareVariable) -> PlannedVariable {
        use VariableOrigin::{Drophammer, Firmware, Foreign};
        let (origin, reason, is_removable) = match other.purpose {
            VariablePurpose::HotKey => (Firmware, "hot key for a boot entry", false),
            VariablePurpose::Drophammer => (Drophammer, "drophammer's own state", false),
            VariablePurpose::ShimKeys => {
                (Foreign, "keys that shim trusts; the running system cannot remove them", false)
            }
            VariablePurpose::FirmwareRequest => (Foreign, "request to the firmware", true),
            VariablePurpose::ShimRequest => (Foreign, "request to shim", !self.partitions.has_preserved()),
            VariablePurpose::SystemdBoot => (Foreign, "systemd-boot setting", !self.partitions.has_preserved()),
        };
        PlannedVariable {
            name: other.name.clone(),
            vendor: other.vendor,
            content: format!("{} bytes", other.bytes),
            origin,
            reason: reason.to_owned(),
            own: false,
            removed: is_removable && self.is_removed(origin),
            digest: other.digest.clone(),
        }
    }
}

fn is_own(option: &FirmwareLoadOption) -> bool {
    option.class == LoadOptionClass::Boot && option.description.starts_with(OWN_PREFIX)
}

fn describe_option(option: &FirmwareLoadOption) -> String {
    let arguments = option.arguments.iter().map(String::as_str);
    let active = if option.active { "" } else { "(inactive)" };
    let words = [active, &option.description, &option.path].into_iter().chain(arguments);
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")
}

impl FirmwarePlan {
    /// Returns the operation that removes variables before the boot entries of the new installation are written.
    pub(crate) fn remove_variables(&self, policy: RemovalPolicy, writes_entries: bool) -> Option<Operation> {
        self.build_removal(policy, |variable| !(writes_entries && variable.own))
    }

    /// Returns the operation that removes the boot entries of earlier drophammer installations. The operation runs
    /// after the new entries were written, and skips new entries that reuse the numbers of old ones.
    pub(crate) fn remove_own_entries(&self) -> Option<Operation> {
        self.build_removal(RemovalPolicy::Destroyed, |variable| variable.own)
    }

    fn build_removal(
        &self,
        policy: RemovalPolicy,
        is_included: impl Fn(&PlannedVariable) -> bool,
    ) -> Option<Operation> {
        let removed = self.variables.iter().filter(|variable| variable.removed && is_included(variable));
        let variables: Vec<VariableRemoval> = removed
            .map(|variable| VariableRemoval {
                name: variable.name.clone(),
                vendor: variable.vendor,
                digest: variable.digest.clone(),
            })
            .collect();
        let required = policy == RemovalPolicy::Foreign;
        (!variables.is_empty())
            .then_some(Operation::Run(SessionOp::RemoveVariables(RemoveVariables { variables, required })))
    }

    /// Returns warnings about variables that are not removed.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings.extend(self.unreadable.as_ref().map(|reason| {
            format!(
                "cannot read the firmware's boot variables: {reason}; boot entries of earlier systems are unknown and \
                 will not be removed. Look for such entries in the firmware's setup"
            )
        }));
        if self.omitted > 0 {
            warnings.push(format!(
                "{} of the firmware's boot variables were not read, because there are too many, and will not be \
                 removed. Reset the boot entries in the firmware's setup",
                self.omitted
            ));
        }
        let foreign =
            self.variables.iter().filter(|variable| variable.origin == VariableOrigin::Foreign && !variable.removed);
        let foreign: Vec<&str> = foreign.map(|variable| variable.name.as_str()).collect();
        if !foreign.is_empty() {
            warnings.push(format!(
                "boot variables of foreign origin will remain in the firmware: {}; cleanfirmware: true in the layout \
                 removes those that can be removed",
                foreign.join(", ")
            ));
        }
        warnings
    }
}
