//! LLDP receiver for all NICs.

use super::sysfs::read_attribute;
use crate::process::ToolCommand;
use common::error::{Context, Phase, Result};
use model::inventory::Nic;
use model::inventory::lldp::{self, ETHERTYPE, LeafSearch, LldpNeighbor, NicNeighbors};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Multicast address of LLDP frames for the nearest bridge. Bridges do not forward these frames.
const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];

/// Interval of progress messages, and time limit for each command that this module runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of neighbors that are stored for a NIC. The number is limited because frames may be forged.
const MAXIMUM_NEIGHBORS: usize = 16;

/// Sets the links of all NICs up, disables LLDP agents in NIC firmware, and receives frames until both leaf switches
/// are found or `patience` expires. `say` receives progress messages, which list the NICs without neighbors.
///
/// # Errors
/// Returns an error if the socket cannot be opened.
pub fn receive_neighbors(nics: &[Nic], patience: Duration, say: &dyn Fn(&str)) -> Result<Vec<NicNeighbors>> {
    for nic in nics {
        // If a link cannot be set up, its NIC receives nothing and is reported as a NIC without neighbors.
        let _ = ToolCommand::new("ip").args(["link", "set", &nic.name, "up"]).deadline(PROGRESS_INTERVAL).run();
    }
    stop_firmware_agents(nics, Path::new("/sys"), say);
    let names_by_index: BTreeMap<i32, &str> =
        nics.iter().filter_map(|nic| Some((interface_index(&nic.name)?, nic.name.as_str()))).collect();
    let socket = open_socket(names_by_index.keys().copied()).context(Phase::Inventory, || "listen for LLDP")?;
    let mut heard: BTreeMap<&str, Vec<LldpNeighbor>> = BTreeMap::new();
    let (began, mut said) = (Instant::now(), Instant::now());
    let mut frame = [0; 2048];
    loop {
        if let Some((index, length)) =
            receive_frame(&socket, &mut frame).context(Phase::Inventory, || "listen for LLDP")?
            && let (Some(nic), Some(neighbor)) = (names_by_index.get(&index), lldp::parse_frame(&frame[..length]))
        {
            let known = heard.entry(nic).or_default();
            known.retain(|other| (&other.chassis, &other.port) != (&neighbor.chassis, &neighbor.port));
            if known.len() < MAXIMUM_NEIGHBORS {
                known.push(neighbor);
            }
        }
        let all = collect_neighbors(nics, &heard, Path::new("/sys"));
        let leaves = lldp::select_leaves(&all);
        if matches!(leaves, LeafSearch::Both(_)) || began.elapsed() >= patience {
            return Ok(all);
        }
        if said.elapsed() >= PROGRESS_INTERVAL {
            said = Instant::now();
            say(&describe_search(&leaves));
        }
    }
}

/// Describes which leaf switches were found, and which NICs have received no LLDP frames.
pub fn describe_search(leaves: &LeafSearch) -> String {
    match leaves {
        LeafSearch::Both(_) => "LLDP: found both leaf switches".to_owned(),
        LeafSearch::TooMany(names) => {
            format!(
                "LLDP: metal-stack requires two leaf switches, but {count} were found: {names}",
                count = names.len(),
                names = names.join(", ")
            )
        }
        LeafSearch::TooFew { silent, leaves } => {
            let heard = match &leaves[..] {
                [] => "none".to_owned(),
                names => format!("only {}", names.join(", ")),
            };
            let silent = match &silent[..] {
                [] => "all NICs are connected to the same leaf switch".to_owned(),
                names => format!("no LLDP frames were received on {nics}", nics = names.join(", ")),
            };
            format!("LLDP: found {heard} of two leaf switches; {silent}")
        }
    }
}

fn collect_neighbors(nics: &[Nic], heard: &BTreeMap<&str, Vec<LldpNeighbor>>, sys: &Path) -> Vec<NicNeighbors> {
    let to_neighbors = |nic: &Nic| NicNeighbors {
        nic: nic.name.clone(),
        // Without a link, the kernel reports the speed -1, which cannot be parsed here and becomes the default.
        speed: read_attribute(&sys.join("class/net").join(&nic.name).join("speed")).parse().unwrap_or_default(),
        neighbors: heard.get(nic.name.as_str()).cloned().unwrap_or_default(),
    };
    nics.iter().map(to_neighbors).collect()
}

/// Stops the LLDP agents in the firmware of NICs of Intel's 700 series, because these agents do not forward frames to
/// the kernel. The driver accepts the command in debugfs.
fn stop_firmware_agents(nics: &[Nic], sys: &Path, say: &dyn Fn(&str)) {
    let debug = sys.join("kernel/debug");
    let affected: Vec<&Nic> = nics.iter().filter(|nic| nic.driver == "i40e").collect();
    if affected.is_empty() {
        return;
    }
    if !debug.join("i40e").exists() {
        let _ =
            ToolCommand::new("mount").args(["-t", "debugfs", "debugfs"]).arg(&debug).deadline(PROGRESS_INTERVAL).run();
    }
    for nic in affected {
        let device = super::sysfs::read_link_name(&sys.join("class/net").join(&nic.name).join("device"));
        let file = debug.join("i40e").join(device).join("command");
        let told = fs::OpenOptions::new().write(true).open(&file).and_then(|mut file| file.write_all(b"lldp stop"));
        match told {
            Ok(()) => say(&format!("{nic}: stopped the LLDP agent in the NIC's firmware", nic = nic.name)),
            Err(error) => say(&format!(
                "{nic}: cannot stop the LLDP agent in the NIC's firmware: {file}: {error}",
                nic = nic.name,
                file = file.display()
            )),
        }
    }
}

fn interface_index(name: &str) -> Option<i32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the NUL-terminated string is only read.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    i32::try_from(index).ok().filter(|index| *index > 0)
}

/// Opens a socket that receives LLDP frames for the multicast group on all NICs.
fn open_socket(indexes: impl Iterator<Item = i32>) -> io::Result<OwnedFd> {
    let protocol = i32::from(ETHERTYPE.to_be());
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let wait = libc::timeval { tv_sec: 1, tv_usec: 0 };
    set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
    for index in indexes {
        let mut address = [0; 8];
        address[..GROUP.len()].copy_from_slice(&GROUP);
        let member = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: GROUP.len() as u16,
            mr_address: address,
        };
        set_socket_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
    }
    Ok(socket)
}

fn set_socket_option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel copies a plain value of that size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the index of the NIC and the length of the frame; `None` if nothing was received within a second.
fn receive_frame(socket: &OwnedFd, frame: &mut [u8]) -> io::Result<Option<(i32, usize)>> {
    // SAFETY: an all-zero address is valid.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: both buffers are valid for the given lengths.
    let length = unsafe {
        let place = std::ptr::from_mut(&mut from).cast();
        libc::recvfrom(socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0, place, &mut size)
    };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        // `NetworkDown` is not an error here: the kernel reports it once to each socket when an interface goes down.
        let passes = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted, ErrorKind::NetworkDown];
        return if passes.contains(&error.kind()) { Ok(None) } else { Err(error) };
    };
    let is_own = from.sll_pkttype == libc::PACKET_OUTGOING;
    Ok(Some((from.sll_ifindex, length)).filter(|_| !is_own))
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::*;
    use model::inventory::lldp::build_frame;
    use std::cell::RefCell;

    #[test]
    fn stops_the_lldp_agents_of_nic_firmware() {
        let tree = FakeMachine::new();
        let nic = |name: &str, driver: &str| Nic { name: name.into(), driver: driver.into(), ..Nic::default() };
        tree.write("sys/devices/pci0000:00/0000:01:00.0/vendor", "0x8086\n");
        tree.link("sys/class/net/eth0/device", "../../../devices/pci0000:00/0000:01:00.0");
        tree.write("sys/kernel/debug/i40e/0000:01:00.0/command", "");
        let said = RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let sys = tree.roots().sys;
        stop_firmware_agents(&[nic("eth0", "i40e"), nic("eth1", "ice"), nic("eth2", "i40e")], &sys, &say);
        let command = fs::read_to_string(sys.join("kernel/debug/i40e/0000:01:00.0/command")).unwrap();
        assert_eq!(command, "lldp stop");
        let said = said.into_inner();
        assert_eq!(said[0], "eth0: stopped the LLDP agent in the NIC's firmware");
        assert!(said[1].starts_with("eth2: cannot stop the LLDP agent in the NIC's firmware: "), "{said:?}");
    }

    #[test]
    fn reports_nics_without_lldp_frames() {
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        for (leaves, words) in [
            (
                LeafSearch::TooFew { silent: texts(&["eth1"]), leaves: texts(&["leaf01"]) },
                "LLDP: found only leaf01 of two leaf switches; no LLDP frames were received on eth1",
            ),
            (
                LeafSearch::TooFew { silent: vec![], leaves: texts(&["leaf01"]) },
                "LLDP: found only leaf01 of two leaf switches; all NICs are connected to the same leaf switch",
            ),
            (
                LeafSearch::TooFew { silent: texts(&["eth0", "eth1"]), leaves: vec![] },
                "LLDP: found none of two leaf switches; no LLDP frames were received on eth0, eth1",
            ),
            (
                LeafSearch::TooMany(texts(&["a", "b", "c"])),
                "LLDP: metal-stack requires two leaf switches, but 3 were found: a, b, c",
            ),
        ] {
            assert_eq!(describe_search(&leaves), words);
        }
        let page = include_str!("../../../../docs/metal-stack-bmc.md");
        assert!(
            page.contains("\nLLDP: found only leaf01 of two leaf switches; no LLDP frames were received on eth1\n")
        );
    }

    /// Two veth pairs act as cables to two leaves: the peer interfaces send the leaves' frames.
    #[test]
    #[ignore = "needs root: it makes network cards"]
    fn root_receives_lldp_frames_of_both_leaves() {
        let ip = |words: &str| ToolCommand::new("ip").args(words.split(' ')).run().unwrap();
        let names = ["dhlldp0", "dhlldp1"];
        for name in names {
            let _ = ToolCommand::new("ip").args(["link", "del", name]).run();
            ip(&format!("link add {name} type veth peer name {name}p"));
            ip(&format!("link set {name}p up"));
        }
        let nics = names.map(|name| Nic { name: name.into(), ..Nic::default() });
        let leaf = |number: u8| {
            let chassis = [4, 2, 0, 0, 0, 0, number];
            let name = format!("leaf0{number}");
            build_frame(&[(1, &chassis), (2, b"\x07Ethernet4"), (3, &[0, 120]), (5, name.as_bytes()), (0, &[])])
        };
        std::thread::spawn(move || {
            let socket = open_socket(std::iter::empty()).unwrap();
            // The interfaces exist until the end of the test.
            while let [Some(one), Some(two)] = names.map(|name| interface_index(&format!("{name}p"))) {
                for (index, frame) in [(one, leaf(1)), (two, leaf(2))] {
                    send(&socket, index, &frame);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let heard = receive_neighbors(&nics, Duration::from_secs(120), &|_| {}).unwrap();
        names.iter().for_each(|name| drop(ip(&format!("link del {name}"))));
        let LeafSearch::Both(heard) = lldp::select_leaves(&heard) else { panic!("{heard:?}") };
        let heard: Vec<_> = heard.iter().map(|nic| (nic.nic.as_str(), nic.neighbors[0].hostname.as_str())).collect();
        assert_eq!(heard, [("dhlldp0", "leaf01"), ("dhlldp1", "leaf02")]);
    }

    fn send(socket: &OwnedFd, index: i32, frame: &[u8]) {
        // SAFETY: as in `receive_frame`.
        unsafe {
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            (to.sll_family, to.sll_ifindex, to.sll_halen) = (libc::AF_PACKET as u16, index, 6);
            to.sll_addr[..6].copy_from_slice(&GROUP);
            let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            let (fd, place) = (socket.as_raw_fd(), std::ptr::from_ref(&to).cast());
            libc::sendto(fd, frame.as_ptr().cast(), frame.len(), 0, place, size);
        }
    }
}
