//! Reader of swap space. The contents of swap space are needed on another machine only if they include a hibernated
//! system.

use super::bounded_disk_reads::{DiskView, FilesystemUsage, ReadIntegers};
use super::used_ranges::UsedRanges;
use std::ops::Range;

/// Page sizes of Linux, in bytes.
const PAGES_BYTES: [u64; 4] = [4 << 10, 8 << 10, 16 << 10, 64 << 10];

/// Length of the signature, which is at the end of the first page, in bytes.
const SIGNATURE_BYTES: u64 = 10;

/// Offsets in the header (`union swap_header` of linux/swap.h).
const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;

pub(crate) fn read_swap(view: &DiskView) -> FilesystemUsage {
    for page in PAGES_BYTES {
        let Some(first) = view.read_bytes(0, page) else { continue };
        match &first[(page - SIGNATURE_BYTES) as usize..] {
            b"SWAPSPACE2" => {
                return space_after_swap(view, &first).map_or(FilesystemUsage::Doubtful("swap"), |rest| {
                    let mut used = UsedRanges::default();
                    used.add_range(rest);
                    FilesystemUsage::Used("swap", used)
                });
            }
            // The swap space contains a system that was hibernated with swsusp, uswsusp or TuxOnIce, or was created for
            // Linux 2.0.
            b"S1SUSPEND\0" | b"S2SUSPEND\0" | b"ULSUSPEND\0" | b"LINHIB0001" | b"SWAP-SPACE" => {
                return FilesystemUsage::Doubtful("swap");
            }
            _ => {}
        }
    }
    FilesystemUsage::Other
}

/// Returns the only used space, which follows the last page of the swap space. The contents of the pages are not
/// needed. The header is in the first MiB, which is always treated as used. Returns `None` if the header is
/// inconsistent in both byte orders.
fn space_after_swap(view: &DiskView, first: &[u8]) -> Option<Range<u64>> {
    let last_page = match (first.le32(VERSION), first.be32(VERSION)) {
        (1, _) => first.le32(LAST_PAGE),
        (_, 1) => first.be32(LAST_PAGE),
        _ => return None,
    };
    let end = (u64::from(last_page) + 1) * first.len() as u64;
    (last_page > 0 && end <= view.size).then_some(end..view.size)
}
