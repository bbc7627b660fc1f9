//! Swap: nothing in it outlives its machine, but for a system that sleeps in it.

use super::{Found, View};

/// Pages of all sizes that Linux has.
const PAGES_BYTES: [u64; 4] = [4 << 10, 8 << 10, 16 << 10, 64 << 10];

/// At the end of the first page.
const SIGNATURE_BYTES: u64 = 10;

pub fn used(view: &View) -> Found {
    let at = |page: &u64| view.bytes(page - SIGNATURE_BYTES, SIGNATURE_BYTES);
    for signature in PAGES_BYTES.iter().filter_map(at) {
        match &*signature {
            // The header lies in the first MiB, which is always used.
            b"SWAPSPACE2" => return Found::Used("swap", Vec::new()),
            // swsusp, uswsusp, TuxOnIce, and swap of Linux 2.0.
            b"S1SUSPEND\0" | b"S2SUSPEND\0" | b"ULSUSPEND\0" | b"LINHIB0001" | b"SWAP-SPACE" => {
                return Found::Doubtful("swap");
            }
            _ => {}
        }
    }
    Found::Other
}
