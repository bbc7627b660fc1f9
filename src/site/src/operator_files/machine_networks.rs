//! Field `networks` of a machine file: metal-stack's networks that an allocation request may select by their
//! `networkid`.

use super::yaml_node::{format_position, to_json};
use marked_yaml::Node;
use serde_json::Value;

/// Returns the networks as JSON.
///
/// # Errors
/// Returns all problems, one per network, with line and column in front.
pub(super) fn parse_networks(node: &Node) -> Result<Vec<Value>, Vec<String>> {
    let networks = match to_json(node) {
        Value::Null => return Ok(Vec::new()),
        Value::Array(networks) => networks,
        _ => {
            return Err(vec![format!(
                "{position}`networks` must be a list",
                position = format_position(node.span().start())
            )]);
        }
    };
    let ids: Vec<Option<&str>> = networks.iter().map(network_id).collect();
    let items = node.as_sequence().into_iter().flat_map(|items| items.iter());
    let find_problem = |(index, item): (usize, &Node)| {
        let why = match ids.get(index).copied().flatten() {
            None => "requires a `networkid`, which must be a string".to_owned(),
            Some(id) if ids[..index].contains(&Some(id)) => {
                format!("has the same `networkid` {id:?} as an earlier network")
            }
            Some(_) => return None,
        };
        Some(format!("{}networks[{index}] {why}", format_position(item.span().start())))
    };
    let wrong: Vec<String> = items.enumerate().filter_map(find_problem).collect();
    if wrong.is_empty() { Ok(networks) } else { Err(wrong) }
}

fn network_id(network: &Value) -> Option<&str> {
    network.get("networkid").and_then(Value::as_str).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use crate::operator_files::parse_machine;
    use serde_json::json;

    fn read(networks: &str) -> Result<Vec<serde_json::Value>, String> {
        let text = format!("id: 4c4c4544-0051-3010-8052-b4c04f4d0001\nnetworks: {networks}\n");
        parse_machine(&text).map(|machine| machine.networks)
    }

    #[test]
    fn networks_are_parsed_unchanged() {
        let expected = [json!({"networkid": "a", "asn": 42, "ips": ["10.0.0.1"]}), json!({"networkid": "b"})];
        assert_eq!(read("[{networkid: a, asn: 42, ips: [10.0.0.1]}, {networkid: b}]").unwrap(), expected);
        assert!(read("[]").unwrap().is_empty() && read("null").unwrap().is_empty());
    }

    #[test]
    fn networks_without_unique_id_are_refused_with_their_positions() {
        for (networks, why) in [
            ("internet", "2:11: `networks` must be a list"),
            ("[internet]", "2:12: networks[0] requires a `networkid`, which must be a string"),
            ("[{networkid: a}, {networkid: ''}]", "2:28: networks[1] requires a `networkid`, which must be a string"),
            ("[{networkid: 7}]", "2:12: networks[0] requires a `networkid`, which must be a string"),
            (
                "[{networkid: a}, {networkid: a}]",
                "2:28: networks[1] has the same `networkid` \"a\" as an earlier network",
            ),
        ] {
            assert_eq!(read(networks).unwrap_err(), why, "{networks}");
        }
    }
}
