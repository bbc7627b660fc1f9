//! Detection of machine files on the operator's workstation, for commands that also accept layouts and other documents.

use super::yaml_node::{get_field, to_json};
use super::{network_config_validation, yaml_node};
use marked_yaml::Node;
use model::inventory::Nic;
use netconfig::NetworkConfig;

/// Fields that machine files or the agent's document contain, but layouts do not.
const MACHINE_ONLY_FIELDS: [&str; 4] = ["allocation", "macs", "consoles", "ramdisk_network"];

/// Returns whether the text describes a machine rather than a layout.
pub fn is_machine_text(text: &str) -> bool {
    yaml_node::parse_document(text)
        .is_ok_and(|document| MACHINE_ONLY_FIELDS.iter().any(|name| get_field(&document, name).is_some()))
}

/// Returns whether the text is the document that an agent receives, not a machine file of the operator.
pub fn is_agent_document(text: &str) -> bool {
    let document = yaml_node::parse_document(text);
    document.is_ok_and(|document| {
        get_field(&document, "allocation").is_some_and(|is| get_field(is, "allocationuuid").is_some())
    })
}

/// Returns the problems of the allocation's network configuration, without comparing it with the machine's NICs. Each
/// problem begins with its line and column.
pub fn find_network_problems(text: &str) -> Vec<String> {
    check_network(text, |node| network_config_validation::find_problems(NETWORK, node))
}

/// Returns the problems of the allocation's network configuration on a machine with these NICs. Each problem begins
/// with its line and column.
pub fn find_network_misfits(text: &str, nics: &[Nic]) -> Vec<String> {
    check_network(text, |node| {
        let misfits = NetworkConfig::parse(&to_json(node)).map(|network| network.check_nics(nics)).unwrap_or_default();
        misfits.iter().map(|problem| network_config_validation::format_problem(NETWORK, node, problem)).collect()
    })
}

const NETWORK: &str = "network";

fn check_network(text: &str, said: impl Fn(&Node) -> Vec<String>) -> Vec<String> {
    let Ok(document) = yaml_node::parse_document(text) else { return Vec::new() };
    get_field(&document, "allocation")
        .and_then(|allocation| get_field(allocation, NETWORK))
        .map(said)
        .unwrap_or_default()
}
