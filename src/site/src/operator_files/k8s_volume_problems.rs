//! Kubernetes volumes in a machine file. Each problem has the position of the resource in which it was found.

use super::yaml_node::{format_position, to_json};
use marked_yaml::Node;
use model::k8s_volume;

/// Returns all problems of the list, with line and column in front.
pub(crate) fn find_problems(given: &Node) -> Vec<String> {
    let problems = k8s_volume::parse_volumes(&to_json(given)).err().unwrap_or_default();
    let line = |problem: &common::diagnostic::Diagnostic| {
        let resource = parse_index(&problem.place).and_then(|index| given.as_sequence()?.get(index));
        format!("{}{problem}", format_position(resource.unwrap_or(given).span().start()))
    };
    problems.iter().map(line).collect()
}

/// Returns the index at the start of a path, such as 2 for `volumes[2].spec.mode`.
fn parse_index(place: &str) -> Option<usize> {
    let (number, _) = place.strip_prefix("volumes[")?.split_once(']')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
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
    fn volumes_are_passed_on_as_they_are_written() {
        let file = format!("{FILE}{CLASS}{}", volume("1d78810a-3787-4ca4-b712-50a269e42560", "1Gi"));
        let told = parse_machine(&file).unwrap().allocation.unwrap().to_agent_allocation();
        let volumes = told.parse_volumes().unwrap();
        assert_eq!(
            (volumes.len(), volumes[0].name.as_str(), volumes[0].describe_kind().as_str()),
            (1, "v", "sparseLoopDevice xfs")
        );
    }

    #[test]
    fn what_is_wrong_has_the_line_of_its_resource() {
        let file = format!("{FILE}{CLASS}{}", volume("x", "1.5Gi"));
        let said = parse_machine(&file).unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].starts_with("8:9: volumes[1].metadata.uid: must be a UUID"), "{said}");
        assert!(lines[1].starts_with("8:9: volumes[1].spec.sparseLoopDevice.size: must be"), "{said}");
    }
}
