//! Kubernetes resources: the list of volumes in a machine file, and a file with resources that the operator adds to
//! such a list. Each problem has the position of its field or, if the field is missing, of the innermost existing
//! parent.

use super::yaml_node::{format_position, get_field, parse_document_or_list, to_json};
use common::diagnostic::Diagnostic;
use marked_yaml::{Marker, Node};
use model::k8s_volume;
use serde_json::Value;

/// Returns all problems of the resource list in a machine file. Each problem begins with its line and column.
pub(crate) fn find_problems(given: &Node) -> Vec<String> {
    let problems = k8s_volume::parse_volumes(&to_json(given)).err().unwrap_or_default();
    let resources: Vec<&Node> = given.as_sequence().into_iter().flat_map(|items| items.iter()).collect();
    let line = |problem: &Diagnostic| {
        let place = find_position(&resources, &problem.place);
        format!("{}{problem}", format_position(place.or(given.span().start())))
    };
    problems.iter().map(line).collect()
}

/// Parses the operator's resource file: one resource, a list of resources, or a `List` as printed by `kubectl get -o
/// yaml`. Storage classes that volumes refer to may be missing.
///
/// # Errors
/// Returns all problems, one per line, with line and column in front. The messages name the affected resources.
pub fn parse_resources(text: &str) -> Result<Value, String> {
    let document = parse_document_or_list(text)?;
    let resources: Vec<&Node> = match (&document, get_field(&document, "items")) {
        (_, Some(Node::Sequence(items))) | (Node::Sequence(items), _) => items.iter().collect(),
        _ => vec![&document],
    };
    let items: Vec<Value> = resources.iter().map(|resource| to_json(resource)).collect();
    let line = |problem: &Diagnostic| {
        let place = format_position(find_position(&resources, &problem.place));
        format!("{place}{}", k8s_volume::format_resource_problem(&items, problem))
    };
    let problems: Vec<String> = k8s_volume::find_addition_problems(&items).iter().map(line).collect();
    match problems.is_empty() {
        true => Ok(Value::Array(items)),
        false => Err(problems.join("\n")),
    }
}

/// Returns the position of the field with this path or, if the field is missing, of the innermost existing parent.
fn find_position<'a>(resources: &[&'a Node], place: &str) -> Option<&'a Marker> {
    let (index, path) = k8s_volume::split_place(place)?;
    let mut node = *resources.get(index)?;
    for name in path.split('.') {
        let Some(field) = get_field(node, name) else { break };
        node = field;
    }
    node.span().start()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files::parse_machine;

    const FILE: &str =
        "id: 4c4c4544-0051-3010-8052-b4c04f4d3132\nallocation:\n  id: a\n  hostname: h\n  image: i\n  volumes:\n";
    const CLASS: &str = "  - {kind: StorageClass, metadata: {name: fast}, parameters: {fsType: xfs, mkfsOptions: '[\"-m\", \"reflink=1\"]'}}\n";

    fn volume(uid: &str, size: &str) -> String {
        format!(
            "  - kind: Volume\n    metadata: {{name: v, uid: {uid}}}\n    spec: {{nodeName: h, storageClassName: fast, sparseLoopDevice: {{size: {size}}}}}\n"
        )
    }

    #[test]
    fn volumes_are_passed_on_unchanged() {
        let file = format!("{FILE}{CLASS}{}", volume("1d78810a-3787-4ca4-b712-50a269e42560", "1Gi"));
        let told = parse_machine(&file).unwrap().allocation.unwrap().to_agent_allocation();
        let volumes = told.parse_volumes().unwrap();
        assert_eq!(
            (volumes.len(), volumes[0].name.as_str(), volumes[0].describe_kind().as_str()),
            (1, "v", "sparseLoopDevice xfs")
        );
    }

    #[test]
    fn volume_problems_have_the_line_of_their_resource() {
        let file = format!("{FILE}{CLASS}{}", volume("x", "1.5Gi"));
        let said = parse_machine(&file).unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].starts_with("9:30: volumes[1].metadata.uid: must be a UUID"), "{said}");
        assert!(lines[1].starts_with("10:74: volumes[1].spec.sparseLoopDevice.size: must be"), "{said}");
    }

    #[test]
    fn resource_problems_name_line_volume_and_field() {
        let resource = |name: &str, spec: &str| {
            format!(
                "- apiVersion: storage.metalk8s.scality.com/v1alpha1\n  kind: Volume\n  metadata:\n    name: {name}\n    \
                 uid: 1d78810a-3787-4ca4-b712-50a269e42560\n  spec:\n    nodeName: h\n    storageClassName: fast\n{spec}"
            )
        };
        let good = resource("db-1", "    sparseLoopDevice: {size: 1Gi}\n");
        // The storage class may be missing, because it may be in the machine's list.
        assert_eq!(parse_resources(&good).unwrap()[0]["metadata"]["name"], "db-1");
        let list = format!("apiVersion: v1\nkind: List\nitems:\n{good}");
        assert_eq!(parse_resources(&list).unwrap().as_array().unwrap().len(), 1);
        let bad = resource("db-2", "    sparseLoopDevice:\n      size: 1.5Gi\n    mode: Raw\n").replace("2560", "2561");
        let said = parse_resources(&format!("kind: List\nitems:\n{good}{bad}- {{kind: Pod}}\n")).unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        assert!(lines[0].starts_with("23:10: Pod without a name (resource 3 of the list): kind: must be"), "{said}");
        assert!(lines[1].starts_with("21:13: Volume db-2: spec.sparseLoopDevice.size: must be a whole"), "{said}");
        assert!(lines[2].starts_with("22:11: Volume db-2: spec.mode: must be Filesystem or Block"), "{said}");
        assert!(parse_resources("a: [").unwrap_err().contains("1:"), "not YAML");
        let said = parse_resources("[7]\n").unwrap_err();
        assert!(said.starts_with("1:2: Volume without a name (resource 1 of the list): metadata.name"), "{said}");
    }
}
