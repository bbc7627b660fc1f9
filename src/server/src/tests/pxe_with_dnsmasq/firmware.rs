//! DHCP, TFTP and HTTP requests of a machine's firmware, from a separate network namespace.

use super::*;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use nix::unistd::gettid;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// Thread in a separate network namespace.
pub(crate) struct Client {
    work: mpsc::Sender<Work>,
}

impl Client {
    pub(super) fn start() -> Client {
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

    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, said) = mpsc::channel();
        self.work.send(Box::new(move || drop(say.send(work())))).unwrap();
        said.recv().unwrap()
    }

    /// Returns the offer that the DHCP server sends to this firmware.
    pub(super) fn discover(&self, firmware: Firmware) -> Answered {
        self.run(move || firmware.ask(67, 1, None))
    }

    /// Asserts that the server does not respond to this firmware: sends a request of this firmware and then one of a
    /// supported firmware, and checks that the first response belongs to the second request.
    pub(crate) fn is_ignored(&self, firmware: Firmware) {
        self.run(move || {
            let socket = bound();
            setsockopt(&socket, BindToDevice, &"cli".into()).unwrap();
            socket.set_broadcast(true).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            for (number, firmware) in [(1, firmware), (2, BIOS)] {
                socket.send_to(&firmware.packet(number, 1, None), (Ipv4Addr::BROADCAST, 67)).unwrap();
            }
            let mut packet = [0; 2048];
            socket.recv(&mut packet).unwrap();
            assert_eq!(packet[4..8], [0, 0, 0, 2], "architecture {}", firmware.kind);
        });
    }

    /// Sends a request to port 4011, at which PXE boot servers listen, and returns the response.
    pub(super) fn boot_server(&self, firmware: Firmware) -> Answered {
        self.run(move || firmware.ask(4011, 3, None))
    }

    /// Requests the offered address.
    pub(crate) fn lease(&self, firmware: Firmware) -> Answered {
        let offered = self.discover(firmware).address;
        let given = self.run(move || firmware.ask(67, 3, Some(offered)));
        assert_eq!((given.kind, given.address), (5, offered), "{given:?}");
        given
    }

    /// Requests a file over TFTP, and returns its first block.
    pub(super) fn tftp(&self, name: &'static str) -> Vec<u8> {
        self.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send_to(format!("\0\x01{name}\0octet\0").as_bytes(), (SERVER, 69)).unwrap();
            let mut block = [0; 1024];
            let (length, from) = socket.recv_from(&mut block).unwrap();
            assert_eq!(block[..4], [0, 3, 0, 1], "{}", String::from_utf8_lossy(&block[4..length]));
            // Aborts the transfer.
            socket.send_to(b"\0\x05\0\0enough\0", from).unwrap();
            block[4..length].to_vec()
        })
    }

    pub(super) fn http(&self, path: &'static str) -> Vec<u8> {
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

/// DHCP client, described by its architecture type (RFC 4578), its vendor class, and other properties.
#[derive(Clone, Copy)]
pub(crate) struct Firmware {
    pub(super) kind: u16,
    pub(super) class: &'static str,
    pub(super) is_ipxe: bool,
    /// Last byte of the NIC's MAC.
    pub(super) nic: u8,
    /// Client identifier (option 61); empty if the client does not send one.
    pub(super) client_id: &'static [u8],
    /// Requested options (option 55).
    pub(super) requested: &'static [u8],
}

const BOOT_OPTIONS: &[u8] = &[1, 3, 6, 43, 60, 66, 67, 97];

pub(crate) const BIOS: Firmware = Firmware {
    kind: 0,
    class: "PXEClient:Arch:00000:UNDI:002001",
    is_ipxe: false,
    nic: 1,
    client_id: &[],
    requested: BOOT_OPTIONS,
};
pub(crate) const UEFI: Firmware = Firmware {
    kind: 7,
    class: "PXEClient:Arch:00007:UNDI:003016",
    is_ipxe: false,
    nic: 1,
    client_id: &[],
    requested: BOOT_OPTIONS,
};
pub(super) const UEFI_HTTP: Firmware = Firmware {
    kind: 16,
    class: "HTTPClient:Arch:00016:UNDI:003001",
    is_ipxe: false,
    nic: 1,
    client_id: &[],
    requested: BOOT_OPTIONS,
};
pub(crate) const IPXE_BIOS: Firmware = Firmware { is_ipxe: true, ..BIOS };
pub(crate) const IPXE_UEFI: Firmware = Firmware { is_ipxe: true, ..UEFI };
/// UEFI on arm64.
pub(crate) const ARM64: Firmware = Firmware { kind: 11, class: "PXEClient:Arch:00011:UNDI:003000", ..UEFI };
pub(super) const ARM64_HTTP: Firmware = Firmware { kind: 19, class: "HTTPClient:Arch:00019:UNDI:003000", ..UEFI };
/// UEFI on IA-32, for which no boot file exists.
pub(crate) const IA32: Firmware = Firmware { kind: 6, class: "PXEClient:Arch:00006:UNDI:003016", ..UEFI };
pub(super) const OTHER: Firmware =
    Firmware { kind: 0, class: "MSFT 5.0", is_ipxe: false, nic: 1, client_id: &[], requested: BOOT_OPTIONS };

#[derive(Debug)]
pub(crate) struct Answered {
    /// DHCP message type: 2 is an offer, 5 an acknowledgement.
    pub(super) kind: u8,
    pub(super) address: Ipv4Addr,
    pub(super) next_server: Ipv4Addr,
    /// Boot file from option 67 or from the DHCP header.
    pub file: String,
    pub(super) options: BTreeMap<u8, Vec<u8>>,
}

impl Answered {
    pub(super) fn class(&self) -> &str {
        self.options.get(&60).map_or("", |class| std::str::from_utf8(class).unwrap())
    }
}

impl Firmware {
    pub(super) fn packet(self, number: u32, kind: u8, wants: Option<Ipv4Addr>) -> Vec<u8> {
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
        option(55, self.requested);
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

    /// Repeats the request until there is a response.
    pub(super) fn ask(self, port: u16, kind: u8, wants: Option<Ipv4Addr>) -> Answered {
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

/// Binds the client's port. The port may be in use for a moment, because a child process of another test inherits the
/// previous socket until it executes its program.
pub(super) fn bound() -> UdpSocket {
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
