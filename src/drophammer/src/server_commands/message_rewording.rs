//! Conversion of the server's messages to the product's own wording: metal-api's phrases are reworded, and ids of
//! machines are replaced by names.

use common::format::format_count;
use common::format::machine_ids_as_names::replace_machine_ids;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;

/// Maximum number of machines whose names a message contains.
const MAXIMUM_LISTED_MACHINES: usize = 5;
/// Types of objects in metal-api's messages, and the product's terms for them in the singular and in the plural.
const NOUNS: [(&str, &str, &str); 4] = [
    ("filesystemlayout", "layout", "layouts"),
    ("image", "image", "images"),
    ("machine", "machine", "machines"),
    ("size", "size", "sizes"),
];
/// Beginning of the list of machines in a message of metal-api.
const IDS: &str = " is in use by machines:[";

/// Returns whether the message contains ids of machines that [`reword_message`] would replace by names.
pub(super) fn contains_ids(message: &str) -> bool {
    !listed_ids(message).is_empty() || replace_machine_ids(message, |_| Some(String::new())) != message
}

/// Returns the ids in the list of machines in a message of metal-api; empty if there is no list.
fn listed_ids(message: &str) -> Vec<&str> {
    let list = message.split_once(IDS).and_then(|(_, rest)| rest.strip_suffix(']'));
    list.map(|list| list.split(' ').collect()).unwrap_or_default()
}

/// Returns the message in the product's own wording. `name_of` returns the name of the machine with an id.
pub(super) fn reword_message(message: &str, name_of: impl Fn(&str) -> String) -> String {
    if let Some(missing) = reword_missing(message) {
        return missing;
    }
    let ids = listed_ids(message);
    let Some((object, _)) = message.split_once(IDS).filter(|_| !ids.is_empty()) else {
        return reword_metal_phrases(&replace_machine_ids(message, |id| Some(name_of(id))));
    };
    let object = object.replacen("filesystemlayout ", "layout ", 1);
    let more = ids.len().saturating_sub(MAXIMUM_LISTED_MACHINES);
    let names: Vec<String> = ids.iter().take(MAXIMUM_LISTED_MACHINES).map(|id| name_of(id)).collect();
    let more = if more > 0 { format!(" and {}", format_count(more, "other", "others")) } else { String::new() };
    let count = format_count(ids.len(), "machine", "machines");
    format!("{object} is in use by {count}: {names}{more}", names = names.join(", "))
}

/// Rewords metal-api's message `no filesystemlayout with id "a" found`, which reports a missing object.
fn reword_missing(message: &str) -> Option<String> {
    let (kind, rest) = message.strip_prefix("no ")?.split_once(" with id ")?;
    let (id, code) = rest.split_once(" found")?;
    let (noun, nouns) = NOUNS.into_iter().find(|(metal, ..)| *metal == kind).map(|(_, noun, nouns)| (noun, nouns))?;
    Some(format!("the server has no {noun} {id}; `drophammer {noun} list` lists its {nouns}{code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_machines_become_names_but_paths_do_not_change() {
        let id = "4c4c4544-0051-3010-8052-b4c04f4d3132";
        let name = |_: &str| "storage-7".to_owned();
        for (message, expected) in [
            (format!("machine {id} is locked: no"), "machine storage-7 is locked: no".to_owned()),
            (
                format!("allocation a1 of machine {id} is not installed yet (DH-640)"),
                "allocation a1 of machine storage-7 is not installed yet (DH-640)".to_owned(),
            ),
            (
                format!("wait, or cancel it (`drophammer machine move {id} --cancel`)"),
                "wait, or cancel it (`drophammer machine move storage-7 --cancel`)".to_owned(),
            ),
            (format!("the machine already has the id {id}"), format!("the machine already has the id {id}")),
            (format!("machines/{id}.yaml: no"), format!("machines/{id}.yaml: no")),
            ("machine m1 is locked".to_owned(), "machine m1 is locked".to_owned()),
        ] {
            assert_eq!(reword_message(&message, name), expected);
            assert_eq!(contains_ids(&message), message != expected, "{message}");
        }
    }

    #[test]
    fn machine_ids_become_counted_names() {
        let name = |id: &str| format!("web-{id}");
        for (message, expected) in [
            ("filesystemlayout a is in use by machines:[1]", "layout a is in use by 1 machine: web-1"),
            (
                "image d is in use by machines:[1 2 3 4 5 6 7]",
                "image d is in use by 7 machines: web-1, web-2, web-3, web-4, web-5 and 2 others",
            ),
            ("there is no image \"d\"", "there is no image \"d\""),
            (
                "no filesystemlayout with id \"a\" found (DH-600)",
                "the server has no layout \"a\"; `drophammer layout list` lists its layouts (DH-600)",
            ),
            ("no project with id \"p\" found", "no project with id \"p\" found"),
            ("image d is in use by machines:[", "image d is in use by machines:["),
            ("filesystemlayout:a already exists", "layout a already exists"),
        ] {
            assert_eq!(reword_message(message, name), expected);
        }
    }
}
