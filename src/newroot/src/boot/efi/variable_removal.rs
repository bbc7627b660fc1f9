//! Removal of boot variables that the plan lists, with verification.

use common::encoding::encode_hex;
use common::error::{Error, Phase, Result};
use linux::efi::variables::{self, variable_path};
use model::inventory::{GLOBAL_VENDOR, LoadOptionClass};
use operations::{RemoveVariables, VariableRemoval};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Removes the variables. Afterwards, removes the numbers of the removed load options from the boot orders. A variable
/// whose value has changed since the plan was made is not removed.
///
/// # Errors
/// Fails if the plan requires the removal, and a variable cannot be removed, has changed or cannot be read, or a boot
/// order cannot be updated. If the plan does not require the removal, only a warning is logged.
pub fn remove_variables(directory: &Path, removal: &RemoveVariables, say: &dyn Fn(&str)) -> Result<()> {
    let mut failures = Vec::new();
    let mut removed = Vec::new();
    for variable in &removal.variables {
        match remove_variable(directory, variable, removal.required) {
            Ok(outcome) => {
                say(&format!("EFI variable {}: {outcome}", variable.name));
                removed.extend(load_option_number(variable));
            }
            Err(error) => failures.push(format!("{}: {error}", variable.name)),
        }
    }
    failures.extend(shorten_orders(directory, &removed));
    if failures.is_empty() {
        return Ok(());
    }
    let message = format!(
        "EFI variables: cannot remove {variables}; remove them in the firmware's setup, or reset the boot entries there",
        variables = failures.join("; ")
    );
    if removal.required {
        return Err(Error::new(Phase::Boot, message));
    }
    say(&format!("WARNING: {message}"));
    Ok(())
}

fn removal_path(directory: &Path, variable: &VariableRemoval) -> PathBuf {
    directory.join(format!("{}-{}", variable.name, variable.vendor))
}

/// Returns whether a variable exists. If this cannot be determined, the variable is not considered removed.
fn is_present(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a variable, unless its value differs from the plan. If the removal is required, such a value is an error:
/// required removals run before this installation writes boot entries, so the value is not that of a new entry.
fn remove_variable(
    directory: &Path,
    variable: &VariableRemoval,
    is_required: bool,
) -> std::result::Result<&'static str, String> {
    let path = removal_path(directory, variable);
    if !is_present(&path).map_err(|error| error.to_string())? {
        return Ok("does not exist");
    }
    if let Some(expected) = &variable.digest {
        let value = variables::read_file(&path)
            .ok_or("the value of the variable cannot be read, so it cannot be compared with the plan")?;
        match encode_hex(Sha256::digest(value)) == *expected {
            true => {}
            false if is_required => return Err("the value of the variable has changed since the plan was made".into()),
            false => return Ok("not removed, because this installation has replaced the value of the variable"),
        }
    }
    variables::remove_file(&path).map_err(|error| error.to_string())?;
    require_absence(&path).map(|()| "removed")
}

/// Returns an error if a variable still exists after its removal.
fn require_absence(path: &Path) -> std::result::Result<(), String> {
    match is_present(path) {
        Ok(false) => Ok(()),
        Ok(true) => Err("the firmware did not remove the variable".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns class and number of a variable that is a load option; `None` for other variables.
fn load_option_number(variable: &VariableRemoval) -> Option<(LoadOptionClass, u16)> {
    let number = |class: LoadOptionClass| {
        let digits = variable.name.strip_prefix(class.prefix()).filter(|digits| digits.len() == 4)?;
        Some((class, u16::from_str_radix(digits, 16).ok()?))
    };
    LoadOptionClass::ALL.into_iter().filter(|_| variable.vendor == GLOBAL_VENDOR).find_map(number)
}

/// Removes the numbers of removed variables from `BootOrder`, `DriverOrder` and `SysPrepOrder`. Returns the failures.
fn shorten_orders(directory: &Path, removed: &[(LoadOptionClass, u16)]) -> Vec<String> {
    let shorten = |class: LoadOptionClass| {
        let name = class.order_variable().filter(|_| removed.iter().any(|(removed, _)| *removed == class))?;
        let Some(order) = variables::read_variable(directory, name) else {
            let unreadable = !matches!(is_present(&variable_path(directory, name)), Ok(false));
            return unreadable.then(|| format!("cannot remove entry numbers from {name}: {name} cannot be read"));
        };
        let is_gone = |number: u16| {
            let entry = variable_path(directory, &format!("{}{number:04X}", class.prefix()));
            removed.contains(&(class, number)) && matches!(is_present(&entry), Ok(false))
        };
        let numbers = order.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let shorter: Vec<u8> = numbers.filter(|number| !is_gone(*number)).flat_map(u16::to_le_bytes).collect();
        if shorter.len() == order.len() {
            return None;
        }
        write_order(directory, name, &shorter)
            .err()
            .map(|error| format!("cannot remove entry numbers from {name}: {error}"))
    };
    LoadOptionClass::ALL.into_iter().filter_map(shorten).collect()
}

fn write_order(directory: &Path, name: &str, order: &[u8]) -> std::result::Result<(), String> {
    if order.is_empty() {
        variables::remove_variable(directory, name).map_err(|error| error.to_string())?;
        return require_absence(&variable_path(directory, name));
    }
    variables::write_variable(directory, name, order).map_err(|error| error.to_string())?;
    let is_written = variables::read_variable(directory, name).as_deref() == Some(order);
    if is_written { Ok(()) } else { Err("the firmware did not store the written value".to_owned()) }
}

#[cfg(test)]
mod tests;
