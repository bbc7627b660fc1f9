//! Structured fuzz tests of the ramdisk's DHCP client: udhcpc receives generated offers, and runs the ramdisk's script.
//! Whatever an offer contains, such as overloaded or split options, wrong lengths or hostile text, the script may only
//! run commands that set addresses, routes and name servers.

use fastrand::Rng;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};
use testing::reference_implementation::ReferenceProcess;

const SCRIPT: &str = include_str!("../../../../initramfs/agent/root/usr/lib/dhcp-event");

/// Total size in bytes of the header fields `sname` and `file`, which are at the start of each input.
const HEADER_FIELDS_BYTES: usize = 64 + 128;

static CLIENT: LazyLock<Mutex<Client>> = LazyLock::new(|| Mutex::new(Client::start()));

/// Number of generated DHCP offers for each result of the script.
static VERDICT_COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Process that runs udhcpc and a DHCP server in a network namespace.
struct Client {
    _folder: tempfile::TempDir,
    process: ReferenceProcess,
}

impl Client {
    fn start() -> Client {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        std::fs::create_dir(folder.path().join("leases")).unwrap();
        std::fs::write(folder.path().join("dhcp-event"), instrumented(&path)).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("dhcp-event"), executable).unwrap();
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fuzz/dhcp_offers.py");
        let args = ["--map-root-user", "--net", "/usr/bin/python3", program, &path, "dhcp-event"];
        Client { _folder: folder, process: ReferenceProcess::start(Command::new("unshare").args(args)) }
    }

    fn offer(&mut self, payload: &[u8]) -> Value {
        let line = self.process.ask(payload);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

/// Returns the ramdisk's script in a modified form: all paths are below `folder`, and functions replace the programs
/// that change the system.
fn instrumented(folder: &str) -> String {
    let record = |name: &str| {
        format!(
            "{name}() {{ printf '%s\\037' {name} \"$@\" >>{folder}/commands; printf '\\036' >>{folder}/commands; }}\n"
        )
    };
    let (first, rest) = SCRIPT.split_once('\n').unwrap();
    let script = rest
        .replace("/run/leases", &format!("{folder}/leases"))
        .replace("/etc/resolv.conf", &format!("{folder}/resolv.conf"))
        .replace("/dev/console", &format!("{folder}/console"))
        .replace("/run/time-servers", &format!("{folder}/time-servers"));
    assert!(["/run/", "/etc/", "/dev/console"].iter().all(|path| !script.contains(path)), "{script}");
    format!("{first}\n{}{}{script}", record("ip"), record("hostname"))
}

#[test]
fn fuzz_dhcp_offers() {
    let fuzz = Fuzz {
        folder: folder("dhcp"),
        few: 60,
        hangs: Duration::from_secs(120),
        corpus: Vec::new(),
        mutated: |_, random| generate(random),
        check_input,
    };
    fuzz.run();
    let counts = VERDICT_COUNTS.lock().unwrap();
    counts.iter().for_each(|(verdict, count)| println!("{count:>8}  {verdict}"));
    let total: u64 = counts.values().sum();
    let bound: u64 = counts.iter().filter(|(verdict, _)| verdict.starts_with("lease")).map(|(_, count)| count).sum();
    assert!(bound * 3 > total, "{counts:?}");
    for part in ["router", "route", "DNS", "search", "MTU", "host name", "NTP"] {
        assert!(counts.keys().any(|verdict| verdict.contains(part)), "{part}: {counts:?}");
    }
}

/// Returns the routes that the script adds for a lease with these options, and the time servers that it records.
fn routes(options: &[Vec<u8>]) -> (Vec<String>, String) {
    let payload =
        [vec![0; HEADER_FIELDS_BYTES], option(51, &600_u32.to_be_bytes()), options.concat(), vec![255]].concat();
    let answer = CLIENT.lock().unwrap().offer(&payload);
    let words = |command: &Value| {
        let words = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        words.collect::<Vec<_>>().join(" ")
    };
    let commands = answer["commands"].as_array().unwrap().iter().map(words);
    let routes = commands.filter_map(|command| command.strip_prefix("ip route add ").map(str::to_owned));
    (routes.collect(), answer["times"].as_str().unwrap().to_owned())
}

#[test]
fn classless_routes_replace_the_router() {
    let (router, near) = (option(3, &[10, 9, 8, 254]), option(1, &[255, 255, 255, 0]));
    let default = "default via 10.9.8.254 dev fuzz0 metric 100";
    assert_eq!(routes(&[near.clone(), router.clone()]).0, [default]);
    let classless = option(121, &[24, 192, 0, 2, 10, 9, 8, 1, 0, 10, 9, 8, 253, 16, 10, 1, 0, 0, 0, 0]);
    let expected = [
        "192.0.2.0/24 via 10.9.8.1 dev fuzz0 metric 100",
        "0.0.0.0/0 via 10.9.8.253 dev fuzz0 metric 100",
        "10.1.0.0/16 dev fuzz0 metric 100",
    ];
    assert_eq!(routes(&[near, router.clone(), classless]).0, expected);
    // If the router is outside of the network of the leased address, another route declares it reachable on the link.
    let (alone, one) = (option(1, &[255; 4]), option(121, &[0, 10, 9, 8, 254]));
    let expected = ["10.9.8.254 dev fuzz0", "0.0.0.0/0 via 10.9.8.254 dev fuzz0 metric 100"];
    assert_eq!(routes(&[alone, router, one]).0, expected);
}

#[test]
fn time_servers_are_recorded_for_the_agent() {
    assert_eq!(routes(&[option(42, &[10, 9, 8, 1, 192, 0, 2, 53])]).1, "10.9.8.1\n192.0.2.53\n");
    assert_eq!(routes(&[]).1, "");
}

fn check_input(input: &[u8], _: &mut Rng) -> bool {
    if input.len() < HEADER_FIELDS_BYTES {
        return false;
    }
    let answer = CLIENT.lock().unwrap().offer(input);
    let mut parts = Vec::new();
    for command in answer["commands"].as_array().unwrap() {
        let words: Vec<&str> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        parts.extend(assert_own_command(&words));
    }
    for line in answer["resolv"].as_str().unwrap().lines() {
        parts.push(assert_resolver_line(line));
    }
    let files: Vec<&str> = answer["files"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for server in answer["times"].as_str().unwrap().lines() {
        assert!(server.parse::<Ipv4Addr>().is_ok(), "{server:?}");
        parts.push("NTP");
    }
    let known = ["commands", "console", "dhcp-event", "leases", "resolv.conf", "time-servers"];
    assert!(files.iter().all(|name| known.contains(name)), "{files:?}");
    parts.sort_unstable();
    parts.dedup();
    let is_bound = answer["bound"] == true;
    let verdict = if is_bound { format!("lease {}", parts.join(", ")) } else { "no lease".to_owned() };
    *VERDICT_COUNTS.lock().unwrap().entry(verdict).or_default() += 1;
    is_bound
}

/// Asserts that the command is one of the expected ones. Returns the setting that it applies, if the value comes from
/// the offer.
fn assert_own_command(words: &[&str]) -> Option<&'static str> {
    let is_address = |word: &str| word.parse::<Ipv4Addr>().is_ok();
    let is_network = |word: &str| {
        let parts = word.split_once('/');
        parts.is_some_and(|(ip, mask)| is_address(ip) && mask.parse::<u8>().is_ok_and(|mask| mask <= 32))
    };
    match words {
        ["ip", "-4", "addr", "flush" | "show", "dev", "fuzz0"] | ["ip", "link", "set", "fuzz0", "up"] => None,
        ["ip", "addr", "add", network, "dev", "fuzz0"] if is_network(network) => None,
        ["ip", "addr", "add", network, "broadcast", broadcast, "dev", "fuzz0"]
            if is_network(network) && is_address(broadcast) =>
        {
            Some("broadcast")
        }
        ["ip", "link", "set", "fuzz0", "mtu", mtu] if mtu.parse::<u16>().is_ok() => Some("MTU"),
        ["ip", "route", "add", router, "dev", "fuzz0"] if is_address(router) => Some("router"),
        ["ip", "route", "add", "default", "via", router, "dev", "fuzz0", "metric", metric]
            if is_address(router) && metric.parse::<u32>().is_ok() =>
        {
            Some("router")
        }
        ["ip", "route", "add", network, "dev", "fuzz0", "metric", metric]
            if is_network(network) && metric.parse::<u32>().is_ok() =>
        {
            Some("on-link route")
        }
        ["ip", "route", "add", network, "via", router, "dev", "fuzz0", "metric", metric]
            if is_network(network) && is_address(router) && metric.parse::<u32>().is_ok() =>
        {
            Some("route")
        }
        ["hostname", "--", name] if is_domain(name) => Some("host name"),
        other => panic!("{other:?}"),
    }
}

fn assert_resolver_line(line: &str) -> &'static str {
    match line.split_once(' ') {
        Some(("nameserver", server)) if server.parse::<Ipv4Addr>().is_ok() => "DNS",
        Some(("search", domain)) if is_domain(domain) => "search",
        _ => panic!("{line:?}"),
    }
}

fn is_domain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

const TEXTS: [&[u8]; 12] = [
    b"node-7",
    b"node-7.example.org",
    b"-F/etc/passwd",
    b"$(reboot)",
    b"`reboot`",
    b"a;reboot",
    b"a\nnameserver 192.0.2.66",
    b"* /etc/*",
    b"",
    b"\x00\x00",
    b"../../x",
    &[b'x'; 200],
];

fn option(code: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
    [&[code, length][..], &value[..usize::from(length)]].concat()
}

fn one_in(random: &mut Rng, many: u8) -> bool {
    random.u8(..many) == 0
}

fn address(random: &mut Rng) -> [u8; 4] {
    *random.choice(&[[10, 9, 8, 1], [10, 9, 8, 254], [192, 0, 2, 53], [0; 4], [255; 4], [127, 0, 0, 1]]).unwrap()
}

/// Returns the options of a lease in random order, some with invalid lengths.
fn options(random: &mut Rng) -> Vec<Vec<u8>> {
    let flawed = |random: &mut Rng, value: Vec<u8>| match one_in(random, 15) {
        true => value[..random.usize(..value.len().max(1)).min(value.len())].to_vec(),
        false => value,
    };
    let text =
        |random: &mut Rng| if one_in(random, 3) { TEXTS[random.usize(..TEXTS.len())] } else { TEXTS[1] }.to_vec();
    let mut options = vec![option(51, &600_u32.to_be_bytes())];
    let mask = *random.choice(&[[255, 255, 255, 0], [255; 4], [255, 0, 255, 0], [0; 4]]).unwrap();
    options.push(option(1, &flawed(random, mask.to_vec())));
    let routers: Vec<u8> = (0..random.usize(..3)).flat_map(|_| address(random)).collect();
    options.push(option(3, &flawed(random, routers)));
    let servers: Vec<u8> = (0..random.usize(..4)).flat_map(|_| address(random)).collect();
    options.push(option(6, &flawed(random, servers)));
    for code in [12, 15] {
        if random.bool() {
            options.push(option(code, &text(random)));
        }
    }
    if one_in(random, 3) {
        let mtu = *random.choice(&[1500_u16, 9000, 0, 67, u16::MAX]).unwrap();
        options.push(option(26, &flawed(random, mtu.to_be_bytes().to_vec())));
    }
    if one_in(random, 4) {
        let broadcast = address(random).to_vec();
        options.push(option(28, &flawed(random, broadcast)));
    }
    // Hostile values of options: classless routes, domain search with pointers, VLAN, time servers, a URL.
    for (code, value) in [
        (121, vec![24, 192, 0, 2, 10, 9, 8, 1, 33, 1, 2]),
        (121, vec![24, 192, 0, 2, 10, 9, 8, 1, 0, 10, 9, 8, 254, 16, 10, 1, 0, 0, 0, 0]),
        (249, vec![0, 10, 9, 8, 66]),
        (119, b"\x03www\xc0\x00\x07example\xc0\x04".to_vec()),
        (132, vec![0, 0, 16, 1]),
        (42, vec![10, 9, 8]),
        (42, vec![10, 9, 8, 1, 192, 0, 2, 53]),
        (114, b"http://$(reboot)/".to_vec()),
    ] {
        if one_in(random, 5) {
            options.push(option(code, &flawed(random, value)));
        }
    }
    random.shuffle(&mut options);
    options
}

fn generate(random: &mut Rng) -> Vec<u8> {
    let mut options = options(random);
    let (mut sname, mut file) = (vec![0; 64], vec![0; 128]);
    if one_in(random, 3) {
        // Option overload: 1 means that the field `file` contains options, 2 that `sname` does, and 3 that both do.
        let values = if one_in(random, 8) { 0..6 } else { 1..4 };
        let overload = random.u8(values);
        for (bit, field) in [(1, &mut file), (2, &mut sname)] {
            if overload & bit != 0 {
                let option = options.pop().unwrap_or_default();
                let end = option.len().min(field.len() - 1);
                field[..end].copy_from_slice(&option[..end]);
                field[end] = if one_in(random, 6) { 0 } else { 255 };
            }
        }
        options.insert(0, option(52, &[overload]));
    } else if one_in(random, 4) {
        sname[..TEXTS[3].len()].copy_from_slice(TEXTS[3]);
    }
    if one_in(random, 5)
        && let Some(option) = options.last_mut()
        && option.len() > 4
    {
        // The last option is split into two parts (RFC 3396).
        let at = 2 + (option.len() - 2) / 2;
        let second = [&[option[0], u8::try_from(option.len() - at).unwrap()][..], &option[at..]].concat();
        option[1] = u8::try_from(at - 2).unwrap();
        option.truncate(at);
        option.extend(second);
    }
    let mut payload = [sname, file, options.concat()].concat();
    if one_in(random, 12) {
        let at = random.usize(HEADER_FIELDS_BYTES..payload.len());
        payload[at] = random.u8(..);
    }
    if !one_in(random, 20) {
        payload.push(255);
    }
    payload
}
