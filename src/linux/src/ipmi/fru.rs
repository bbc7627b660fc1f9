//! FRU inventory of the BMC (IPMI Platform Management FRU Information Storage Definition 1.3): part and serial numbers
//! of chassis, board and product. Areas with invalid checksums or lengths are reported and omitted.

use super::{Bmc, Command, IpmiError};
use model::bmc::FruInfo;

const GET_AREA_INFO: Command = (0x0a, 0x10);
const READ_DATA: Command = (0x0a, 0x11);

/// FRU device of the server itself.
const DEVICE: u8 = 0;

/// Maximum number of bytes per read. Every BMC supports reads of this size. The number is even, because some devices
/// are read in words of two bytes.
const CHUNK: usize = 16;

const HEADER_BYTES: usize = 8;
/// Format version of the header and of each area.
const VERSION: u8 = 1;
/// Type/length byte that ends the fields of an area.
const END_OF_FIELDS: u8 = 0xc1;
/// Maximum number of fields that are read from an area.
const MAXIMUM_FIELDS: usize = 8;

/// Area of the FRU inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FruArea {
    Chassis,
    Board,
    Product,
}

impl FruArea {
    /// Returns the index of the header byte that contains the offset of the area.
    fn header_index(self) -> usize {
        match self {
            FruArea::Chassis => 2,
            FruArea::Board => 3,
            FruArea::Product => 4,
        }
    }

    /// Returns the offset of the first field of an area. The field follows the version, the length and one more item:
    /// the chassis type, the language and date of the board, or the language of the product.
    fn first_field(self) -> usize {
        match self {
            FruArea::Chassis | FruArea::Product => 3,
            FruArea::Board => 6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            FruArea::Chassis => "chassis area",
            FruArea::Board => "board area",
            FruArea::Product => "product area",
        }
    }
}

/// Reads the FRU inventory. Areas that cannot be read or parsed are added to `problems`.
pub(super) fn read_fru(bmc: &mut Bmc, problems: &mut Vec<String>) -> Result<FruInfo, String> {
    let info = bmc.call(GET_AREA_INFO, &[DEVICE]).map_err(|error| error.to_string())?;
    let [low, high, access, ..] = info[..] else {
        return Err("the response to Get FRU Area Info is too short".to_owned());
    };
    let storage = FruStorage { bytes: usize::from(u16::from_le_bytes([low, high])), by_words: access & 1 != 0 };
    let header = storage.read(bmc, 0, HEADER_BYTES).map_err(|error| format!("header: {error}"))?;
    check_header(&header).map_err(|why| format!("header: {why}"))?;
    let mut fru = FruInfo::default();
    for area in [FruArea::Chassis, FruArea::Board, FruArea::Product] {
        let offset = usize::from(header[area.header_index()]) * 8;
        if offset == 0 {
            continue;
        }
        let fields = read_area(bmc, &storage, offset)
            .map_err(|error| error.to_string())
            .and_then(|bytes| parse_fields(&bytes, area.first_field()).map_err(str::to_owned));
        match fields {
            Ok(fields) => set_fields(&mut fru, area, &fields),
            Err(why) => problems.push(format!("FRU: {}: {why}", area.name())),
        }
    }
    Ok(fru)
}

/// Storage of the FRU inventory.
struct FruStorage {
    bytes: usize,
    /// True if offsets and lengths are in words instead of bytes.
    by_words: bool,
}

impl FruStorage {
    /// Reads a range of bytes. Both ends of the range must be multiples of 8.
    fn read(&self, bmc: &mut Bmc, offset: usize, length: usize) -> Result<Vec<u8>, IpmiError> {
        if offset + length > self.bytes {
            return Err(IpmiError::Malformed("the FRU data extends beyond the end of the storage"));
        }
        let unit = if self.by_words { 2 } else { 1 };
        let mut read = Vec::with_capacity(length);
        while read.len() < length {
            let (at, count) = ((offset + read.len()) / unit, (length - read.len()).min(CHUNK) / unit);
            let Ok(at_bytes) = u16::try_from(at).map(u16::to_le_bytes) else {
                return Err(IpmiError::Malformed("the FRU data extends beyond the end of the storage"));
            };
            let response = bmc.call(READ_DATA, &[DEVICE, at_bytes[0], at_bytes[1], count as u8])?;
            let Some((&returned, data)) = response.split_first() else {
                return Err(IpmiError::Malformed("the response to Read FRU Data is too short"));
            };
            let returned = usize::from(returned) * unit;
            if returned == 0 || returned > count * unit || returned > data.len() {
                return Err(IpmiError::Malformed("the response to Read FRU Data has an unexpected length"));
            }
            read.extend_from_slice(&data[..returned]);
        }
        Ok(read)
    }
}

/// Reads an area. The second byte of an area is its length, in units of 8 bytes.
fn read_area(bmc: &mut Bmc, storage: &FruStorage, offset: usize) -> Result<Vec<u8>, IpmiError> {
    let start = storage.read(bmc, offset, 8)?;
    let length = usize::from(start[1]) * 8;
    if length == 0 {
        return Err(IpmiError::Malformed("the length of the FRU area is zero"));
    }
    let rest = if length > 8 { storage.read(bmc, offset + 8, length - 8)? } else { Vec::new() };
    Ok([start, rest].concat())
}

pub(super) fn check_header(header: &[u8]) -> Result<(), &'static str> {
    match header.first() {
        _ if header.len() != HEADER_BYTES => Err("wrong length"),
        Some(version) if version & 0x0f != VERSION => Err("unsupported format version"),
        _ if !has_valid_checksum(header) => Err("wrong checksum"),
        _ => Ok(()),
    }
}

/// Returns whether the bytes of a header or area, including its checksum, add up to zero.
fn has_valid_checksum(bytes: &[u8]) -> bool {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// Parses the fields of an area.
///
/// # Errors
/// Returns an error if the version or the checksum is wrong, or a field extends beyond the end of the FRU area.
pub(super) fn parse_fields(area: &[u8], first: usize) -> Result<Vec<String>, &'static str> {
    if area.first().is_none_or(|version| version & 0x0f != VERSION) {
        return Err("unsupported format version");
    }
    if !has_valid_checksum(area) {
        return Err("wrong checksum");
    }
    // The fields end before the last byte of the area, which is the checksum.
    let mut rest = area.get(first..area.len() - 1).ok_or("the FRU area is too short")?;
    let mut fields = Vec::new();
    while fields.len() < MAXIMUM_FIELDS {
        let Some((&type_length, after)) = rest.split_first().filter(|(byte, _)| **byte != END_OF_FIELDS) else { break };
        let length = usize::from(type_length & 0x3f);
        let (bytes, after) = after.split_at_checked(length).ok_or("a field extends beyond the end of the FRU area")?;
        fields.push(decode_field(type_length >> 6, bytes));
        rest = after;
    }
    Ok(fields)
}

/// Decodes a field: binary, BCD plus, 6-bit ASCII, or 8-bit text. Control characters are removed.
fn decode_field(encoding: u8, bytes: &[u8]) -> String {
    let text: String = match encoding {
        0 if bytes.iter().all(|byte| *byte == 0) => String::new(),
        0 => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        1 => bytes.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]).filter_map(decode_bcd).collect(),
        2 => bytes.chunks(3).flat_map(unpack_six_bits).collect(),
        _ => bytes.iter().map(|byte| char::from(*byte)).collect(),
    };
    text.chars().filter(|character| !character.is_control()).collect::<String>().trim().to_owned()
}

fn decode_bcd(digit: u8) -> Option<char> {
    match digit {
        0..=9 => Some(char::from(b'0' + digit)),
        0x0a => Some(' '),
        0x0b => Some('-'),
        0x0c => Some('.'),
        _ => None,
    }
}

/// Unpacks up to four characters of 6 bits from three bytes, the lowest bits first.
fn unpack_six_bits(bytes: &[u8]) -> impl Iterator<Item = char> {
    let packed = bytes.iter().rev().fold(0_u32, |packed, byte| packed << 8 | u32::from(*byte));
    let characters = bytes.len() * 8 / 6;
    (0..characters).map(move |index| char::from((packed >> (6 * index) & 0x3f) as u8 + b' '))
}

/// Stores the fields of an area by their positions.
fn set_fields(fru: &mut FruInfo, area: FruArea, fields: &[String]) {
    let field = |index: usize| fields.get(index).cloned().unwrap_or_default();
    match area {
        FruArea::Chassis => (fru.chassis_part_number, fru.chassis_part_serial) = (field(0), field(1)),
        // The first fields of a board area are manufacturer, product name, serial number and part number.
        FruArea::Board => (fru.board_mfg, fru.board_mfg_serial, fru.board_part_number) = (field(0), field(2), field(3)),
        // The first fields of a product area are manufacturer, product name, part number, version and serial number.
        FruArea::Product => {
            (fru.product_manufacturer, fru.product_part_number, fru.product_serial) = (field(0), field(2), field(4));
        }
    }
}
