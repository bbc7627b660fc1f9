//! Table of the firmware's boot variables.

use crate::{FirmwarePlan, PlannedVariable, VariableOrigin};
use common::format::{replace_hidden, truncate_bytes};
use std::fmt;

/// Maximum length of a variable's content that is printed, in bytes.
const MAXIMUM_BYTES: usize = 160;

pub(crate) fn write_firmware(f: &mut fmt::Formatter<'_>, plan: Option<&FirmwarePlan>) -> fmt::Result {
    let Some(plan) = plan else { return Ok(()) };
    if let Some(reason) = &plan.unreadable {
        return writeln!(f, "firmware boot variables: cannot be read: {reason}\n", reason = replace_hidden(reason));
    }
    let order: Vec<String> = plan.boot_order.iter().map(|number| format!("{number:04X}")).collect();
    let current = plan.boot_current.map(|number| format!(", booted from {number:04X}")).unwrap_or_default();
    let order = if order.is_empty() { "none".to_owned() } else { order.join(",") };
    writeln!(f, "firmware boot variables: boot order {order}{current}")?;
    for variable in &plan.variables {
        write_variable(f, variable)?;
    }
    writeln!(f)
}

fn write_variable(f: &mut fmt::Formatter<'_>, variable: &PlannedVariable) -> fmt::Result {
    let PlannedVariable { name, content, reason, removed, .. } = variable;
    let fate = match (removed, variable.origin) {
        (true, _) => "REMOVE",
        (false, VariableOrigin::Foreign) => "foreign",
        (false, VariableOrigin::Firmware) => "firmware",
        (false, VariableOrigin::Drophammer) => "own",
        (false, VariableOrigin::Preserved | VariableOrigin::Destroyed) => "keep",
    };
    writeln!(f, "  {name:<12}  {fate:<8}  {reason}: {}", truncate_bytes(&replace_hidden(content), MAXIMUM_BYTES))
}
