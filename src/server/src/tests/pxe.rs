//! `--pxe` with a real dnsmasq, on a network of two namespaces: the server in one, a machine's firmware in the other. Both are threads of
//! the test, and what they start is with them.

mod leases;

use super::*;
use linux::process::ToolCommand;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use nix::unistd::{Pid, gettid};
use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HTTP: u16 = 8080;

fn ip(words: &str) {
    ToolCommand::new("ip").args(words.split_whitespace()).run().unwrap();
}

/// Runs `server` with a card `eth1`, which `client` is at the other end of.
pub(super) fn on_a_network<T: Send>(server: impl FnOnce(&Client) -> T + Send) -> T {
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip("link add eth1 type veth peer name cli");
            ip("address add 10.77.0.1/24 dev eth1");
            ip("link set eth1 up");
            ip("link set lo up");
            server(&Client::start())
        });
        run.join().unwrap()
    })
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own.
pub(super) struct Client {
    work: mpsc::Sender<Work>,
}

impl Client {
    fn start() -> Client {
        let (work, queue) = mpsc::channel::<Work>();
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            say.send(gettid()).unwrap();
            queue.iter().for_each(|work| work());
        });
        ip(&format!("link set cli netns {}", said.recv().unwrap()));
        let client = Client { work };
        client.run(|| {
            ip("address add 10.77.0.50/24 dev cli");
            ip("link set cli up");
        });
        client
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, said) = mpsc::channel();
        self.work.send(Box::new(move || drop(say.send(work())))).unwrap();
        said.recv().unwrap()
    }

    /// What the DHCP server offers to such firmware.
    fn discover(&self, firmware: Firmware) -> Answered {
        self.run(move || firmware.ask(67, 1, None))
    }

    /// The answer to a request, at the port of PXE's boot servers.
    fn boot_server(&self, firmware: Firmware) -> Answered {
        self.run(move || firmware.ask(4011, 3, None))
    }

    /// Takes the address that is offered.
    pub(super) fn lease(&self, firmware: Firmware) -> Answered {
        let offered = self.discover(firmware).address;
        let given = self.run(move || firmware.ask(67, 3, Some(offered)));
        assert_eq!((given.kind, given.address), (5, offered), "{given:?}");
        given
    }

    /// The first block of a file over TFTP.
    fn tftp(&self, name: &'static str) -> Vec<u8> {
        self.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send_to(format!("\0\x01{name}\0octet\0").as_bytes(), (SERVER, 69)).unwrap();
            let mut block = [0; 1024];
            let (length, from) = socket.recv_from(&mut block).unwrap();
            assert_eq!(block[..4], [0, 3, 0, 1], "{}", String::from_utf8_lossy(&block[4..length]));
            // No more of it.
            socket.send_to(b"\0\x05\0\0enough\0", from).unwrap();
            block[4..length].to_vec()
        })
    }

    fn http(&self, path: &'static str) -> Vec<u8> {
        self.run(move || {
            let mut stream = std::net::TcpStream::connect((SERVER, HTTP)).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: {SERVER}:{HTTP}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer[..end]));
            answer.split_off(end + 4)
        })
    }
}

/// What asks for an address: its kind (RFC 4578) and its class.
#[derive(Clone, Copy)]
pub(super) struct Firmware {
    kind: u16,
    class: &'static str,
    is_ipxe: bool,
    /// Last byte of its MAC.
    nic: u8,
    /// Client identifier (option 61); empty if it sends none.
    client_id: &'static [u8],
}

pub(super) const BIOS: Firmware =
    Firmware { kind: 0, class: "PXEClient:Arch:00000:UNDI:002001", is_ipxe: false, nic: 1, client_id: &[] };
pub(super) const UEFI: Firmware =
    Firmware { kind: 7, class: "PXEClient:Arch:00007:UNDI:003016", is_ipxe: false, nic: 1, client_id: &[] };
const UEFI_HTTP: Firmware =
    Firmware { kind: 16, class: "HTTPClient:Arch:00016:UNDI:003001", is_ipxe: false, nic: 1, client_id: &[] };
pub(super) const IPXE_BIOS: Firmware = Firmware { is_ipxe: true, ..BIOS };
pub(super) const IPXE_UEFI: Firmware = Firmware { is_ipxe: true, ..UEFI };
const OTHER: Firmware = Firmware { kind: 0, class: "MSFT 5.0", is_ipxe: false, nic: 1, client_id: &[] };

#[derive(Debug)]
pub(super) struct Answered {
    /// 2 is an offer, 5 an acknowledgement.
    kind: u8,
    address: Ipv4Addr,
    next_server: Ipv4Addr,
    /// From the option, or from the header.
    pub(super) file: String,
    options: BTreeMap<u8, Vec<u8>>,
}

impl Answered {
    fn class(&self) -> &str {
        self.options.get(&60).map_or("", |class| std::str::from_utf8(class).unwrap())
    }
}

impl Firmware {
    fn packet(self, number: u32, kind: u8, wants: Option<Ipv4Addr>) -> Vec<u8> {
        let mut packet = vec![0; 240];
        packet[..4].copy_from_slice(&[1, 1, 6, 0]);
        packet[4..8].copy_from_slice(&number.to_be_bytes());
        packet[10] = 0x80;
        packet[28..34].copy_from_slice(&[0x52, 0x54, 0, 0xaa, 0xbb, self.nic]);
        packet[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
        let mut option = |number: u8, content: &[u8]| {
            packet.extend([number, content.len() as u8]);
            packet.extend(content);
        };
        option(53, &[kind]);
        option(55, &[1, 3, 6, 43, 60, 66, 67, 97]);
        option(60, self.class.as_bytes());
        option(93, &self.kind.to_be_bytes());
        option(94, &[1, 3, 1]);
        option(97, &[0; 17]);
        if !self.client_id.is_empty() {
            option(61, self.client_id);
        }
        if self.is_ipxe {
            option(77, b"iPXE");
            option(175, &[0xb1, 1, 1]);
        }
        if let Some(address) = wants {
            option(50, &address.octets());
            option(54, &SERVER.octets());
        }
        packet.push(255);
        packet
    }

    /// Asks until there is an answer.
    fn ask(self, port: u16, kind: u8, wants: Option<Ipv4Addr>) -> Answered {
        let socket = bound();
        setsockopt(&socket, BindToDevice, &"cli".into()).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let number = fastrand::u32(..);
        let began = std::time::Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "no answer");
            socket.send_to(&self.packet(number, kind, wants), (Ipv4Addr::BROADCAST, port)).unwrap();
            let mut packet = [0; 2048];
            while let Ok(length) = socket.recv(&mut packet) {
                if packet[4..8] == number.to_be_bytes() {
                    return answered(&packet[..length]);
                }
            }
        }
    }
}

/// The client's port. A process that another test is just starting has the last socket too, until it is another program.
fn bound() -> UdpSocket {
    let began = std::time::Instant::now();
    loop {
        match UdpSocket::bind("0.0.0.0:68") {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(10));
            }
            socket => return socket.unwrap(),
        }
    }
}

fn answered(packet: &[u8]) -> Answered {
    let address = |at: usize| Ipv4Addr::from_octets(packet[at..at + 4].try_into().unwrap());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let (mut options, mut rest) = (BTreeMap::new(), &packet[240..]);
    while let [number @ 1..=254, length, more @ ..] = rest {
        let (content, behind) = more.split_at(usize::from(*length));
        options.insert(*number, content.to_vec());
        rest = behind;
    }
    let file = options.get(&67).map_or_else(|| text(&packet[108..236]), |file| text(file));
    Answered { kind: options[&53][0], address: address(16), next_server: address(20), file, options }
}

/// The processes called dnsmasq in the network namespace of this thread.
fn dnsmasqs() -> Vec<Pid> {
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let is_dnsmasq = std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "dnsmasq");
        is_dnsmasq && std::fs::read_link(path.join("ns/net")).is_ok_and(|network| network == own)
    };
    all.filter(is_it).filter_map(|path| Some(Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?))).collect()
}

/// iPXE's binaries, in a folder of the test's own.
fn with_ipxe(dir: &TempDir) -> PathBuf {
    let ipxe = dir.path().join("ipxe");
    std::fs::create_dir(&ipxe).unwrap();
    std::fs::write(ipxe.join("undionly.kpxe"), "for BIOS ".repeat(100)).unwrap();
    std::fs::write(ipxe.join("snponly.efi"), "for UEFI ".repeat(100)).unwrap();
    ipxe
}

fn with_pxe(dir: &TempDir, range: Option<&str>) -> ServerConfig {
    let range = range.map(|range| range.parse().unwrap());
    let pxe = Some(PxeOptions { card: "eth1".to_owned(), range, ipxe: Some(with_ipxe(dir)) });
    ServerConfig { listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), HTTP), pxe, ..options(dir.path()) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_firmware_is_answered_beside_the_networks_own_dhcp() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let options = with_pxe(&dir, None);
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let script = format!("http://{SERVER}:{HTTP}/start.ipxe");

        let bios = client.discover(BIOS);
        assert_eq!((bios.kind, bios.address, bios.class()), (2, Ipv4Addr::UNSPECIFIED, "PXEClient"));
        // One boot server, which is this one, for a menu of one line, which the ROM takes by itself.
        let menu = &bios.options[&43];
        assert!(
            menu.windows(7).any(|part| part == [&[8, 7, 0x80, 0, 1][..], &SERVER.octets()[..2]].concat()),
            "{menu:?}"
        );
        let uefi = client.discover(UEFI);
        assert_eq!((uefi.next_server, uefi.class(), &*uefi.file), (SERVER, "PXEClient", ""));
        let uefi = client.boot_server(UEFI);
        assert_eq!((uefi.kind, uefi.next_server, &*uefi.file), (5, SERVER, "snponly.efi"));
        let http = client.discover(UEFI_HTTP);
        assert_eq!((http.class(), &*http.file), ("HTTPClient", &*format!("http://{SERVER}:{HTTP}/ipxe/snponly.efi")));
        for ipxe in [IPXE_BIOS, IPXE_UEFI] {
            for answer in [client.discover(ipxe), client.boot_server(ipxe)] {
                assert_eq!((answer.class(), &*answer.file), ("PXEClient", &*script));
                // iPXE takes no file from a proxy that names no server.
                assert_eq!((answer.address, answer.next_server), (Ipv4Addr::UNSPECIFIED, SERVER));
            }
        }

        assert_eq!(client.tftp("undionly.kpxe"), "for BIOS ".repeat(100).as_bytes()[..512]);
        assert_eq!(client.tftp("snponly.efi"), "for UEFI ".repeat(100).as_bytes()[..512]);
        assert_eq!(client.http("/ipxe/snponly.efi"), "for UEFI ".repeat(100).as_bytes());
        let script = client.http("/start.ipxe");
        let chained = format!("chain http://{SERVER}:{HTTP}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}}\n");
        assert!(script.ends_with(chained.as_bytes()), "{}", String::from_utf8_lossy(&script));
        runtime.block_on(server.heard("dnsmasq-dhcp: PXE(eth1) 52:54:00:aa:bb:01 proxy"));

        // Whoever is no firmware is none of our business: an answer would come before that to the firmware.
        client.run(|| {
            let socket = bound();
            setsockopt(&socket, BindToDevice, &"cli".into()).unwrap();
            socket.set_broadcast(true).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            for (number, firmware) in [(1, OTHER), (2, BIOS)] {
                socket.send_to(&firmware.packet(number, 1, None), (Ipv4Addr::BROADCAST, 67)).unwrap();
            }
            let mut packet = [0; 2048];
            socket.recv(&mut packet).unwrap();
            assert_eq!(packet[4..8], [0, 0, 0, 2]);
        });

        // It dies, and is there again.
        let [first] = dnsmasqs()[..] else { panic!("{:?}", dnsmasqs()) };
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
        assert!(
            status.contains("\nUid:\t65432\t65432\t") && status.contains("\nCapEff:\t0000000000003400\n"),
            "{status}"
        );
        kill(first, Signal::SIGKILL).unwrap();
        runtime.block_on(server.heard("was killed by signal 9"));
        runtime.block_on(server.heard("dnsmasq serves on eth1 again"));
        assert_eq!(client.discover(BIOS).class(), "PXEClient");

        // The card goes, and another one comes.
        ip("link delete eth1");
        runtime.block_on(server.heard("there is no NIC \\\"eth1\\\"; the NICs are lo"));
        assert_eq!(dnsmasqs(), []);
        runtime.block_on(server.stop());
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_with_a_range_machines_get_addresses_too() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let options = with_pxe(&dir, Some("10.77.0.100,10.77.0.200"));
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let (mut addresses, base) = (BTreeSet::new(), format!("http://{SERVER}:{HTTP}"));
        for (firmware, file, class) in [
            (BIOS, "undionly.kpxe".to_owned(), ""),
            (UEFI, "snponly.efi".to_owned(), ""),
            (UEFI_HTTP, format!("{base}/ipxe/snponly.efi"), "HTTPClient"),
            (IPXE_BIOS, format!("{base}/start.ipxe"), ""),
            (IPXE_UEFI, format!("{base}/start.ipxe"), ""),
        ] {
            let given = client.lease(firmware);
            assert_eq!((&given.file, given.class(), given.next_server), (&file, class, SERVER), "{given:?}");
            assert_eq!(given.options[&1], [255, 255, 255, 0]);
            assert!(!given.options.contains_key(&3), "this host takes no packets on: {given:?}");
            addresses.insert(given.address);
        }
        let other = client.lease(OTHER);
        assert_eq!(other.class(), "");
        addresses.insert(other.address);
        let addresses: Vec<Ipv4Addr> = addresses.into_iter().collect();
        let [address] = addresses[..] else { panic!("one card has one address: {addresses:?}") };
        assert!((100..=200).contains(&address.octets()[3]), "{address}");
        assert_eq!(client.tftp("undionly.kpxe").len(), 512);

        let dir = runtime.block_on(server.stop());
        assert_eq!(dnsmasqs(), []);
        let leases = std::fs::read_to_string(dir.path().join("dhcp.leases")).unwrap();
        assert!(leases.contains(&format!("52:54:00:aa:bb:01 {address}")), "{leases}");
        // The next one knows them.
        let pxe = options.pxe.clone().unwrap();
        let heard = Heard::default();
        let watch = StatusLog::json_into(heard.clone());
        let pxe = runtime
            .block_on(start_pxe(pxe, ServerConfig { dir: dir.path().to_owned(), ..options }, HTTP, watch))
            .unwrap();
        assert_eq!(client.discover(BIOS).address, address);
        drop(pxe);
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_what_cannot_be_answered_is_refused_at_the_start() {
    on_a_network(|_| {
        let runtime = runtime();
        let dir = directory();
        let good = with_pxe(&dir, None);
        let refused = |options: &ServerConfig| {
            let around = silent();
            let bound = ControlServer::bind_server(options, StatusLog::json_into(Heard::default()), &around, 1000);
            runtime.block_on(bound).map(drop).unwrap_err().to_string()
        };
        let with = |change: &dyn Fn(&mut PxeOptions)| {
            let mut options = good.clone();
            options.pxe.as_mut().map(change).unwrap();
            refused(&options)
        };
        let why = with(&|pxe| pxe.card = "eth9".to_owned());
        assert_eq!(why, "--pxe: there is no NIC \"eth9\"; the NICs are eth1, lo");
        let why = with(&|pxe| pxe.ipxe = Some("/nothing".into()));
        assert!(
            why.starts_with("--pxe: /nothing lacks undionly.kpxe and snponly.efi: run `apt-get install ipxe`"),
            "{why}"
        );
        let why = with(&|pxe| pxe.range = Some("10.78.0.1,10.78.0.9".parse().unwrap()));
        assert!(why.contains("is outside of the network of eth1, 10.77.0.0/255.255.255.0"), "{why}");
        let why = with(&|pxe| pxe.range = Some("10.77.0.1,10.77.0.9".parse().unwrap()));
        assert!(why.contains("contains this host's own address, 10.77.0.1"), "{why}");
        let why = refused(&ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..good.clone() });
        assert!(why.contains("--listen 127.0.0.1 does not accept them there"), "{why}");

        let others: Vec<UdpSocket> = [67, 69].iter().map(|port| UdpSocket::bind(("0.0.0.0", *port)).unwrap()).collect();
        let why = refused(&good);
        assert_eq!(why.lines().count(), 2, "all that is wrong: {why}");
        assert!(why.contains("UDP port 67 (DHCP) of eth1 is in use by another program on this host"), "{why}");
        assert!(why.contains("UDP port 69 (TFTP) of eth1 is in use"), "{why}");
        drop(others);
        ip("address flush dev eth1");
        assert_eq!(refused(&good), "--pxe: NIC eth1 does not have an IPv4 address, which DHCP requires");
        ip("link set eth1 down");
        assert_eq!(refused(&good), "--pxe: NIC eth1 is down: run `ip link set eth1 up`");
    });
}
