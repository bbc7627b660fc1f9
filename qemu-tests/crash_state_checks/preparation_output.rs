//! Parser of the output of the script that prepares the disks: preserved filesystems, and regions that must not be
//! written.

use crate::crash_states::ByteRanges;
use crate::host_tools::{Context, Result};

/// Preserved filesystem, or one half of a mirrored filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreservedExtent {
    pub disk: String,
    pub start: u64,
    pub length: u64,
    pub format: String,
    /// Mount point.
    pub path: String,
}

/// Parses the lines `extent: DISK START LENGTH FORMAT PATH` of the prepare script.
///
/// # Errors
/// Fails if a line is invalid, or there is no such line.
pub fn parse_extents(output: &str) -> Result<Vec<PreservedExtent>> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("extent: "));
    let extent = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [disk, start, length, format, path] = fields[..] else { return Err(format!("extent: {line}")) };
        let number = |text: &str| text.parse().context(format!("extent: {line}"));
        let (disk, format, path) = (disk.to_owned(), format.to_owned(), path.to_owned());
        Ok(PreservedExtent { disk, start: number(start)?, length: number(length)?, format, path })
    };
    let extents: Vec<PreservedExtent> = lines.map(extent).collect::<Result<_>>()?;
    if extents.is_empty() {
        Err("the script printed no extent of a preserved filesystem".to_owned())
    } else {
        Ok(extents)
    }
}

/// Parses the lines `region: DISK …`, which describe ranges that must not be written.
///
/// # Errors
/// Fails if a line is invalid.
pub fn parse_regions(output: &str, disk: &str) -> Result<ByteRanges> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("region: "));
    let own = lines.filter_map(|line| line.strip_prefix(disk)?.strip_prefix(' '));
    let parse_region = |line: &str| {
        let mut fields = line.split(' ').map(|field| field.parse::<u64>().context(format!("region: {disk} {line}")));
        let mut field = || fields.next().ok_or(format!("region: {disk} {line}"))?;
        Ok((field()?, field()?))
    };
    Ok(ByteRanges::new(own.map(parse_region).collect::<Result<Vec<_>>>()?))
}
