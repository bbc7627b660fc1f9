//! Checks whether an XFS was unmounted cleanly: its log must end with an unmount record (fs/xfs/xfs_log_recover.c,
//! xlog_check_unmount_rec).
//!
//! The log is circular. Each of its sectors starts with a cycle number, so the log ends at the sector where the number
//! decreases by one.

use crate::used_blocks::bounded_disk_reads::{DiskView, ReadIntegers};

const SECTOR: u64 = 512;

/// Magic number of a record header.
const RECORD: u32 = 0xfeed_babe;

/// Offsets in a record's header.
const CYCLE_OFFSET: usize = 4;
const VERSION: usize = 8;
const LENGTH: usize = 12;
const OPERATIONS: usize = 40;
const BUFFER_BYTES: usize = 320;

/// Maximum number of bytes of a record with one header. Longer records have several headers.
const HEADER_REACH: u32 = 32 << 10;

/// Offset of the flags in the only operation of an unmount record.
const FLAGS: usize = 9;
const UNMOUNT: u8 = 0x20;

/// Maximum size of a log, in bytes.
const MAXIMUM_LOG_BYTES: u64 = 2 << 30;

/// Number of bytes per read.
const STEP: u64 = 1 << 20;

/// Returns whether the log ends with an unmount record.
pub(crate) fn is_clean(view: &DiskView, start: u64, length: u64) -> bool {
    let Some(log) = XfsLog::read_log(view, start, length) else { return false };
    log.ends_with_unmount(view, start).unwrap_or(false)
}

/// Contents of the log: the cycle number of each sector (`rounds`), and the sectors with record headers.
struct XfsLog {
    rounds: Vec<u32>,
    /// Numbers of the sectors that contain record headers.
    headers: Vec<u32>,
}

impl XfsLog {
    fn read_log(view: &DiskView, start: u64, length: u64) -> Option<XfsLog> {
        if length == 0 || length > MAXIMUM_LOG_BYTES || !length.is_multiple_of(SECTOR) {
            return None;
        }
        let mut log = XfsLog { rounds: Vec::new(), headers: Vec::new() };
        let mut at = 0;
        while at < length {
            let step = STEP.min(length - at);
            for sector in view.read_bytes(start + at, step)?.chunks(SECTOR as usize) {
                let is_header = sector.be32(0) == RECORD;
                if is_header {
                    log.headers.push(u32::try_from(log.rounds.len()).ok()?);
                }
                log.rounds.push(sector.be32(if is_header { CYCLE_OFFSET } else { 0 }));
            }
            at += step;
        }
        Some(log)
    }

    /// Returns the number of the sector after the last record; `None` if the cycle numbers are inconsistent.
    fn find_head(&self) -> Option<usize> {
        let first = *self.rounds.first()?;
        let head = self.rounds.iter().position(|round| *round != first).unwrap_or(self.rounds.len());
        // All sectors from the end of the log (`head`) on must belong to the previous cycle. Otherwise a write was
        // torn.
        let before = first.checked_sub(1)?;
        self.rounds[head..].iter().all(|round| *round == before).then_some(head)
    }

    fn ends_with_unmount(&self, view: &DiskView, start: u64) -> Option<bool> {
        let (head, count) = (self.find_head()?, self.rounds.len());
        let last = self.headers.iter().rev().find(|header| (**header as usize) < head).or(self.headers.last())?;
        let last = *last as usize;
        let header = view.read_bytes(start + last as u64 * SECTOR, SECTOR)?;
        let headers = match header.be32(VERSION) & 2 {
            0 => 1,
            _ => header.be32(BUFFER_BYTES).div_ceil(HEADER_REACH).max(1) as usize,
        };
        let sectors = header.be32(LENGTH).div_ceil(SECTOR as u32) as usize;
        let ends_at_head = (last + headers + sectors) % count == head % count;
        let operation = view.read_bytes(start + ((last + headers) % count) as u64 * SECTOR, SECTOR)?;
        Some(ends_at_head && header.be32(OPERATIONS) == 1 && operation[FLAGS] & UNMOUNT != 0)
    }
}
