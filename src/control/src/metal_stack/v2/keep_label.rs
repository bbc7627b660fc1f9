//! List of disks that the operator wants to preserve. API v2 has no field for it, so it is stored in a label or a
//! description.
//!
//! `drophammer.keep` is a label of the allocation, or a word in the description of the layout
//! (`drophammer.keep=/dev/sdb,/dev/sdc`). Its value is a list of disks of the layout. If both exist, the label takes
//! precedence.

use common::error::{Error, Phase, Result};
use serde_json::{Value, json};

const KEEP_LABEL: &str = "drophammer.keep";

/// Sets `wipeonreinstall: false` for the disks that `drophammer.keep` lists. Returns whether the allocation or the
/// layout contains `drophammer.keep`.
///
/// # Errors
/// Fails if the list is empty, or contains a disk that is not in the layout.
pub(crate) fn mark_preserved_disks(allocation: &Value, layout: &mut Value) -> Result<bool> {
    let Some(named) = find_keep_value(allocation, layout) else { return Ok(false) };
    let named: Vec<&str> = named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let none = Vec::new();
    let listed = layout.get("disks").and_then(Value::as_array).unwrap_or(&none);
    let listed: Vec<&str> = listed.iter().filter_map(|disk| disk.get("device")?.as_str()).collect();
    let unknown: Vec<&str> = named.iter().copied().filter(|name| !listed.contains(name)).collect();
    if named.is_empty() || !unknown.is_empty() {
        let unknown = if named.is_empty() { "no disk" } else { &unknown.join(", ") };
        let message = format!(
            "{KEEP_LABEL} lists {unknown}, but the layout has the disks {disks}; list disks by their names in the layout, separated by commas",
            disks = listed.join(", ")
        );
        return Err(Error::refusal(Phase::Layout, message));
    }
    let named: Vec<String> = named.into_iter().map(str::to_owned).collect();
    for disk in layout.get_mut("disks").and_then(Value::as_array_mut).into_iter().flatten() {
        let device = disk.get("device").and_then(Value::as_str).unwrap_or_default();
        if named.iter().any(|name| name == device) {
            disk["wipeonreinstall"] = json!(false);
        }
    }
    Ok(true)
}

fn find_keep_value(allocation: &Value, layout: &Value) -> Option<String> {
    let label = allocation.get("meta").and_then(|meta| meta.get("labels")?.get("labels")?.get(KEEP_LABEL)?.as_str());
    let description = layout.get("description").and_then(Value::as_str).unwrap_or_default();
    let mut words = description.split_whitespace();
    let word = words.find_map(|word| word.strip_prefix(KEEP_LABEL)?.strip_prefix('='));
    label.or(word).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(description: &str) -> Value {
        let disk = |device: &str| json!({"device": device, "wipeonreinstall": true});
        json!({"description": description, "disks": [disk("/dev/sda"), disk("/dev/sdb"), disk("/dev/sdc")]})
    }

    fn labeled(value: &str) -> Value {
        json!({"meta": {"labels": {"labels": {"drophammer.keep": value, "other": "x"}}}})
    }

    #[test]
    fn disks_named_by_label_or_description_are_preserved() {
        for (allocation, description, kept) in [
            (json!({}), "of web servers", None),
            (json!({}), "data stays: drophammer.keep=/dev/sdb,/dev/sdc .", Some(vec!["/dev/sdb", "/dev/sdc"])),
            (labeled("/dev/sdb"), "of web servers", Some(vec!["/dev/sdb"])),
            (labeled(" /dev/sdb , /dev/sdc"), "drophammer.keep=/dev/sda", Some(vec!["/dev/sdb", "/dev/sdc"])),
            (json!({}), "drophammer.keeper=/dev/sda", None),
        ] {
            let mut layout = layout(description);
            assert_eq!(mark_preserved_disks(&allocation, &mut layout).unwrap(), kept.is_some(), "{description}");
            let disks = layout["disks"].as_array().unwrap().iter();
            let is = disks.filter(|disk| disk["wipeonreinstall"] == false).map(|disk| disk["device"].as_str().unwrap());
            assert_eq!(is.collect::<Vec<_>>(), kept.unwrap_or_default(), "{description}");
        }
    }

    #[test]
    fn unknown_disk_in_label_is_refused() {
        for value in ["/dev/sdx", "/dev/sdb,sdc", "", " , "] {
            let error = mark_preserved_disks(&labeled(value), &mut layout("")).unwrap_err();
            assert!(
                error.is_refusal()
                    && error.to_string().contains("the layout has the disks /dev/sda, /dev/sdb, /dev/sdc"),
                "{error}"
            );
        }
    }
}
