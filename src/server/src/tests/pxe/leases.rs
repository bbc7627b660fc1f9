//! Addresses by NIC: what firmware and systems send as client identifier does not count.

use super::firmware::Firmware;
use super::*;

/// Client identifiers made of SMBIOS UUIDs, as UEFI firmware sends them, and of a MAC, as iPXE does.
const OF_BOARD: &[u8] = b"\0\x4c\x4c\x45\x44\0\0\0\0\0\0\0\0\0\0\0\x01";
const OF_DEFAULT: &[u8] = b"\0\x03\0\x02\0\x04\0\x05\0\0\x06\0\x07\0\x08\0\x09";
const OF_MAC: &[u8] = b"\x01\x52\x54\0\xaa\xbb\x01";
const OF_RAMDISK: &[u8] = b"\xff\xaa\xbb\x01\0\0\x02\0\0\xab\x11\x12\x13";

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_one_nic_takes_one_address_whatever_identifies_it() {
    on_a_network(|client| {
        let runtime = runtime();
        let dir = directory();
        let options = with_pxe(&dir, Some("10.77.0.100,10.77.0.101"));
        let server = runtime.block_on(Running::start_with(dir, &options, &silent(), 1000));
        let first = client.lease(Firmware { client_id: OF_BOARD, ..UEFI }).address;
        for client_id in [OF_MAC, OF_RAMDISK, OF_DEFAULT, &[]] {
            let given = client.lease(Firmware { client_id, ..IPXE_UEFI });
            assert_eq!(given.address, first, "{client_id:?}");
        }
        // The second machine gets the second address, although its board has the identifier that the first one has sent.
        let second = client.lease(Firmware { nic: 2, client_id: OF_DEFAULT, ..UEFI }).address;
        assert_ne!(second, first);
        assert_eq!(client.lease(Firmware { client_id: OF_DEFAULT, ..UEFI }).address, first);
        let dir = runtime.block_on(server.stop());
        let leases = std::fs::read_to_string(dir.path().join("dhcp.leases")).unwrap();
        let leases = leases.lines().filter(|line| line.contains("52:54:00:aa:bb:")).count();
        assert_eq!(leases, 2, "one for each MAC");
    });
}
