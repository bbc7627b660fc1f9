//! Boot variables of UEFI firmware, from efivarfs.
//!
//! The installed system can write these variables, so they are untrusted. The number of variables and the lengths of
//! their names and values are limited. Malformed variables are listed as malformed.

mod load_target;

use super::sysfs::to_printable;
use crate::efi::{LoadOption, device_path_text, text_arguments, variables};
use common::encoding::encode_hex;
use model::inventory::{
    FirmwareLoadOption, FirmwareVariables, GLOBAL_VENDOR, LoadOptionClass, LoadTarget, OtherFirmwareVariable,
    VariablePurpose,
};
use sha2::{Digest, Sha256};
use std::path::Path;
use uuid::Uuid;

/// Length of a UUID as text.
const VENDOR_CHARS: usize = 36;

/// Maximum length of a description, path or argument, in characters.
const MAXIMUM_CHARS: usize = 400;

/// Vendor GUID of the variables of systemd-boot.
const SYSTEMD_BOOT: Uuid = Uuid::from_u128(0x4a67b082_0a4c_41cf_b6c7_440b29bb8c4f);

/// Vendor GUID of the variables of shim.
const SHIM: Uuid = Uuid::from_u128(0x605dab50_e046_4300_abb6_3dd810dd8b23);

/// Vendor GUID of the variables of drophammer.
const DROPHAMMER: Uuid = Uuid::from_u128(0x9f2f4bd1_6c3a_4a53_8c57_0d1e6b7a2c94);

/// Returns the boot variables; `None` for a machine booted in BIOS mode.
pub(super) fn read_firmware_variables(sys: &Path) -> Option<FirmwareVariables> {
    if !sys.join("firmware/efi").is_dir() {
        return None;
    }
    let directory = sys.join("firmware/efi/efivars");
    let unreadable = |reason: String| FirmwareVariables { unreadable: Some(reason), ..FirmwareVariables::default() };
    Some(match super::sysfs::list_names(&directory) {
        Ok(names) if names.is_empty() => {
            unreadable("efivarfs is not mounted, or the firmware provides no variables".into())
        }
        Ok(names) => read_variables(&directory, &names),
        Err(error) => unreadable(error.to_string()),
    })
}

fn read_variables(directory: &Path, names: &[String]) -> FirmwareVariables {
    let number = |name: &str| {
        variables::read_variable(directory, name).and_then(|value| Some(u16::from_le_bytes(value.try_into().ok()?)))
    };
    let boot_order = variables::read_variable(directory, "BootOrder").unwrap_or_default();
    let boot_order = boot_order.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let mut options: Vec<(LoadOptionClass, u16, &String)> = names
        .iter()
        .filter_map(|name| parse_load_option_name(name).map(|(class, number)| (class, number, name)))
        .collect();
    options.sort();
    let others: Vec<(VariablePurpose, &str, Uuid)> = names.iter().filter_map(|name| parse_other_name(name)).collect();
    let most = FirmwareVariables::MAXIMUM_LISTED;
    FirmwareVariables {
        unreadable: None,
        boot_current: number("BootCurrent"),
        boot_next: number("BootNext"),
        boot_order: boot_order.take(most).collect(),
        omitted: options.len().saturating_sub(most) + others.len().saturating_sub(most),
        load_options: options
            .into_iter()
            .take(most)
            .map(|(class, number, name)| build_load_option(class, number, variables::read_file(&directory.join(name))))
            .collect(),
        others: others.into_iter().take(most).map(|other| read_other_variable(directory, other)).collect(),
    }
}

/// Splits a file name of efivarfs into name and vendor GUID: `Boot0003-8be4df61-…`.
fn split_vendor(file: &str) -> Option<(&str, Uuid)> {
    let at = file.len().checked_sub(VENDOR_CHARS)?;
    let (name, vendor) = (file.get(..at)?, file.get(at..)?);
    Some((name.strip_suffix('-')?, Uuid::parse_str(vendor).ok()?))
}

/// Returns the class and the number of the load option with this file name; `None` for other variables.
fn parse_load_option_name(file: &str) -> Option<(LoadOptionClass, u16)> {
    let (name, vendor) = split_vendor(file)?;
    LoadOptionClass::ALL.into_iter().find_map(|class| {
        // Any vendor GUID is accepted for recovery options, because operating systems store these options under their
        // own GUIDs.
        let is_vendor = vendor == GLOBAL_VENDOR || class == LoadOptionClass::OsRecovery;
        let digits = name.strip_prefix(class.prefix()).filter(|_| is_vendor)?;
        Some((class, parse_hexadecimal_number(digits)?))
    })
}

/// Parses four hexadecimal digits. The specification requires upper-case digits, and firmware ignores variables with
/// lower-case digits.
fn parse_hexadecimal_number(digits: &str) -> Option<u16> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    let is_number = digits.len() == 4 && digits.bytes().all(is_digit);
    is_number.then(|| u16::from_str_radix(digits, 16).ok())?
}

fn parse_other_name(file: &str) -> Option<(VariablePurpose, &str, Uuid)> {
    let (name, vendor) = split_vendor(file)?;
    let purpose = match (vendor, name) {
        (GLOBAL_VENDOR, "OsIndications") => VariablePurpose::FirmwareRequest,
        (GLOBAL_VENDOR, name) if name.strip_prefix("Key").and_then(parse_hexadecimal_number).is_some() => {
            VariablePurpose::HotKey
        }
        (
            SYSTEMD_BOOT,
            "LoaderEntryOneShot"
            | "LoaderEntryDefault"
            | "LoaderEntrySysFail"
            | "LoaderConfigTimeout"
            | "LoaderConfigTimeoutOneShot",
        ) => VariablePurpose::SystemdBoot,
        (
            SHIM,
            "MokNew"
            | "MokAuth"
            | "MokDel"
            | "MokDelAuth"
            | "MokSB"
            | "MokPW"
            | "MokDB"
            | "MokXNew"
            | "MokXAuth"
            | "MokXDel"
            | "MokXDelAuth"
            | "MokPolicy"
            | "SbatPolicy"
            | "SHIM_RETAIN_PROTOCOL",
        ) => VariablePurpose::ShimRequest,
        (SHIM, "MokListRT" | "MokList") => VariablePurpose::ShimKeys,
        (DROPHAMMER, name) if name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            VariablePurpose::Drophammer
        }
        _ => return None,
    };
    Some((purpose, name, vendor))
}

fn read_other_variable(
    directory: &Path,
    (purpose, name, vendor): (VariablePurpose, &str, Uuid),
) -> OtherFirmwareVariable {
    let value = variables::read_file(&directory.join(format!("{name}-{vendor}")));
    OtherFirmwareVariable {
        name: name.to_owned(),
        vendor,
        purpose,
        bytes: value.as_ref().map_or(0, Vec::len),
        digest: value.as_deref().map(compute_digest),
    }
}

fn build_load_option(class: LoadOptionClass, number: u16, value: Option<Vec<u8>>) -> FirmwareLoadOption {
    let option = value.as_deref().and_then(LoadOption::parse);
    let short = |text: String| to_printable(text.as_bytes()).chars().take(MAXIMUM_CHARS).collect::<String>();
    FirmwareLoadOption {
        class,
        number,
        active: option.as_ref().is_some_and(LoadOption::is_active),
        description: option.as_ref().map(|option| short(option.description.clone())).unwrap_or_default(),
        path: option.as_ref().and_then(device_path_text).map(short).unwrap_or_default(),
        target: option.as_ref().map_or(LoadTarget::Malformed, load_target::classify_target),
        arguments: option.as_ref().and_then(|option| text_arguments(&option.optional)).map(short),
        digest: value.as_deref().map(compute_digest),
    }
}

fn compute_digest(value: &[u8]) -> String {
    encode_hex(Sha256::digest(value))
}

#[cfg(test)]
mod tests;
