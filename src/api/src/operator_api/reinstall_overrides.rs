//! Overrides of a reinstall order: options with which the operator permits a reinstall that would otherwise be refused.

use super::reinstalls::ReinstallRequest;
use http_server::api_error::ApiError;
use model::disk_identifiers::{is_placeholder_serial, is_placeholder_wwn};
use store::ReinstallOverrides;
use uuid::Uuid;

/// Returns the operator's overrides, which apply to this reinstall only.
pub(super) fn read_overrides(reinstall_request: &ReinstallRequest) -> Result<ReinstallOverrides, ApiError> {
    let words = ReinstallOverrides {
        without_marker: reinstall_request.without_marker,
        change_promise: reinstall_request.change_promise,
        give_up: reinstall_request.give_up.iter().map(|serial| serial.trim().to_owned()).collect(),
        leave_locked: parse_containers(&reinstall_request.leave_locked)?,
        replace_newer: reinstall_request.replace_newer,
        apply_allocation: reinstall_request.apply_allocation,
        layout_digest: None,
    };
    if words.give_up.iter().any(String::is_empty) {
        return Err(ApiError::bad_request("a serial number in `give_up` must not be empty"));
    }
    if let Some(placeholder) = words.give_up.iter().find(|name| is_placeholder(name)) {
        return Err(ApiError::bad_request(format!(
            "{placeholder:?} does not identify a disk: it is a placeholder that many disks report; specify the disk's WWN or its path in /dev/disk/by-path"
        )));
    }
    Ok(words)
}

/// Returns the UUIDs of LUKS containers in their canonical form.
fn parse_containers(listed: &[String]) -> Result<Vec<String>, ApiError> {
    let parse = |listed: &String| match Uuid::parse_str(listed.trim()) {
        Ok(uuid) => Ok(uuid.to_string()),
        Err(_) => Err(ApiError::bad_request(format!(
            "{listed:?} in `leave_locked` is not the UUID of a LUKS container; `cryptsetup luksUUID DEVICE` prints the UUID"
        ))),
    };
    listed.iter().map(parse).collect()
}

/// Returns whether a string is a placeholder as a serial number and as a WWN, and thus cannot identify a disk.
fn is_placeholder(word: &str) -> bool {
    is_placeholder_serial(word) && is_placeholder_wwn(word)
}
