//! Assignment of addresses by MAC: the client identifiers that firmware and systems send are ignored.

use super::firmware::Firmware;
use super::*;

/// Client identifiers: UEFI firmware derives them from the SMBIOS UUID, and iPXE from the MAC.
const OF_BOARD: &[u8] = b"\0\x4c\x4c\x45\x44\0\0\0\0\0\0\0\0\0\0\0\x01";
const OF_DEFAULT: &[u8] = b"\0\x03\0\x02\0\x04\0\x05\0\0\x06\0\x07\0\x08\0\x09";
const OF_MAC: &[u8] = b"\x01\x52\x54\0\xaa\xbb\x01";
const OF_RAMDISK: &[u8] = b"\xff\xaa\xbb\x01\0\0\x02\0\0\xab\x11\x12\x13";

/// Asserts that a NIC receives the same address with every client identifier. Returns this address.
pub(crate) fn assert_one_address(client: &Client) -> Ipv4Addr {
    let first = client.lease(Firmware { client_id: OF_BOARD, ..UEFI }).address;
    for client_id in [OF_MAC, OF_RAMDISK, OF_DEFAULT, &[]] {
        let given = client.lease(Firmware { client_id, ..IPXE_UEFI });
        assert_eq!(given.address, first, "{client_id:?}");
    }
    first
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_each_nic_receives_one_address_despite_client_identifiers() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let options = with_pxe(&dir, Some("10.77.0.100,10.77.0.101"));
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let first = assert_one_address(client);
        // The second machine gets another address, although it sends the same client identifier as the first one.
        let second = client.lease(Firmware { nic: 2, client_id: OF_DEFAULT, ..UEFI }).address;
        assert_ne!(second, first);
        assert_eq!(client.lease(Firmware { client_id: OF_DEFAULT, ..UEFI }).address, first);
        let dir = runtime.block_on(server.stop());
        let leases = std::fs::read_to_string(dir.path().join("dhcp.leases")).unwrap();
        let leases = leases.lines().filter(|line| line.contains("52:54:00:aa:bb:")).count();
        assert_eq!(leases, 2, "one for each MAC");
    });
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_configured_dhcp_options_are_sent() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let mut options = with_pxe(&dir, Some("10.77.0.100,10.77.0.200"));
        let given = ["dns-server,10.77.0.53", "ntp-server,10.77.0.5", "121,192.0.2.0/24,10.77.0.254"];
        options.pxe.as_mut().unwrap().dhcp_options = given.map(|option| option.parse().unwrap()).to_vec();
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let lease = client.lease(Firmware { requested: &[1, 3, 6, 42, 121], ..OTHER });
        for (number, expected) in
            [(6, &[10, 77, 0, 53][..]), (42, &[10, 77, 0, 5]), (121, &[24, 192, 0, 2, 10, 77, 0, 254])]
        {
            assert_eq!(lease.options.get(&number).map(Vec::as_slice), Some(expected), "{number}");
        }
        runtime.block_on(server.stop());
    });
}
