//! Validation of the network configurations of allocations and ramdisks. Each problem has line and column.

use super::yaml_node::{format_position, to_json};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::diagnostic::Diagnostic;
use marked_yaml::{Marker, Node};
use netconfig::NetworkConfig;

/// Maximum length of a configuration as JSON, in bytes. The configuration is passed on the kernel command line in
/// base64, which is a third longer than the JSON, and an x86 kernel reads at most 2047 bytes of its command line.
const LONGEST_BYTES: usize = 768;

/// Returns one line for each problem of the network configuration in the field `name`.
pub(crate) fn find_problems(name: &str, node: &Node) -> Vec<String> {
    NetworkConfig::parse(&to_json(node))
        .err()
        .into_iter()
        .flatten()
        .map(|problem| format_problem(name, node, &problem))
        .collect()
}

pub(super) fn format_problem(name: &str, node: &Node, problem: &Diagnostic) -> String {
    let within = if problem.place.is_empty() { String::new() } else { format!(".{}", problem.place) };
    format!("{}{name}{within}: {}", format_position(locate_path(node, "", &problem.place)), problem.message)
}

/// Encodes the configuration as the value of `drophammer.network=`.
///
/// # Errors
/// Returns all problems of the configuration.
pub(crate) fn encode_argument(name: &str, node: &Node) -> Result<String, Vec<String>> {
    let wrong = find_problems(name, node);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let text = to_json(node).to_string();
    if text.len() > LONGEST_BYTES {
        let what = format!(
            "is {bytes} bytes long as JSON, but only {LONGEST_BYTES} bytes fit on a kernel command line: configure only what the ramdisk needs",
            bytes = text.len()
        );
        return Err(vec![format!("{}{name}: {what}", format_position(node.span().start()))]);
    }
    Ok(URL_SAFE_NO_PAD.encode(text))
}

/// Returns the position of the value at a path: for a field, the position of its name; for a missing value, the
/// position of the enclosing value.
fn locate_path<'a>(node: &'a Node, here: &str, wanted: &str) -> Option<&'a Marker> {
    let children: Vec<(String, Option<&Marker>, &Node)> = match node {
        Node::Mapping(mapping) => {
            let child = |name: &str| if here.is_empty() { name.to_owned() } else { format!("{here}.{name}") };
            mapping.iter().map(|(key, value)| (child(key.as_str()), key.span().start(), value)).collect()
        }
        Node::Sequence(items) => {
            let items = items.iter().enumerate();
            items.map(|(index, item)| (format!("{here}[{index}]"), item.span().start(), item)).collect()
        }
        Node::Scalar(_) => Vec::new(),
    };
    // Names may contain dots, so the path of `bond0` also seems to enclose that of `bond0.100`. The longest path is
    // used.
    let is_on_the_way =
        |place: &str| wanted.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let nearest = children.into_iter().filter(|(place, ..)| is_on_the_way(place)).max_by_key(|(place, ..)| place.len());
    match nearest {
        Some((place, mark, below)) => locate_path(below, &place, wanted).filter(|_| place != wanted).or(mark),
        None => node.span().start(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_machine;

    #[test]
    fn each_network_problem_has_line_and_column() {
        let text = "id: 4c4c4544-0051-3010-8031-b2c04f333633
allocation:
  id: a
  hostname: h
  image: i
  network:
    version: 2
    ethernets:
      lan0:
        match: {macaddress: 52:54:00:aa:00:01}
        dhpc4: true
        addresses:
          - 10.0.0.7/24
          - 10.0.0.300/24
        gateway4: 10.0.1.1
      lan1:
        match: {macaddress: 52-54-00-AA-00-01}
    vlans:
      lan0.5: {id: 5, link: lan0, addresses: [10.0.0.7/24]}
      v6: {link: lan0}
";
        let said = parse_machine(text).unwrap_err();
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_by_key(|line| line.split(':').next().and_then(|line| line.parse::<u32>().ok()));
        assert_eq!(
            lines,
            [
                "11:9: network.ethernets.lan0.dhpc4: unknown field \"dhpc4\"; did you mean \"dhcp4\"?",
                "14:13: network.ethernets.lan0.addresses[1]: \"10.0.0.300\" is not an IP address such as 10.0.0.1 or 2001:db8::1",
                "17:17: network.ethernets.lan1.match.macaddress: two devices match the NIC 52:54:00:aa:00:01, first at \
                 ethernets.lan0.match.macaddress",
                "19:47: network.vlans.lan0.5.addresses[0]: the address 10.0.0.7 is specified twice, first at \
                 ethernets.lan0.addresses[0]",
                "20:7: network.vlans.v6: id is missing: a VLAN requires a number from 1 to 4094",
            ]
        );
        let good = text.replace("dhpc4: true", "dhcp4: true").replace("10.0.0.300", "10.0.9.7");
        let good = good.replace("52-54-00-AA-00-01", "52:54:00:aa:00:02").replace("v6: {", "v6: {id: 6, ");
        let good = good.replace("addresses: [10.0.0.7/24]", "mtu: 1400");
        let network = parse_machine(&good).unwrap().allocation.unwrap().passed_on["network"].clone();
        assert_eq!(network["ethernets"]["lan0"]["match"]["macaddress"], "52:54:00:aa:00:01");
    }

    #[test]
    fn invalid_network_is_reported_with_its_position() {
        let text = |network: &str| {
            format!(
                "id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n  image: i\n  network: {network}\n"
            )
        };
        assert!(parse_machine(&text("dhcp")).unwrap_err().starts_with("6:12: network: the value must be a mapping"));
        assert!(parse_machine(&text("{}")).unwrap_err().starts_with("6:12: network: no device is configured"));
        assert!(parse_machine(&text("")).is_ok());
    }
}
