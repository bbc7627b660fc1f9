//! LLDP neighbors (IEEE 802.1AB). Only the fields that metal-stack evaluates are parsed.
use common::encoding::join_hex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// EtherType of LLDP frames.
pub const ETHERTYPE: u16 = 0x88cc;

/// Length of an Ethernet header in bytes: two addresses and the EtherType.
const ETHERNET_HEADER_BYTES: usize = 14;

const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;

/// Maximum length of descriptive text, in characters.
const TEXT: usize = 255;

/// Port at the other end of a cable, usually that of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LldpNeighbor {
    /// System name of the neighbor.
    pub hostname: String,
    /// Chassis ID: a MAC address with colons; an ID of another type is stored as it was sent.
    pub chassis: String,
    /// Port ID: a MAC address with colons; an ID of another type is stored as it was sent.
    pub port: String,
    /// Port description; empty if the neighbor does not send one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// True if the neighbor is a leaf switch. Switches managed by metal-stack send a system name, identify the chassis
    /// by a MAC address, and identify the port by a MAC address or a locally assigned name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaf: bool,
}

impl LldpNeighbor {
    /// Returns the description of the port, or its port ID if it has no description.
    pub fn display_name(&self) -> &str {
        if self.description.is_empty() { &self.port } else { &self.description }
    }
}

/// LLDP neighbors of a NIC: the systems from which the NIC has received LLDP frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicNeighbors {
    pub nic: String,
    /// Speed of the NIC in Mbit/s; 0 if unknown.
    pub speed: u32,
    pub neighbors: Vec<LldpNeighbor>,
}

/// Result of the search for the two leaf switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafSearch {
    /// Exactly two leaves, each connected to a different NIC. Neighbors that are not leaves are omitted.
    Both(Vec<NicNeighbors>),
    /// Fewer than two leaves, with the names of the NICs without a leaf, and the names of the leaves found.
    TooFew { silent: Vec<String>, leaves: Vec<String> },
    /// More than two leaves, and the fastest NICs do not have exactly two. Contains the names of the leaves on the
    /// fastest NICs or, if these NICs have fewer than two leaves, the names of all leaves.
    TooMany(Vec<String>),
}

/// Parses an Ethernet frame. Returns `None` if it is not a complete LLDP frame, or is a shutdown frame.
pub fn parse_frame(frame: &[u8]) -> Option<LldpNeighbor> {
    let is_lldp = frame.get(12..ETHERNET_HEADER_BYTES)? == ETHERTYPE.to_be_bytes();
    let mut rest = frame.get(ETHERNET_HEADER_BYTES..).filter(|_| is_lldp)?;
    let (mut neighbor, mut is_mac, mut is_named, mut seen) = (LldpNeighbor::default(), false, false, 0_usize);
    loop {
        let (head, after) = rest.split_first_chunk::<2>()?;
        let head = u16::from_be_bytes(*head);
        let (kind, length) = ((head >> 9) as u8, usize::from(head & 0x1ff));
        let (value, after) = after.split_at_checked(length)?;
        // Chassis ID, port ID and TTL are mandatory and come first, in this order (802.1AB, 8.2).
        match (seen, kind) {
            (0, CHASSIS) => (neighbor.chassis, is_mac) = (parse_id(value, 4)?, value.first() == Some(&4)),
            (1, PORT) => {
                neighbor.port = parse_id(value, 3)?;
                is_named = matches!(value.first(), Some(3 | 7));
            }
            (2, TTL) => {
                let seconds = u16::from_be_bytes(*value.first_chunk::<2>()?);
                if seconds == 0 {
                    return None;
                }
            }
            (0..3, _) | (_, CHASSIS | PORT | TTL) => return None,
            (_, 0) => break,
            (_, PORT_DESCRIPTION) => neighbor.description = sanitize_text(value),
            (_, SYSTEM_NAME) => neighbor.hostname = sanitize_text(value),
            _ => {}
        }
        (rest, seen) = (after, seen + 1);
    }
    neighbor.leaf = is_mac && is_named && !neighbor.hostname.is_empty();
    Some(neighbor)
}

/// Parses an ID, which consists of an octet with the subtype, and a value. The value is a MAC address if the subtype is
/// `mac`.
fn parse_id(value: &[u8], mac: u8) -> Option<String> {
    let (subtype, id) = value.split_first()?;
    let id = match id {
        [_, _, _, _, _, _] if *subtype == mac => join_hex(id, ":"),
        _ => sanitize_text(id),
    };
    Some(id).filter(|id| !id.is_empty())
}

/// Sanitizes untrusted text: replaces control characters and limits its length.
fn sanitize_text(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let plain = text.trim_matches(['\0', ' ']).chars().map(|c| if c.is_control() { '?' } else { c });
    plain.take(TEXT).collect()
}

/// Selects the two leaves. If there are more than two candidates, the candidates on the fastest NICs are selected,
/// because switches of other networks may also send LLDP frames.
pub fn select_leaves(heard: &[NicNeighbors]) -> LeafSearch {
    let of = |heard: &NicNeighbors| -> NicNeighbors {
        let neighbors = heard.neighbors.iter().filter(|neighbor| neighbor.leaf).cloned().collect();
        NicNeighbors { neighbors, ..heard.clone() }
    };
    let mut nics: Vec<NicNeighbors> = heard.iter().map(of).collect();
    if leaf_names(&nics).len() > 2 {
        let with = nics.iter().filter(|nic| !nic.neighbors.is_empty());
        let fastest = with.map(|nic| nic.speed).max().unwrap_or_default();
        nics.retain(|nic| nic.speed == fastest);
        if leaf_names(&nics).len() < 2 {
            return LeafSearch::TooMany(leaf_names(heard));
        }
    }
    let leaves = leaf_names(&nics);
    let silent = nics.iter().filter(|nic| nic.neighbors.is_empty()).map(|nic| nic.nic.clone());
    let silent: Vec<String> = silent.collect();
    nics.retain(|nic| !nic.neighbors.is_empty());
    let chassis: BTreeSet<&str> = all_neighbors(&nics).map(|leaf| leaf.chassis.as_str()).collect();
    match (leaves.len(), nics.len(), chassis.len()) {
        (2, 2.., 2..) => LeafSearch::Both(nics),
        (3.., ..) => LeafSearch::TooMany(leaves),
        _ => LeafSearch::TooFew { silent, leaves },
    }
}

fn all_neighbors(nics: &[NicNeighbors]) -> impl Iterator<Item = &LldpNeighbor> {
    nics.iter().flat_map(|nic| &nic.neighbors)
}

fn leaf_names(nics: &[NicNeighbors]) -> Vec<String> {
    let names: BTreeSet<&str> = all_neighbors(nics).map(|leaf| leaf.hostname.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Builds an LLDP frame as a switch sends it. Each TLV is specified by its type and value.
#[cfg(any(test, feature = "testing"))]
pub fn build_frame(tlvs: &[(u8, &[u8])]) -> Vec<u8> {
    let mut frame = [&[1, 0x80, 0xc2, 0, 0, 0x0e][..], &[2, 0, 0, 0, 0, 1], &ETHERTYPE.to_be_bytes()].concat();
    for (kind, value) in tlvs {
        frame.extend((u16::from(*kind) << 9 | value.len() as u16).to_be_bytes());
        frame.extend(*value);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: &[u8] = &[4, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x01];
    const LOCAL: &[u8] = b"\x07swp1s0";
    const MINUTES: &[u8] = &[0, 120];

    fn whole(chassis: &[u8], port: &[u8], name: &[u8]) -> Vec<u8> {
        build_frame(&[
            (1, chassis),
            (2, port),
            (3, MINUTES),
            (4, b"a description"),
            (127, &[0; 9]),
            (5, name),
            (0, &[]),
        ])
    }

    #[test]
    fn lldp_frame_of_a_leaf_is_parsed() {
        let leaf = parse_frame(&whole(MAC, LOCAL, b"leaf01")).unwrap();
        let expected = LldpNeighbor {
            hostname: "leaf01".into(),
            chassis: "aa:bb:cc:dd:ee:01".into(),
            port: "swp1s0".into(),
            description: "a description".into(),
            leaf: true,
        };
        assert_eq!(leaf, expected);
        let by_mac = parse_frame(&whole(MAC, &[3, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x02], b"leaf01")).unwrap();
        assert_eq!((by_mac.port.as_str(), by_mac.leaf), ("aa:bb:cc:dd:ee:02", true));
        // Each case has one property that a leaf does not have: the port ID has the subtype of interface names, the
        // chassis ID is not a MAC address, or the system name is empty.
        for (chassis, port, name) in [
            (MAC, &b"\x05eth0"[..], &b"server"[..]),
            (b"\x07box", LOCAL, b"box"),
            (MAC, LOCAL, b""),
            (MAC, LOCAL, b"\0"),
        ] {
            assert!(!parse_frame(&whole(chassis, port, name)).unwrap().leaf);
        }
        assert_eq!(parse_frame(&whole(MAC, LOCAL, b"a\nb\x1b")).unwrap().hostname, "a?b?");
        // Short frames are padded to 60 bytes.
        assert!(parse_frame(&[whole(MAC, LOCAL, b"leaf01"), vec![0; 30]].concat()).is_some());
    }

    #[test]
    fn incomplete_or_invalid_lldp_frame_is_ignored() {
        let whole = whole(MAC, LOCAL, b"leaf01");
        for end in 0..whole.len() {
            assert_eq!(parse_frame(&whole[..end]), None, "{end}");
        }
        let mut other = whole.clone();
        other[13] = 0xcd;
        for frame in [
            other,
            build_frame(&[(2, LOCAL), (1, MAC), (3, MINUTES), (0, &[])]),
            build_frame(&[(1, MAC), (2, LOCAL), (0, &[])]),
            build_frame(&[(1, MAC), (2, LOCAL), (3, &[0, 0]), (5, b"leaf"), (0, &[])]),
            build_frame(&[(1, MAC), (2, LOCAL), (3, MINUTES), (2, LOCAL), (0, &[])]),
            build_frame(&[(1, &[4]), (2, LOCAL), (3, MINUTES), (0, &[])]),
            build_frame(&[(1, MAC), (2, &[]), (3, MINUTES), (0, &[])]),
        ] {
            assert_eq!(parse_frame(&frame), None, "{frame:?}");
        }
    }

    fn heard(nic: &str, speed: u32, names: &[&str]) -> NicNeighbors {
        let leaf = |name: &&str| LldpNeighbor {
            hostname: (*name).into(),
            chassis: format!("of {name}"),
            leaf: !name.starts_with("host"),
            ..LldpNeighbor::default()
        };
        NicNeighbors { nic: nic.into(), speed, neighbors: names.iter().map(leaf).collect() }
    }

    #[test]
    fn selects_exactly_two_leaves() {
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let both = vec![heard("eth0", 25_000, &["leaf01"]), heard("eth1", 25_000, &["leaf02"])];
        assert_eq!(select_leaves(&both), LeafSearch::Both(both.clone()));
        // The switch of the BMC network and a hypervisor also send LLDP frames, but are not leaves.
        let others = [heard("eth2", 1_000, &["mgmt"]), heard("eth3", 25_000, &["host"]), heard("eth4", 0, &[])];
        assert_eq!(select_leaves(&[&both[..], &others[..]].concat()), LeafSearch::Both(both.clone()));
        let four = [&both[..], &[heard("eth2", 25_000, &["leaf01"]), heard("eth3", 25_000, &["leaf02"])]].concat();
        assert_eq!(select_leaves(&four), LeafSearch::Both(four.clone()));
        let third = heard("eth2", 25_000, &["leaf03"]);
        let three = texts(&["leaf01", "leaf02", "leaf03"]);
        assert_eq!(select_leaves(&[&both[..], &[third]].concat()), LeafSearch::TooMany(three));
        for (nics, silent, names) in [
            (vec![heard("eth0", 0, &["leaf01"]), heard("eth1", 0, &[])], texts(&["eth1"]), texts(&["leaf01"])),
            (vec![heard("eth0", 0, &["leaf01"]), heard("eth1", 0, &["leaf01"])], vec![], texts(&["leaf01"])),
            (
                vec![heard("eth0", 0, &["leaf01", "leaf02"]), heard("eth1", 0, &[])],
                texts(&["eth1"]),
                texts(&["leaf01", "leaf02"]),
            ),
            (vec![heard("eth0", 0, &["host"])], texts(&["eth0"]), vec![]),
            (vec![], vec![], vec![]),
        ] {
            assert_eq!(select_leaves(&nics), LeafSearch::TooFew { silent, leaves: names }, "{nics:?}");
        }
    }

    proptest! {
        #[test]
        fn any_lldp_frame_is_parsed_without_panic(tail in prop::collection::vec(any::<u8>(), 0..600), at in 0_usize..60, byte in any::<u8>()) {
            let _ = parse_frame(&tail);
            let _ = parse_frame(&[&build_frame(&[])[..], &tail].concat());
            let mut changed = whole(MAC, LOCAL, b"leaf01");
            let at = at % changed.len();
            changed[at] = byte;
            if let Some(neighbor) = parse_frame(&changed) {
                let all = [neighbor.hostname, neighbor.chassis, neighbor.port, neighbor.description];
                prop_assert!(all.iter().all(|text| text.chars().count() <= TEXT && !text.contains(char::is_control)));
            }
        }
    }
}
