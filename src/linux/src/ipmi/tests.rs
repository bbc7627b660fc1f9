//! Tests with a simulated BMC that returns recorded bytes. Its FRU inventory was written by PyPI's `fru` 4.1.0 (Dell's
//! fru-tool).

use super::fru::{check_header, parse_fields};
use super::lan::{parse_address, parse_mac};
use super::*;
use model::bmc::FruInfo;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FRU: &[u8] = include_bytes!("../../../../testdata/bmc/server.fru");
/// Response of a BMC of an X11 board to Get Device ID: firmware 1.74.
const DEVICE_ID: &[u8] = &[0x20, 0x01, 0x01, 0x74, 0x02, 0xbf, 0x7c, 0x2a, 0x00, 0x7a, 0x09, 0x00, 0x00, 0x00, 0x00];

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct FakeBmc {
    fru: Vec<u8>,
    by_words: bool,
    /// Maximum number of bytes per read.
    most: usize,
    /// Medium of each channel.
    channels: BTreeMap<u8, u8>,
    /// Values of LAN parameters by channel and parameter.
    lan: BTreeMap<(u8, u8), Vec<u8>>,
    /// States of Set In Progress for the first reads of this parameter, in reverse order. Later reads return 0.
    changing: Vec<u8>,
    /// Completion codes of the first responses.
    codes: Vec<u8>,
    calls: Vec<(Command, Vec<u8>)>,
}

impl FakeBmc {
    fn new() -> FakeBmc {
        FakeBmc {
            fru: FRU.to_vec(),
            by_words: false,
            most: 16,
            channels: [(1, 4), (8, 4), (0x0b, 4)].into(),
            lan: [
                ((1, 3), vec![0, 0, 0, 0]),
                ((1, 5), vec![0x0c, 0xc4, 0x7a, 0x01, 0x02, 0x03]),
                ((8, 3), vec![10, 1, 0, 7]),
                ((8, 5), vec![0x0c, 0xc4, 0x7a, 0x0A, 0x0B, 0x0C]),
            ]
            .into(),
            changing: vec![],
            codes: vec![],
            calls: vec![],
        }
    }

    fn read(&mut self) -> Result<InBandBmc, String> {
        read_from(self, PATIENCE, Duration::ZERO)
    }

    fn respond(&mut self, command: Command, data: &[u8]) -> Result<Vec<u8>, u8> {
        match (command, data) {
            (GET_DEVICE_ID, []) => Ok(DEVICE_ID.to_vec()),
            ((0x06, 0x42), [channel]) => {
                let medium = self.channels.get(channel).ok_or(0xcc)?;
                Ok(vec![*channel, *medium, 1, 0x80, 0xf2, 0x1b, 0, 0, 0])
            }
            ((0x0c, 0x02), [_, 0, 0, 0]) => match self.changing.pop() {
                Some(0xff) => Err(0x80),
                state => Ok(vec![0x11, state.unwrap_or_default()]),
            },
            ((0x0c, 0x02), [channel, parameter, 0, 0]) => {
                let value = self.lan.get(&(*channel, *parameter)).ok_or(0x80)?;
                Ok([&[0x11], &value[..]].concat())
            }
            ((0x0a, 0x10), [0]) => {
                let size = (self.fru.len() as u16).to_le_bytes();
                Ok(vec![size[0], size[1], u8::from(self.by_words)])
            }
            ((0x0a, 0x11), [0, low, high, count]) => {
                let unit = if self.by_words { 2 } else { 1 };
                let at = usize::from(u16::from_le_bytes([*low, *high])) * unit;
                let count = (usize::from(*count) * unit).min(self.most);
                let data = self.fru.get(at..at + count).ok_or(0xc9)?;
                Ok([&[(count / unit) as u8], data].concat())
            }
            _ => Err(0xc1),
        }
    }
}

impl IpmiTransport for FakeBmc {
    fn exchange(&mut self, command: Command, data: &[u8], _: Duration) -> io::Result<Vec<u8>> {
        self.calls.push((command, data.to_vec()));
        if let Some(code) = self.codes.pop() {
            return Ok(vec![code]);
        }
        Ok(match self.respond(command, data) {
            Ok(response) => [&[COMPLETED], &response[..]].concat(),
            Err(code) => vec![code],
        })
    }
}

fn server_fru() -> FruInfo {
    FruInfo {
        chassis_part_number: "CSE-217BHQ+".into(),
        chassis_part_serial: "C217BAH31AE0215".into(),
        board_mfg: "Supermicro".into(),
        board_mfg_serial: "OM192S008735".into(),
        board_part_number: "X11DPT-B".into(),
        product_manufacturer: "Supermicro".into(),
        product_part_number: "SYS-2029BT-HNTR".into(),
        product_serial: "S328427X9123456".into(),
    }
}

#[test]
fn bmc_is_read_completely() {
    let expected = InBandBmc {
        address: Some("10.1.0.7".parse().unwrap()),
        mac: "0c:c4:7a:0a:0b:0c".into(),
        version: "1.74".into(),
        fru: server_fru(),
        problems: vec![],
    };
    for (by_words, most) in [(false, 16), (true, 16), (false, 7), (false, 1), (true, 2)] {
        let mut bmc = FakeBmc { by_words, most, ..FakeBmc::new() };
        assert_eq!(bmc.read().unwrap(), expected, "{by_words} {most}");
        let channels = bmc.calls.iter().filter(|(command, _)| *command == (0x06, 0x42)).count();
        assert_eq!(channels, 8, "the search ends at the first channel with an address");
    }
}

#[test]
fn only_reading_commands_are_sent() {
    let mut bmc = FakeBmc::new();
    bmc.read().unwrap();
    let permitted = [GET_DEVICE_ID, (0x06, 0x42), (0x0c, 0x02), (0x0a, 0x10), (0x0a, 0x11)];
    assert!(bmc.calls.iter().all(|(command, _)| permitted.contains(command)), "{:?}", bmc.calls);
}

#[test]
fn lan_parameters_are_not_read_during_a_change() {
    // `changing` contains the states in reverse order; 0xff stands for an error response.
    for (changing, address) in [
        (vec![0, 1, 1], Some("10.1.0.7")),
        // A change started while address and MAC were read.
        (vec![0, 0, 1, 0], Some("10.1.0.7")),
        // The optional parameter Set In Progress is not supported.
        (vec![0xff, 0xff], Some("10.1.0.7")),
        (vec![1; 100], None),
        (vec![2; 100], None),
    ] {
        let mut bmc = FakeBmc { changing: changing.clone(), channels: [(8, 4)].into(), ..FakeBmc::new() };
        let found = bmc.read().unwrap();
        assert_eq!(found.address, address.map(|address| address.parse().unwrap()), "{changing:?}");
        let problems: &[&str] =
            if address.is_none() { &["LAN: channel 8: another client is changing the LAN parameters"] } else { &[] };
        assert_eq!(found.problems, problems, "{changing:?}");
        assert_eq!(found.fru, server_fru());
    }
}

#[test]
fn channels_without_address_are_a_fallback() {
    let lan = |address: [u8; 4], mac: [u8; 6]| [((1, 3), address.to_vec()), ((1, 5), mac.to_vec())].into();
    let of = |lan, channels| FakeBmc { lan, channels, ..FakeBmc::new() };
    let mac = [2, 0, 0, 0, 0, 1];
    let mut only_mac = of(lan([0; 4], mac), [(1, 4)].into());
    let found = only_mac.read().unwrap();
    assert_eq!((found.address, found.mac.as_str(), found.problems.len()), (None, "02:00:00:00:00:01", 0));
    for (lan, channels, problem) in [
        (lan([0; 4], [0; 6]), [(1, 4)].into(), "LAN: channel 1 has neither an IP address nor a MAC address"),
        (lan([10, 0, 0, 1], mac), BTreeMap::from([(1, 5)]), "LAN: found no LAN channel"),
        (lan([10, 0, 0, 1], mac), BTreeMap::new(), "LAN: found no LAN channel"),
        (BTreeMap::new(), [(1, 4)].into(), "LAN: channel 1: the BMC rejected the command with completion code 0x80"),
    ] {
        let found = of(lan, channels).read().unwrap();
        assert_eq!((found.address, found.problems), (None, vec![problem.to_owned()]));
    }
}

#[test]
fn busy_bmc_is_retried_and_other_refusals_are_reported() {
    let mut bmc = FakeBmc { codes: vec![NODE_BUSY; 4], ..FakeBmc::new() };
    assert_eq!(bmc.read().unwrap().fru, server_fru());
    for codes in [vec![NODE_BUSY; 5], vec![0xc1]] {
        let error = FakeBmc { codes, ..FakeBmc::new() }.read().unwrap_err();
        assert!(error.starts_with("Get Device ID: the BMC rejected the command with completion code 0xc"), "{error}");
    }
    let error = read_from(&mut FakeBmc::new(), Duration::ZERO, Duration::ZERO).unwrap_err();
    assert!(error.starts_with("Get Device ID: the BMC does not respond: timed out"), "{error}");
}

/// Sets a byte and corrects the checksum of the area from `area.0` to before `area.1`.
fn with_byte(index: usize, value: u8, area: (usize, usize)) -> Vec<u8> {
    let mut fru = FRU.to_vec();
    fru[index] = value;
    let sum = fru[area.0..area.1 - 1].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    fru[area.1 - 1] = sum.wrapping_neg();
    fru
}

/// Offsets of the areas in the recorded inventory: header 0 to 8, chassis 8 to 48, board 48 to 104, product 104 to 168.
#[test]
fn damaged_fru_area_is_reported() {
    let product = (104, 168);
    for (fru, problem) in [
        ([&FRU[..120], &[0xee], &FRU[121..]].concat(), "FRU: product area: wrong checksum"),
        (with_byte(104, 2, product), "FRU: product area: unsupported format version"),
        (with_byte(107, 0xff, product), "FRU: product area: a field extends beyond the end of the FRU area"),
        (with_byte(4, 31, (0, 8)), "FRU: product area: the length of the FRU area is zero"),
        (with_byte(4, 32, (0, 8)), "FRU: product area: the FRU data extends beyond the end of the storage"),
        (with_byte(4, 255, (0, 8)), "FRU: product area: the FRU data extends beyond the end of the storage"),
        (with_byte(105, 0, product), "FRU: product area: the length of the FRU area is zero"),
        (with_byte(105, 255, product), "FRU: product area: the FRU data extends beyond the end of the storage"),
        (with_byte(105, 1, product), "FRU: product area: wrong checksum"),
    ] {
        let found = FakeBmc { fru, ..FakeBmc::new() }.read().unwrap();
        assert_eq!(found.problems, [problem]);
        let [product_manufacturer, product_part_number, product_serial] = [(); 3].map(|()| String::new());
        assert_eq!(found.fru, FruInfo { product_manufacturer, product_part_number, product_serial, ..server_fru() });
    }
    let found = FakeBmc { fru: with_byte(4, 0, (0, 8)), ..FakeBmc::new() }.read().unwrap();
    assert_eq!((found.problems.len(), found.fru.product_serial.as_str()), (0, ""), "an absent area is normal");
    for (fru, problem) in [
        (vec![0; 1024], "FRU: header: unsupported format version"),
        (vec![0xff; 1024], "FRU: header: unsupported format version"),
        ([&[1], &FRU[1..7], &[0]].concat(), "FRU: header: wrong checksum"),
        (vec![], "FRU: header: the FRU data extends beyond the end of the storage"),
        (vec![1; 4], "FRU: header: the FRU data extends beyond the end of the storage"),
    ] {
        let found = FakeBmc { fru, ..FakeBmc::new() }.read().unwrap();
        assert_eq!((found.problems, found.fru), (vec![problem.to_owned()], FruInfo::default()));
    }
}

#[test]
fn fru_fields_are_decoded_by_encoding() {
    let area = |fields: &[u8]| {
        let mut area = [&[1, 0, 0], fields].concat();
        let sum = area.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        area.push(sum.wrapping_neg());
        area
    };
    // The example of the specification: "IPMI" in 6-bit ASCII.
    let fields = area(&[
        0x83, 0x29, 0xdc, 0xa6, 0x42, 0x12, 0xbc, 0x02, 0xab, 0xcd, 0xc6, b' ', 0x1b, b'[', 0xe4, b'a', 0, 0xc0, 0xc1,
    ]);
    assert_eq!(parse_fields(&fields, 3).unwrap(), ["IPMI", "12-.", "abcd", "[äa", ""]);
    assert_eq!(parse_fields(&area(&[0x04, 0, 0, 0, 0, 0xc1]), 3).unwrap(), [""]);
    // Some areas lack the byte that ends the fields.
    assert_eq!(parse_fields(&area(&[0xc2, b'a', b'b']), 3).unwrap(), ["ab"]);
    assert_eq!(parse_fields(&area(&[0xc2, b'a']), 3), Err("a field extends beyond the end of the FRU area"));
    assert_eq!(parse_fields(&area(&[]), 6), Err("the FRU area is too short"));
    assert_eq!(parse_fields(&[], 3), Err("unsupported format version"));
    assert_eq!(parse_fields(&area(&[0xc2, b'a', b'b'].repeat(50)), 3).unwrap().len(), 8);
}

#[test]
fn invalid_addresses_and_macs_are_omitted() {
    for octets in [[0, 0, 0, 0], [255; 4], [127, 0, 0, 1], [224, 0, 0, 1], [0, 1, 2, 3]] {
        assert_eq!(parse_address(&octets), None, "{octets:?}");
    }
    assert_eq!(parse_address(&[192, 168, 0, 120]).unwrap().to_string(), "192.168.0.120");
    for value in [&[][..], &[1, 2, 3], &[1; 5], &[10, 0, 0, 1, 0]] {
        assert_eq!(parse_address(value), None);
    }
    assert_eq!(parse_mac(&[0x0c, 0xc4, 0x7a, 0xff, 0, 1]), "0c:c4:7a:ff:00:01");
    for value in [&[0; 6][..], &[0xff; 6], &[1, 0, 0x5e, 0, 0, 1], &[2; 5], &[2; 7], &[]] {
        assert_eq!(parse_mac(value), "", "{value:?}");
    }
}

#[test]
fn machine_without_bmc_has_none() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(read_bmc(&directory.path().join("ipmi0")).unwrap(), None);
    // The file is not a device of the driver.
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(read_bmc(&file).is_err());
}

/// Responds to everything with the same bytes.
struct Garbage(Vec<u8>);

impl IpmiTransport for Garbage {
    fn exchange(&mut self, _: Command, _: &[u8], _: Duration) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

proptest! {
    #[test]
    fn any_ipmi_response_is_handled(response in prop::collection::vec(any::<u8>(), 0..40), ok in any::<bool>()) {
        let response = if ok { [&[COMPLETED], &response[..]].concat() } else { response };
        let _ = read_from(&mut Garbage(response), PATIENCE, Duration::ZERO);
    }

    #[test]
    fn any_fru_data_are_handled(fru in prop::collection::vec(any::<u8>(), 0..300), header in any::<[u8; 6]>()) {
        let _ = check_header(&fru);
        let _ = parse_fields(&fru, 3);
        let mut header = [&[1], &header[..]].concat();
        header.push(header.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg());
        let found = FakeBmc { fru: [header, fru].concat(), ..FakeBmc::new() }.read().unwrap();
        prop_assert!(found.fru.fields().iter().all(|(_, value)| value.len() <= 4 * 63));
    }
}
