//! Machine files on the operator's workstation, where a file may also be a layout or another document.

use super::node::json;
use super::{field, network, node};
use crate::inventory::Nic;
use crate::network::Network;
use marked_yaml::Node;

/// Fields of a machine's file or document that layouts do not have.
const OF_A_MACHINE: [&str; 4] = ["allocation", "macs", "consoles", "ramdisk_network"];

/// Returns whether the text describes a machine rather than a layout.
pub fn is_of_a_machine(text: &str) -> bool {
    node::parse(text).is_ok_and(|document| OF_A_MACHINE.iter().any(|name| field(&document, name).is_some()))
}

/// Returns whether the text is the document that the agent receives rather than the operator's file.
pub fn is_document(text: &str) -> bool {
    let document = node::parse(text);
    document
        .is_ok_and(|document| field(&document, "allocation").is_some_and(|is| field(is, "allocationuuid").is_some()))
}

/// Returns the problems of the allocation's network by itself, with line and column in front.
pub fn network_problems(text: &str) -> Vec<String> {
    of_network(text, |node| network::problems(NETWORK, node))
}

/// Returns which settings of the allocation's network do not fit a machine with these NICs.
pub fn network_misfits(text: &str, nics: &[Nic]) -> Vec<String> {
    of_network(text, |node| {
        let misfits = Network::read(&json(node)).map(|network| network.fits(nics)).unwrap_or_default();
        misfits.iter().map(|problem| network::line(NETWORK, node, problem)).collect()
    })
}

const NETWORK: &str = "network";

fn of_network(text: &str, said: impl Fn(&Node) -> Vec<String>) -> Vec<String> {
    let Ok(document) = node::parse(text) else { return Vec::new() };
    field(&document, "allocation").and_then(|allocation| field(allocation, NETWORK)).map(said).unwrap_or_default()
}
