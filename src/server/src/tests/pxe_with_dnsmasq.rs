//! `--pxe` with a real dnsmasq, on a network of two namespaces: the server runs in one, and a machine's firmware in the
//! other. Server and firmware are threads of the test. A child process runs in the namespace of the thread that has
//! started it.

mod firmware;
mod leases;

pub(super) use firmware::{ARM64, BIOS, Client, IA32, IPXE_BIOS, IPXE_UEFI, UEFI};
pub(super) use leases::assert_one_address;

use super::*;
use crate::network_boot::start_pxe;
use firmware::{ARM64_HTTP, Firmware, OTHER, UEFI_HTTP};
use linux::process::ToolCommand;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pxe::pxe_options::PxeOptions;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HTTP: u16 = 8080;

fn ip(words: &str) {
    ToolCommand::new("ip").args(words.split_whitespace()).run().unwrap();
}

/// Runs `server` in a network namespace with the NIC `eth1`. The client runs at the other end of the link.
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

/// Returns the dnsmasq processes in the network namespace of this thread.
fn dnsmasqs() -> Vec<Pid> {
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let is_dnsmasq = std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "dnsmasq");
        is_dnsmasq && std::fs::read_link(path.join("ns/net")).is_ok_and(|network| network == own)
    };
    all.filter(is_it).filter_map(|path| Some(Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?))).collect()
}

/// Creates a folder with files in place of iPXE's binaries.
fn with_ipxe(dir: &TempDir) -> PathBuf {
    let ipxe = dir.path().join("ipxe");
    std::fs::create_dir(&ipxe).unwrap();
    std::fs::write(ipxe.join("undionly.kpxe"), "for BIOS ".repeat(100)).unwrap();
    std::fs::write(ipxe.join("snponly.efi"), "for UEFI ".repeat(100)).unwrap();
    std::fs::write(ipxe.join("ipxe-arm64.efi"), "for arm64 ".repeat(100)).unwrap();
    ipxe
}

fn with_pxe(dir: &TempDir, range: Option<&str>) -> ServerConfig {
    let range = range.map(|range| range.parse().unwrap());
    let pxe = Some(PxeOptions { nic: "eth1".to_owned(), range, dhcp_options: Vec::new(), ipxe: Some(with_ipxe(dir)) });
    ServerConfig { listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), HTTP), pxe, ..options(dir.path()) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_firmware_is_answered_next_to_another_dhcp_server() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let options = with_pxe(&dir, None);
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let script = format!("http://{SERVER}:{HTTP}/start.ipxe");

        let bios = client.discover(BIOS);
        assert_eq!((bios.kind, bios.address, bios.class()), (2, Ipv4Addr::UNSPECIFIED, "PXEClient"));
        // The boot menu lists only this server. The ROM selects the single line of the menu automatically.
        let menu = &bios.options[&43];
        assert!(
            menu.windows(7).any(|part| part == [&[8, 7, 0x80, 0, 1][..], &SERVER.octets()[..2]].concat()),
            "{menu:?}"
        );
        let uefi = client.discover(UEFI);
        assert_eq!((uefi.next_server, uefi.class(), &*uefi.file), (SERVER, "PXEClient", ""));
        let uefi = client.boot_server(UEFI);
        assert_eq!((uefi.kind, uefi.next_server, &*uefi.file), (5, SERVER, "snponly.efi"));
        let arm64 = client.boot_server(ARM64);
        assert_eq!((arm64.kind, arm64.next_server, &*arm64.file), (5, SERVER, "ipxe-arm64.efi"));
        let http = client.discover(ARM64_HTTP);
        let file = format!("http://{SERVER}:{HTTP}/ipxe/ipxe-arm64.efi");
        assert_eq!((http.class(), &*http.file), ("HTTPClient", &*file));
        let http = client.discover(UEFI_HTTP);
        assert_eq!((http.class(), &*http.file), ("HTTPClient", &*format!("http://{SERVER}:{HTTP}/ipxe/snponly.efi")));
        for ipxe in [IPXE_BIOS, IPXE_UEFI, Firmware { is_ipxe: true, ..ARM64 }] {
            for answer in [client.discover(ipxe), client.boot_server(ipxe)] {
                assert_eq!((answer.class(), &*answer.file), ("PXEClient", &*script));
                // iPXE would ignore the boot file if the response of the proxy did not contain a server address.
                assert_eq!((answer.address, answer.next_server), (Ipv4Addr::UNSPECIFIED, SERVER));
            }
        }

        assert_eq!(client.tftp("undionly.kpxe"), "for BIOS ".repeat(100).as_bytes()[..512]);
        assert_eq!(client.tftp("snponly.efi"), "for UEFI ".repeat(100).as_bytes()[..512]);
        assert_eq!(client.http("/ipxe/snponly.efi"), "for UEFI ".repeat(100).as_bytes());
        let script = client.http("/start.ipxe");
        assert_eq!(String::from_utf8_lossy(&script), pxe::ipxe::start_script(&format!("http://{SERVER}:{HTTP}")));
        runtime.block_on(server.heard("dnsmasq-dhcp: PXE(eth1) 52:54:00:aa:bb:01 proxy"));

        // Only firmware of supported architectures may receive a response. Firmware of another architecture would wait
        // for a boot file.
        for other in [OTHER, IA32, Firmware { is_ipxe: true, ..IA32 }] {
            client.is_ignored(other);
        }

        // After dnsmasq was killed, the server starts it again.
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

        // The NIC disappears.
        ip("link delete eth1");
        runtime.block_on(server.heard("there is no NIC \\\"eth1\\\"; the NICs are lo"));
        assert_eq!(dnsmasqs(), []);
        runtime.block_on(server.stop());
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_machines_receive_addresses_of_the_range() {
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
            (ARM64, "ipxe-arm64.efi".to_owned(), ""),
            (ARM64_HTTP, format!("{base}/ipxe/ipxe-arm64.efi"), "HTTPClient"),
            (IPXE_BIOS, format!("{base}/start.ipxe"), ""),
            (IPXE_UEFI, format!("{base}/start.ipxe"), ""),
        ] {
            let given = client.lease(firmware);
            assert_eq!((&given.file, given.class(), given.next_server), (&file, class, SERVER), "{given:?}");
            assert_eq!(given.options[&1], [255, 255, 255, 0]);
            assert!(!given.options.contains_key(&3), "this host does not forward packets: {given:?}");
            addresses.insert(given.address);
        }
        let other = client.lease(OTHER);
        assert_eq!(other.class(), "");
        addresses.insert(other.address);
        client.is_ignored(IA32);
        let addresses: Vec<Ipv4Addr> = addresses.into_iter().collect();
        let [address] = addresses[..] else { panic!("one NIC has one address: {addresses:?}") };
        assert!((100..=200).contains(&address.octets()[3]), "{address}");
        assert_eq!(client.tftp("undionly.kpxe").len(), 512);

        let dir = runtime.block_on(server.stop());
        assert_eq!(dnsmasqs(), []);
        let leases = std::fs::read_to_string(dir.path().join("dhcp.leases")).unwrap();
        assert!(leases.contains(&format!("52:54:00:aa:bb:01 {address}")), "{leases}");
        // The next dnsmasq process knows the leases of the previous one.
        let pxe = options.pxe.clone().unwrap();
        let heard = CapturedLog::default();
        let watch = ServerLog::json_into(heard.clone());
        let permission = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let config = ServerConfig { dir: dir.path().to_owned(), ..options };
        let pxe = runtime.block_on(start_pxe(pxe, config, HTTP, (watch, permission.clone()))).unwrap();
        assert_eq!(client.discover(BIOS).address, address);
        // While the registration of its range is not in force, the server assigns no addresses.
        for is_permitted in [false, true] {
            permission.store(is_permitted, std::sync::atomic::Ordering::SeqCst);
            while dnsmasqs().is_empty() == is_permitted {
                thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(client.discover(BIOS).address, address);
        drop(pxe);
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_unusable_pxe_options_are_refused_at_the_start() {
    on_a_network(|_| {
        let runtime = runtime();
        let dir = directory();
        let good = with_pxe(&dir, None);
        let refused = |options: &ServerConfig| {
            let around = silent();
            let bound =
                ControlServer::bind_server(options, ServerLog::json_into(CapturedLog::default()), &around, 1000);
            runtime.block_on(bound).map(drop).unwrap_err().to_string()
        };
        let with = |change: &dyn Fn(&mut PxeOptions)| {
            let mut options = good.clone();
            options.pxe.as_mut().map(change).unwrap();
            refused(&options)
        };
        let why = with(&|pxe| pxe.nic = "eth9".to_owned());
        assert_eq!(why, "--pxe: there is no NIC \"eth9\"; the NICs are eth1, lo");
        let why = with(&|pxe| pxe.ipxe = Some("/nothing".into()));
        assert!(
            why.starts_with("--pxe: /nothing lacks undionly.kpxe and snponly.efi: run `apt-get install ipxe`"),
            "{why}"
        );
        let why = with(&|pxe| pxe.range = Some("10.78.0.1,10.78.0.9".parse().unwrap()));
        assert!(why.contains("is not within the network 10.77.0.0/255.255.255.0 of eth1"), "{why}");
        let why = with(&|pxe| pxe.range = Some("10.77.0.1,10.77.0.9".parse().unwrap()));
        assert!(why.contains("contains this host's own address 10.77.0.1"), "{why}");
        let why = refused(&ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..good.clone() });
        assert!(why.contains("--listen 127.0.0.1 does not accept connections at that address"), "{why}");

        // A TFTP server at the address of another NIC does not conflict with dnsmasq.
        ip("address add 10.78.0.1/24 dev lo");
        let elsewhere = UdpSocket::bind("10.78.0.1:69").unwrap();
        drop(
            runtime
                .block_on(ControlServer::bind_server(
                    &good,
                    ServerLog::json_into(CapturedLog::default()),
                    &silent(),
                    1000,
                ))
                .unwrap(),
        );
        drop(elsewhere);
        let others: Vec<UdpSocket> = [67, 69].iter().map(|port| UdpSocket::bind(("0.0.0.0", *port)).unwrap()).collect();
        let why = refused(&good);
        assert_eq!(why.lines().count(), 2, "all problems are reported: {why}");
        assert!(why.contains("UDP port 67 (DHCP) of eth1 is in use by another program on this host"), "{why}");
        assert!(why.contains("UDP port 69 (TFTP) of eth1 is in use"), "{why}");
        drop(others);
        ip("address flush dev eth1");
        assert_eq!(refused(&good), "--pxe: NIC eth1 does not have an IPv4 address, which DHCP requires");
        ip("link set eth1 down");
        assert_eq!(refused(&good), "--pxe: NIC eth1 is down: run `ip link set eth1 up`");
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_other_dhcp_servers_are_reported() {
    on_a_network(|client| {
        let runtime = runtime();
        let start_other = || {
            client.run(|| {
                let config =
                    ["--port=0", "--interface=cli", "--bind-interfaces", "--leasefile-ro", "--conf-file=/dev/null"];
                let range = ["--dhcp-range=10.77.0.60,10.77.0.69,255.255.255.0", "--dhcp-boot=grubx64.efi"];
                let command = ToolCommand::new("dnsmasq").args(config).args(range);
                command.args(["--keep-in-foreground", "--pid-file="]).start_in_background(|_| {}).unwrap()
            })
        };
        let other = start_other();
        for (range, words) in [
            (Some("10.77.0.100,10.77.0.200"), "another DHCP server answers on eth1: 10.77.0.50 offers 10.77.0.6"),
            (None, "another server on eth1 sends boot files: 10.77.0.50 offers 10.77.0.6"),
        ] {
            let dir = directory();
            let options = with_pxe(&dir, range);
            let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
            runtime.block_on(server.heard(words));
            runtime.block_on(server.heard("sends the boot file \\\"grubx64.efi\\\""));
            runtime.block_on(server.stop());
        }
        other.terminate(Duration::from_secs(2));
        let dir = directory();
        let options = with_pxe(&dir, None);
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        runtime.block_on(server.heard("no DHCP server on eth1 offers an address"));
        // A DHCP server that starts after the first search is detected by a later search.
        let other = start_other();
        runtime.block_on(server.heard("another server on eth1 sends boot files: 10.77.0.50 offers 10.77.0.6"));
        other.terminate(Duration::from_secs(2));
        runtime.block_on(server.stop());
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_url_unknown_to_the_dns_server_is_refused() {
    on_a_network(|client| {
        // The DNS server runs in the other namespace, at the address of the machine's NIC.
        let (started, has_begun) = mpsc::channel();
        let dns = client.run(|| {
            let config =
                ["--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--local=/rack/1/", "--keep-in-foreground"];
            let names = ["--host-record=install.rack,10.77.0.1", "--host-record=six.rack,2001:db8::1"];
            let command =
                ToolCommand::new("dnsmasq").args(config).args(names).args(["--pid-file=", "--log-facility=-"]);
            let command = command.args(["--listen-address=10.77.0.50", "--bind-interfaces"]);
            let watch = move |line: &str| {
                if line.contains("started") {
                    started.send(()).unwrap();
                }
            };
            command.start_in_background(watch).unwrap()
        });
        has_begun.recv_timeout(PATIENCE).unwrap();
        let dir = directory();
        let mut options = with_pxe(&dir, Some("10.77.0.100,10.77.0.200"));
        let mut check = |servers: &str, url: &str| {
            let pxe = options.pxe.as_mut().unwrap();
            pxe.dhcp_options = vec![format!("dns-server,{servers}").parse().unwrap()];
            options.url = Some(url.to_owned());
            pxe::check_pxe(options.pxe.as_ref().unwrap(), &options.boot_server()).map_err(|error| error.to_string())
        };
        // The host of the last URL is an address, and needs no DNS query; the DNS server would respond that the name
        // does not exist.
        for url in ["http://install.rack:8080", "http://INSTALL.rack.:8080", "http://10.77.0.1:8080"] {
            assert_eq!(check("10.77.0.50", url), Ok(()));
        }
        for name in ["other.rack", "six.rack"] {
            let why = check("10.77.0.50", &format!("http://{name}:8080")).unwrap_err();
            let expected = format!("--pxe: the DNS server 10.77.0.50 of --dhcp-option has no IPv4 address for {name}");
            assert!(why.contains(&expected), "{why}");
        }
        // A DNS server that does not respond to this host, or refuses the query, may still respond to machines, so the
        // check succeeds.
        assert_eq!(check("10.77.0.77", "http://other.rack"), Ok(()));
        assert_eq!(check("10.77.0.50,10.77.0.77", "http://other.rack"), Ok(()));
        assert_eq!(check("10.77.0.50", "http://install.elsewhere"), Ok(()));
        dns.terminate(Duration::from_secs(2));
    });
}
