//! Problems of resources in the operator's own file. Messages name each resource by its kind and name.

use super::volume_list_parser::{VOLUME, parse_items};
use common::diagnostic::Diagnostic;
use common::format::replace_hidden;
use serde_json::Value;

/// Returns the problems of resources that will be added to a list. Unlike in [`super::parse_volumes`], a storage class
/// may be missing, because the list may already contain it.
pub fn find_addition_problems(items: &[Value]) -> Vec<Diagnostic> {
    parse_items(items, true).err().unwrap_or_default()
}

/// Formats a problem with the kind and the name of its resource instead of an index: `Volume db-1: spec.mode: …`.
pub fn format_resource_problem(items: &[Value], problem: &Diagnostic) -> String {
    let Some((index, field)) = split_place(&problem.place) else { return problem.to_string() };
    let text = |path: &str| items.get(index)?.pointer(path)?.as_str().filter(|text| !text.is_empty());
    let kind = replace_hidden(text("/kind").unwrap_or(VOLUME));
    let resource = match text("/metadata/name") {
        Some(name) => format!("{kind} {}", replace_hidden(name)),
        None => format!("{kind} without a name (resource {number} of the list)", number = index + 1),
    };
    format!("{resource}: {}", Diagnostic::new(field, &problem.message))
}

/// Splits a problem's path into the index of the resource and the field: `volumes[2].spec.mode` into 2 and `spec.mode`.
pub fn split_place(place: &str) -> Option<(usize, &str)> {
    let (index, field) = place.strip_prefix("volumes[")?.split_once(']')?;
    Some((index.parse().ok()?, field.trim_start_matches('.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn problems_name_their_resources() {
        let items = [
            json!({"kind": "Volume", "metadata": {"name": "db-1", "uid": "9474cda7-0dbe-40fc-9842-3cb0404a7201"},
                "spec": {"nodeName": "h", "storageClassName": "fast", "rawBlockDevice": {"devicePath": "sdc"}}}),
            json!({"kind": "StorageClass", "metadata": {"name": "fa\u{1b}st"}}),
            json!({"spec": 1}),
        ];
        let problems = find_addition_problems(&items);
        let said: Vec<String> = problems.iter().map(|problem| format_resource_problem(&items, problem)).collect();
        for expected in [
            "Volume db-1: spec.rawBlockDevice.devicePath: must be a path below /dev, found \"sdc\"",
            "StorageClass fa st: metadata.name: must be a name of lower-case letters",
            "Volume without a name (resource 3 of the list): metadata.name: name is missing",
        ] {
            assert!(said.iter().any(|line| line.starts_with(expected)), "{expected}\n{}", said.join("\n"));
        }
        assert!(said.iter().all(|line| !line.contains("the storage class fast is not in the list")), "{said:?}");
    }

    #[test]
    fn problem_path_is_split_into_index_and_field() {
        for (place, expected) in [
            ("volumes[2].spec.mode", Some((2, "spec.mode"))),
            ("volumes[0]", Some((0, ""))),
            ("volumes", None),
            ("volumes[x].spec", None),
        ] {
            assert_eq!(split_place(place), expected, "{place}");
        }
    }
}
