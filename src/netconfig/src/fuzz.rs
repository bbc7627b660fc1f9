//! Structured fuzz tests of network configurations with NICs, bonds and VLANs that have addresses, routes and name
//! servers. Some configurations are invalid. The valid ones are rendered for each network manager, and as a script for
//! the ramdisk, which may contain only expected commands.

mod ramdisk_dhcp_client;

use super::{NetworkBackend, NetworkConfig};
use fastrand::Rng;
use model::inventory::Nic;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

/// Number of generated documents by verdict: refused, not suitable for the NICs, or accepted with certain types of
/// devices.
static VERDICT_COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

const SYSTEMS: [NetworkBackend; 5] = [
    NetworkBackend::CloudInit,
    NetworkBackend::Netplan,
    NetworkBackend::Networkd,
    NetworkBackend::NetworkManager,
    NetworkBackend::Ifupdown,
];

#[test]
fn fuzz_network_descriptions() {
    let fuzz = Fuzz {
        folder: folder("network"),
        few: 3000,
        hangs: Duration::from_secs(60),
        corpus: Vec::new(),
        mutated: |_, random| generate(random).to_string().into_bytes(),
        check_input,
    };
    fuzz.run();
    let counts = VERDICT_COUNTS.lock().unwrap();
    counts.iter().for_each(|(verdict, count)| println!("{count:>8}  {verdict}"));
    let of = |verdict: &str| counts.get(verdict).copied().unwrap_or_default();
    for verdict in ["refused", "does not fit", "ethernets alone", "with a bond", "with a VLAN"] {
        assert!(of(verdict) * 100 > counts.values().sum::<u64>(), "{verdict}: {counts:?}");
    }
}

fn nics() -> Vec<Nic> {
    let nic = |number: u8| Nic {
        name: format!("eth{number}"),
        mac: format!("52:54:00:aa:00:0{number}"),
        link: true,
        ..Nic::default()
    };
    (0..3).map(nic).collect()
}

fn check_input(input: &[u8], _: &mut Rng) -> bool {
    let Ok(document) = serde_json::from_slice::<Value>(input) else { return false };
    let verdict = verdict(&document);
    *VERDICT_COUNTS.lock().unwrap().entry(verdict).or_default() += 1;
    !matches!(verdict, "refused" | "does not fit")
}

fn verdict(document: &Value) -> &'static str {
    let network = match NetworkConfig::parse(document) {
        Ok(network) => network,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            return "refused";
        }
    };
    let script = network.ramdisk_script(&nics());
    if !network.check_nics(&nics()).is_empty() || script.is_err() {
        return "does not fit";
    }
    for system in SYSTEMS {
        for file in network.render(system, &nics()) {
            let is_known = ["/etc/", "/var/lib/cloud/"].iter().any(|folder| file.path.starts_with(folder));
            assert!(is_known && !file.path.contains(".."), "{}", file.path);
            assert!(!file.content.chars().any(|c| c.is_control() && c != '\n'), "{}", file.content);
        }
    }
    assert_own_commands(&script.unwrap_or_default());
    match (network.bonds.is_empty(), network.vlans.is_empty()) {
        (true, true) => "ethernets alone",
        (false, _) => "with a bond",
        (true, false) => "with a VLAN",
    }
}

/// Asserts that a script contains only expected commands, and no shell metacharacters except in quotes.
fn assert_own_commands(script: &str) {
    const COMMANDS: [&str; 8] = ["modprobe", "echo", "ip", "carrier_of", "lease_of", "mkdir", "printf", "cat"];
    let script = script.replace(r"'\''", "");
    let parts: Vec<&str> = script.split('\'').collect();
    assert!(parts.len() % 2 == 1, "an open quote: {script}");
    let plain: Vec<&str> = parts.into_iter().step_by(2).collect();
    let is_inert = |c: char| c.is_ascii_alphanumeric() || " ./:+-_=@%,\\".contains(c);
    for line in plain.join("Q").lines().filter(|line| *line != "cat /run/leases/* > /etc/resolv.conf") {
        let command = line.split_whitespace().next().unwrap_or_default();
        assert!(COMMANDS.contains(&command), "{line}");
        assert!(line.replacen(" > ", " ", 1).chars().all(is_inert), "{line}");
    }
}

const SAMPLE_ADDRESSES: [&str; 10] = [
    "192.0.2.7/24",
    "198.51.100.9/31",
    "203.0.113.1/32",
    "2001:db8::7/64",
    "fe80::1/64",
    "192.0.2.7",
    "192.0.2.256/24",
    "192.0.2.7/33",
    "0.0.0.0/0",
    "$(reboot)/24",
];
const GATEWAYS: [&str; 6] = ["192.0.2.1", "198.51.100.8", "2001:db8::1", "192.0.2.300", "", "`reboot`"];
const SPECIAL_VALUES: [&str; 10] =
    ["", "x y", "a'b", "$(reboot)", "`reboot`", "a;reboot", "a\nreboot", "../x", "-x", "\u{202e}x"];
const NAMES: [&str; 6] = ["lan", "wan0", "bond0", "vlan10", "eth0", "storage"];

fn one_in(random: &mut Rng, many: u8) -> bool {
    random.u8(..many) == 0
}

fn generate(random: &mut Rng) -> Value {
    let mut names = NAMES.to_vec();
    random.shuffle(&mut names);
    let count = random.usize(1..4);
    let mut ethernets = Map::new();
    for (number, name) in names.iter().take(count).enumerate() {
        ethernets.insert((*name).to_owned(), ethernet(random, number));
    }
    let members: Vec<&str> = names.iter().take(count).copied().collect();
    let mut document = json!({"version": 2, "ethernets": ethernets});
    if one_in(random, 3) {
        let members = if one_in(random, 8) { vec!["absent"] } else { members.clone() };
        document["bonds"] = json!({names[4]: bond(random, &members)});
        if !one_in(random, 6) {
            for name in &members {
                if let Some(ethernet) = document["ethernets"].get_mut(*name) {
                    ["addresses", "dhcp4", "routes", "nameservers"].iter().for_each(|field| {
                        ethernet.as_object_mut().unwrap().remove(*field);
                    });
                }
            }
        }
    }
    if one_in(random, 3) {
        let link = if document.get("bonds").is_some() { names[4] } else { names[0] };
        let id =
            if one_in(random, 8) { json!(*random.choice(&[0, 4095, -1]).unwrap()) } else { json!(random.u16(1..4095)) };
        let mut vlan = settings(random);
        vlan["id"] = id;
        vlan["link"] = json!(if one_in(random, 10) { "absent" } else { link });
        document["vlans"] = json!({names[5]: vlan});
    }
    if one_in(random, 8) {
        corrupt(random, &mut document);
    }
    document
}

fn ethernet(random: &mut Rng, number: usize) -> Value {
    let mut ethernet = settings(random);
    let mac = if one_in(random, 12) { "52:54:00:bb:00:00".to_owned() } else { format!("52:54:00:aa:00:0{number}") };
    ethernet["match"] = json!({"macaddress": mac});
    if one_in(random, 4) {
        ethernet["set-name"] = json!(if one_in(random, 4) { *random.choice(&SPECIAL_VALUES).unwrap() } else { "lan7" });
    }
    ethernet
}

fn settings(random: &mut Rng) -> Value {
    let mut settings = json!({});
    let pick = |random: &mut Rng, known: &[&'static str], good: usize| {
        let end = if one_in(random, 15) { known.len() } else { good };
        known[random.usize(..end)]
    };
    if random.bool() {
        settings["addresses"] = json!([pick(random, &SAMPLE_ADDRESSES, 4)]);
        if random.bool() {
            settings["routes"] = json!([{"to": "default", "via": pick(random, &GATEWAYS, 3)}]);
        }
    } else {
        settings["dhcp4"] = json!(true);
    }
    if one_in(random, 4) {
        let search = if one_in(random, 6) { *random.choice(&SPECIAL_VALUES).unwrap() } else { "example.org" };
        settings["nameservers"] = json!({"addresses": [pick(random, &GATEWAYS, 3)], "search": [search]});
    }
    if one_in(random, 6) {
        settings["mtu"] = json!(*random.choice(&[1500, 9000, 0, 67, 100_000]).unwrap());
    }
    settings
}

fn bond(random: &mut Rng, members: &[&str]) -> Value {
    let mut bond = settings(random);
    let mode = if one_in(random, 8) { *random.choice(&SPECIAL_VALUES).unwrap() } else { "802.3ad" };
    bond["interfaces"] = json!(members);
    bond["parameters"] = json!({"mode": mode, "mii-monitor-interval": 100});
    bond
}

/// Replaces a value at a random position.
fn corrupt(random: &mut Rng, value: &mut Value) {
    let odd = *random.choice(&SPECIAL_VALUES).unwrap();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let key = fields.keys().nth(random.usize(..fields.len())).unwrap().clone();
            if one_in(random, 4) {
                let inner = fields.remove(&key).unwrap();
                fields.insert(odd.to_owned(), inner);
            } else {
                corrupt(random, &mut fields[&key]);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = random.usize(..items.len());
            corrupt(random, &mut items[at]);
        }
        _ => *value = random.choice(&[json!(null), json!(odd), json!([]), json!({}), json!(-1)]).unwrap().clone(),
    }
}
