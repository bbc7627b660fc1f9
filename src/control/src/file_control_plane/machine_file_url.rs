//! Location of a machine file: a URL or path, in which placeholders represent properties of the machine.

use common::encoding::percent_encode;
use common::error::{Error, Phase, Result};
use model::inventory::{Inventory, Nic};
use model::machine_identity::{is_controller_driver, usable_mac, usable_serial, usable_uuid};
use std::fmt;

/// URL or path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileLocation(String);

impl FileLocation {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_url(&self) -> bool {
        self.0.contains("://")
    }

    pub(crate) fn is_over_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Returns the location of the file's signature.
    pub(crate) fn signature_location(&self) -> FileLocation {
        FileLocation(linux::http::append_to_path(&self.0, ".minisig"))
    }
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replaces the placeholders in a pattern by the properties of this machine. A pattern with `{mac}` results in one
/// location for each network interface.
///
/// # Errors
/// Fails if the pattern contains a property that the machine lacks.
pub(crate) fn expand_pattern(pattern: &str, machine: &str, inventory: &Inventory) -> Result<Vec<FileLocation>> {
    let fill = |text: &str, name: &str, value: &str| -> Result<String> {
        if !text.contains(name) {
            return Ok(text.to_owned());
        }
        let value = encode_value(usable_value(name, value)).ok_or_else(|| {
            pattern_error(
                pattern,
                &format!("the placeholder {name} cannot be replaced: this machine does not have a usable value for it"),
            )
        })?;
        Ok(text.replace(name, &value))
    };
    let filled = fill(&fill(pattern, "{uuid}", machine)?, "{serial}", &inventory.system.serial)?;
    let of_machine = |nic: &&Nic| usable_mac(&nic.mac).is_some() && !is_controller_driver(&nic.driver);
    let macs: Vec<&str> = inventory.nics.iter().filter(of_machine).map(|nic| nic.mac.as_str()).collect();
    let macs = if macs.is_empty() || !filled.contains("{mac}") { vec![""] } else { macs };
    let locations = macs.into_iter().map(|mac| {
        let place = fill(&filled, "{mac}", mac)?;
        match place.contains(['{', '}']) {
            true => Err(pattern_error(pattern, "only {uuid}, {mac} and {serial} are supported")),
            false => Ok(FileLocation(place)),
        }
    });
    locations.collect()
}

/// Returns the value, or an empty string if other machines may have the same value: these machines would read the same
/// file.
fn usable_value<'a>(name: &str, value: &'a str) -> &'a str {
    let is_shared = match name {
        // The operator may choose any string as the id of a machine, so the value need not be a UUID.
        "{uuid}" => uuid::Uuid::try_parse(value).is_ok_and(|uuid| usable_uuid(uuid).is_none()),
        "{serial}" => usable_serial(value).is_none(),
        _ => usable_mac(value).is_none(),
    };
    if is_shared { "" } else { value }
}

/// Percent-encodes a value for URLs and file names, because a serial number may contain any character. Returns `None`
/// if the value is empty or consists only of dots.
fn encode_value(value: &str) -> Option<String> {
    let value = value.trim();
    // A value that consists of dots would refer to another directory.
    if value.bytes().all(|byte| byte == b'.') {
        return None;
    }
    Some(percent_encode(value, ":"))
}

fn pattern_error(pattern: &str, why: &str) -> Error {
    Error::new(Phase::Settings, format!("kernel command line: {pattern}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::SystemInfo;

    fn inventory(serial: &str, macs: &[&str]) -> Inventory {
        let nics = macs.iter().map(|mac| Nic { mac: (*mac).to_owned(), ..Nic::default() }).collect();
        let system = SystemInfo { serial: serial.to_owned(), ..SystemInfo::default() };
        Inventory { system, nics, ..Inventory::default() }
    }

    #[test]
    fn placeholders_are_replaced_by_machine_identifiers() {
        let inventory = inventory("S/N 7\u{e9}", &["52:54:00:00:00:01", "52:54:00:00:00:02"]);
        for (pattern, expected) in [
            ("https://h/m/{uuid}.json", vec!["https://h/m/4c4c-1.json"]),
            ("https://h/{serial}/{uuid}?a={serial}", vec!["https://h/S%2FN%207%C3%A9/4c4c-1?a=S%2FN%207%C3%A9"]),
            ("/media/{mac}.json", vec!["/media/52:54:00:00:00:01.json", "/media/52:54:00:00:00:02.json"]),
            ("http://h/one", vec!["http://h/one"]),
        ] {
            let locations = expand_pattern(pattern, "4c4c-1", &inventory).unwrap();
            assert_eq!(locations.iter().map(FileLocation::as_str).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn missing_identifier_or_unknown_placeholder_is_refused() {
        for (pattern, serial, why) in [
            ("http://h/{serial}", " ", "{serial} cannot be replaced: this machine does not have a usable value"),
            ("http://h/{serial}/x", "..", "{serial} cannot be replaced: this machine does not have a usable value"),
            ("http://h/{mac}", "7", "{mac} cannot be replaced: this machine does not have a usable value"),
            ("http://h/{hostname}", "7", "only {uuid}, {mac} and {serial}"),
        ] {
            let error = expand_pattern(pattern, "4c4c-1", &inventory(serial, &[])).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(pattern), "{error}");
        }
    }

    #[test]
    fn default_identifiers_are_refused_as_file_names() {
        for serial in
            ["To be filled by O.E.M.", "Default string", "1234567890", "System Serial Number", "0000000", "None"]
        {
            let error = expand_pattern("http://h/{serial}", "4c4c-1", &inventory(serial, &[])).unwrap_err().to_string();
            assert!(
                error.contains("{serial} cannot be replaced: this machine does not have a usable value"),
                "{serial}: {error}"
            );
        }
        let shared = "03000200-0400-0500-0006-000700080009";
        let error = expand_pattern("http://h/{uuid}", shared, &inventory("7", &[])).unwrap_err().to_string();
        assert!(error.contains("{uuid} cannot be replaced: this machine does not have a usable value"), "{error}");
        assert!(expand_pattern("http://h/{serial}", "4c4c-1", &inventory("CZ12345678", &[])).is_ok());
    }

    #[test]
    fn signature_location_has_minisig_suffix() {
        for (place, signature) in [("/m/a.json", "/m/a.json.minisig"), ("http://h/a?b=c", "http://h/a.minisig?b=c")] {
            assert_eq!(FileLocation(place.to_owned()).signature_location().as_str(), signature);
        }
    }
}
