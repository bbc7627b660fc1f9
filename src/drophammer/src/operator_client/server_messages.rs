//! Messages of the server for people: metal-api's phrases and lists of machine ids are replaced.

use common::format::format_count;
use common::format::metal_api_wording::reword_metal_phrases;

/// Maximum number of machines that a message names.
const NAMED: usize = 5;
/// Beginning of metal-api's list of machines.
const IDS: &str = " is in use by machines:[";

/// Returns the ids in metal-api's list of machines; empty if the message has no list.
pub(super) fn listed_ids(message: &str) -> Vec<&str> {
    let list = message.split_once(IDS).and_then(|(_, rest)| rest.strip_suffix(']'));
    list.map(|list| list.split(' ').collect()).unwrap_or_default()
}

/// Returns the message in the product's own wording. `name_of` returns the name of the machine with an id.
pub(super) fn reword_message(message: &str, name_of: impl Fn(&str) -> String) -> String {
    let ids = listed_ids(message);
    let Some((object, _)) = message.split_once(IDS).filter(|_| !ids.is_empty()) else {
        return reword_metal_phrases(message);
    };
    let object = object.replacen("filesystemlayout ", "layout ", 1);
    let more = ids.len().saturating_sub(NAMED);
    let names: Vec<String> = ids.iter().take(NAMED).map(|id| name_of(id)).collect();
    let more = if more > 0 { format!(" and {}", format_count(more, "other", "others")) } else { String::new() };
    let count = format_count(ids.len(), "machine", "machines");
    format!("{object} is in use by {count}: {names}{more}", names = names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_names_and_a_count() {
        let name = |id: &str| format!("web-{id}");
        for (message, expected) in [
            ("filesystemlayout a is in use by machines:[1]", "layout a is in use by 1 machine: web-1"),
            (
                "image d is in use by machines:[1 2 3 4 5 6 7]",
                "image d is in use by 7 machines: web-1, web-2, web-3, web-4, web-5 and 2 others",
            ),
            ("there is no image \"d\"", "there is no image \"d\""),
            ("image d is in use by machines:[", "image d is in use by machines:["),
            ("filesystemlayout:a already exists", "layout a already exists"),
        ] {
            assert_eq!(reword_message(message, name), expected);
        }
    }
}
