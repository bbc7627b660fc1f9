//! Identity of machines. UUIDs, MAC addresses and serial numbers identify a machine for boot, registration, `machine
//! add`, management controllers, fleet files, metal-stack and Ironic. This module does no I/O.
//!
//! An identifier proves nothing by itself: firmware is shipped with default values, NICs are moved between machines,
//! and management controllers of some models expose the same MAC on all machines. A placeholder is treated as missing.
//! `machine_match` contains the decision table.

mod machine_match;

pub use machine_match::{
    BootIdentity, KnownMachine, MachineMatch, RegisteredIdentity, UuidProof, describe_other_macs,
    describe_other_macs_of, match_machine, prove_uuid,
};

use uuid::Uuid;

/// Default UUIDs of vendors that do not follow a pattern, recognized in both byte orders (RFC 4122 and SMBIOS).
const DEFAULT_UUIDS: [Uuid; 2] = [
    Uuid::from_u128(0x12345678_1234_5678_90ab_cddeefaabbcc),
    // Default UUID of LX2160A boards.
    Uuid::from_u128(0x8a95d198_7f46_11e5_bf8b_08002704d48e),
];

/// Returns the UUID; `None` if it does not identify a machine, because it is "not present" or "not set" (SMBIOS 7.2.1),
/// or is a default value that a vendor has shipped on all boards of a model.
pub fn usable_uuid(uuid: Uuid) -> Option<Uuid> {
    let is_default = |uuid: Uuid| {
        DEFAULT_UUIDS.contains(&uuid)
            || is_progression(&uuid)
            || is_repetition(&uuid)
            || is_blank_service_tag(&uuid)
            || has_patterned_groups(&uuid)
    };
    (!is_default(uuid) && !is_default(swap_byte_order(uuid))).then_some(uuid)
}

/// Parses a UUID that firmware has reported. The text must have 36 characters, in upper or lower case. Returns `None`
/// if the UUID is invalid or not [usable](usable_uuid).
pub fn parse_usable_uuid(text: &str) -> Option<Uuid> {
    let text = text.trim();
    Uuid::try_parse(text).ok().filter(|_| text.len() == 36).and_then(usable_uuid)
}

/// Returns the UUID with the bytes of each of its first three fields reversed. SMBIOS before 2.6 and some management
/// controllers report it in this byte order.
pub(crate) fn swap_byte_order(uuid: Uuid) -> Uuid {
    Uuid::from_bytes_le(*uuid.as_bytes())
}

/// Returns a machine ID in the other byte order; `None` if the ID is not a UUID.
pub fn swap_id_byte_order(id: &str) -> Option<String> {
    Uuid::try_parse(id).ok().map(|uuid| swap_byte_order(uuid).to_string())
}

/// Returns whether two UUIDs are equal, either as written or after reversing the byte order of one of them.
pub fn is_same_uuid(one: Uuid, other: Uuid) -> bool {
    one == other || swap_byte_order(one) == other
}

/// Returns whether the bytes, 16-bit words or digits of the UUID are an arithmetic progression: all equal, ascending or
/// descending. Examples are zeros, ones, 00010203-…, 00020003-0004-… and 00112233-….
fn is_progression(uuid: &Uuid) -> bool {
    let bytes = uuid.as_bytes();
    let step = |values: &[u32], modulus: u32| {
        let steps: Vec<u32> = values.windows(2).map(|pair| (pair[1] + modulus - pair[0]) % modulus).collect();
        steps.windows(2).all(|pair| pair[0] == pair[1])
    };
    let words: Vec<u32> = bytes.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).collect();
    let digits: Vec<u32> = bytes.iter().flat_map(|byte| [u32::from(byte >> 4), u32::from(byte & 15)]).collect();
    let is_decimal = digits.iter().all(|digit| *digit < 10);
    step(&bytes.map(u32::from), 1 << 8)
        || step(&words, 1 << 16)
        || step(&digits, 16)
        || (is_decimal && step(&digits, 10))
}

/// Returns whether the UUID consists of repetitions of the same one, two or four bytes.
fn is_repetition(uuid: &Uuid) -> bool {
    let bytes = uuid.as_bytes();
    [1, 2, 4].iter().any(|length| bytes.chunks_exact(*length).all(|chunk| chunk == &bytes[..*length]))
}

/// Returns whether the digits of each of the five groups are all equal, ascending or descending. Examples are
/// 11111111-2222-3333-4444-555555555555 and 12345678-1234-1234-1234-123456789abc.
fn has_patterned_groups(uuid: &Uuid) -> bool {
    let text = uuid.to_string();
    let is_patterned = |group: &str| {
        let digits: Vec<i32> = group.chars().filter_map(|c| c.to_digit(16)?.try_into().ok()).collect();
        let steps: Vec<i32> = digits.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps[0].abs() <= 1 && steps.iter().all(|step| *step == steps[0])
    };
    text.split('-').all(is_patterned)
}

/// Returns whether the UUID has Dell's format (`4c4c4544-00SS-SS10-80SS-SSc04fSSSSSS`), and its service tag `S` is one
/// repeated character, or consists of blanks and NULs. Such a board is a replacement whose service tag was never set.
fn is_blank_service_tag(uuid: &Uuid) -> bool {
    let [b'L', b'L', b'E', b'D', 0, a, b, 0x10, 0x80, c, d, 0xc0, 0x4f, e, f, g] = *uuid.as_bytes() else {
        return false;
    };
    let tag = [a, b, c, d & 0x7f, e, f, g];
    tag.iter().all(|character| *character == a) || tag.iter().all(|character| matches!(character, 0 | b' '))
}

/// Parses a MAC address, and returns it in lower case with colons.
///
/// # Errors
/// Fails if the text is not a MAC address.
pub fn parse_mac(text: &str) -> Result<String, String> {
    let pairs: Vec<&str> = text.split([':', '-']).collect();
    let is_pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    match pairs.len() == 6 && pairs.iter().all(is_pair) {
        true => Ok(pairs.join(":").to_lowercase()),
        false => Err(format!("{text:?} is not a MAC address, such as 52:54:00:12:34:56")),
    }
}

/// Returns whether a MAC address, in the form that [`parse_mac`] returns, is a multicast address.
pub fn is_group_mac(mac: &str) -> bool {
    matches!(mac.as_bytes(), [_, b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f', ..])
}

/// Parses a MAC address that identifies a single NIC, and returns it in lower case with colons. Returns `None` if the
/// address is invalid, is a multicast address, or consists of zeros or ones.
pub fn usable_mac(text: &str) -> Option<String> {
    parse_mac(text.trim()).ok().filter(|mac| !is_group_mac(mac) && mac != "00:00:00:00:00:00")
}

/// Drivers of USB NICs. These are adapters and docks, which are moved between machines, and interfaces of management
/// controllers, which on some models have the same MAC on all machines.
const USB_DRIVERS: [&str; 27] = [
    "aqc111",
    "asix",
    "ax88179_178a",
    "catc",
    "cdc_eem",
    "cdc_ether",
    "cdc_mbim",
    "cdc_ncm",
    "cdc_subset",
    "ch9200",
    "dm9601",
    "huawei_cdc_ncm",
    "int51x1",
    "ipheth",
    "kaweth",
    "lan78xx",
    "mcs7830",
    "pegasus",
    "qmi_wwan",
    "r8152",
    "r8153_ecm",
    "rndis_host",
    "rtl8150",
    "smsc75xx",
    "smsc95xx",
    "sr9700",
    "sr9800",
];

/// Returns whether the driver is one of [`USB_DRIVERS`].
pub(crate) fn is_usb_driver(driver: &str) -> bool {
    USB_DRIVERS.contains(&driver)
}

/// Drivers of the network interfaces through which management controllers communicate with the host over USB.
const CONTROLLER_DRIVERS: [&str; 5] = ["cdc_eem", "cdc_ether", "cdc_ncm", "cdc_subset", "rndis_host"];

/// Returns whether the driver belongs to an interface through which a management controller communicates with the
/// host.
pub fn is_controller_driver(driver: &str) -> bool {
    CONTROLLER_DRIVERS.contains(&driver)
}

/// Serial numbers that firmware reports if the vendor has set none, in lower case, reduced to letters and digits.
const PLACEHOLDER_SERIALS: [&str; 24] = [
    "baseboardserialnumber",
    "chassisserialnumber",
    "defaultstring",
    "empty",
    "invalid",
    "na",
    "none",
    "notapplicable",
    "notavailable",
    "notset",
    "notsettable",
    "notspecified",
    "null",
    "oem",
    "sernum",
    "serialnumber",
    "sysserialnumber",
    "systemserialnumber",
    "tbd",
    "tobefilledbyoem",
    "tobefilledbyoemmore",
    "undefined",
    "unknown",
    "unspecified",
];

/// Returns the serial number without surrounding blanks; `None` if it does not identify a machine, because it is a
/// placeholder, one repeated character, or an ascending sequence of digits.
pub fn usable_serial(text: &str) -> Option<&str> {
    let text = text.trim();
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    let is_one_character = letters.as_bytes().windows(2).all(|pair| pair[0] == pair[1]);
    let is_repeated = is_one_character && (letters.len() > 3 || letters.starts_with(['0', 'x']) || letters.is_empty());
    const ROW: &str = "01234567890123456789";
    let is_row = letters.len() > 4 && (ROW.contains(&letters) || "0123456789abcdef".contains(&letters));
    let is_placeholder = is_repeated || is_row || PLACEHOLDER_SERIALS.contains(&letters.as_str());
    // A text in a script other than Latin is usable, because no placeholder in such a script is known.
    let has_others = text.chars().any(char::is_alphanumeric) && letters.is_empty();
    (has_others || !is_placeholder).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(text: &str) -> Uuid {
        text.parse().unwrap()
    }

    #[test]
    fn vendor_default_uuids_and_patterns_are_not_usable() {
        for default in [
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "03020100-0504-0706-0809-0a0b0c0d0e0f",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "04030201-0605-0807-090a-0b0c0d0e0f10",
            "0f0e0d0c-0b0a-0908-0706-050403020100",
            "00112233-4455-6677-8899-aabbccddeeff",
            "33221100-5544-7766-8899-aabbccddeeff",
            "01234567-89ab-cdef-0123-456789abcdef",
            "12345678-9012-3456-7890-123456789012",
            "12345678-1234-5678-90ab-cddeefaabbcc",
            "78563412-3412-7856-90ab-cddeefaabbcc",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "deadbeef-dead-beef-dead-beefdeadbeef",
            "12341234-1234-1234-1234-123412341234",
            "8a95d198-7f46-11e5-bf8b-08002704d48e",
            "98d1958a-467f-e511-bf8b-08002704d48e",
            "4c4c4544-0020-2010-8020-a0c04f202020",
            "44454c4c-2000-1020-8020-a0c04f202020",
            "4c4c4544-0000-2010-8020-80c04f202020",
            "44454c4c-0000-1020-8020-80c04f202020",
            "11111111-2222-3333-4444-555555555555",
            "12345678-1234-1234-1234-123456789abc",
            "12345678-1234-5678-1234-567812345678",
            "87654321-4321-4321-4321-cba987654321",
        ] {
            assert_eq!(usable_uuid(uuid(default)), None, "{default}");
            assert_eq!(parse_usable_uuid(&default.to_uppercase()), None, "{default}");
        }
    }

    #[test]
    fn vendor_assigned_uuids_are_usable() {
        for good in [
            "4c4c4544-0051-3010-8031-b2c04f333633",
            "4c4c4544-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-ac1f6b123456",
            "00000000-0000-4000-8000-000000000001",
            "03000200-0400-0500-0006-000700080109",
            "ffffffff-ffff-ffff-ffff-fffffffffffe",
            "12345678-1234-5678-90ab-cddeefaabbcd",
            "5e1f7a10-0000-4000-8000-000000000001",
            "4c4c4544-0000-2010-8020-80c04f202031",
            "11111111-2222-3333-4444-555555555556",
            "12345678-1234-1234-1234-123456789abd",
        ] {
            assert_eq!(usable_uuid(uuid(good)), Some(uuid(good)), "{good}");
        }
        for bad in ["", "Not Settable", "4c4c454400513010803 1b2c04f333633", "{4c4c4544-0051-3010-8031-b2c04f333633}"] {
            assert_eq!(parse_usable_uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_byte_orders_identify_the_same_machine() {
        let (one, other) = (uuid("4c4c4544-0051-3010-8031-b2c04f333633"), uuid("44454c4c-5100-1030-8031-b2c04f333633"));
        assert_eq!((swap_byte_order(one), swap_byte_order(other)), (other, one));
        assert!(is_same_uuid(one, other) && is_same_uuid(other, one) && is_same_uuid(one, one));
        assert!(!is_same_uuid(one, uuid("4c4c4544-0051-3010-8031-b2c04f333634")));
    }

    #[test]
    fn shared_or_invalid_macs_are_not_usable() {
        assert_eq!(usable_mac("52-54-00-AB-cd-01").as_deref(), Some("52:54:00:ab:cd:01"));
        assert_eq!(parse_mac("52-54-00-AB-cd-01"), Ok("52:54:00:ab:cd:01".to_owned()));
        for bad in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:01:02",
            "52:54:00:ab:cd:0g",
            "5254:00:ab:cd:01:0",
            "+2:54:00:ab:cd:01",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
        assert_eq!(usable_mac("00:0e:c6:12:34:56").as_deref(), Some("00:0e:c6:12:34:56"));
        for bad in
            ["", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "52:54:00:ab:cd"]
        {
            assert_eq!(usable_mac(bad), None, "{bad}");
        }
    }

    #[test]
    fn placeholders_are_not_serial_numbers() {
        for bad in [
            "",
            "  ",
            "...",
            "To be filled by O.E.M.",
            "To Be Filled By O.E.M",
            "Default string",
            "System Serial Number",
            "System-Serial-Number",
            "1234567890",
            "0123456789",
            "123456789",
            "0000000000",
            "XXXXXXXX",
            "None",
            "N/A",
            "Not Specified",
            "(none)",
            "0",
        ] {
            assert_eq!(usable_serial(bad), None, "{bad:?}");
        }
        for good in ["CZ12345678", " 7 2", "S/N 7\u{e9}", "5CG1234567", "123", "7", "A1", "\u{e9}\u{e8}"] {
            assert_eq!(usable_serial(good), Some(good.trim()), "{good:?}");
        }
    }
}
