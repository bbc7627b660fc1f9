//! Differences between a machine file and the installed allocation, shown on the page of the machine and on the page
//! that orders a reinstall.

use common::encoding::encode_hex;
use maud::{Markup, html};
use sha2::{Digest, Sha256};
use site::effective_allocation::{AllocationDifference, UNRECORDED};

/// Effects of a reinstall on the fields of the allocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllocationChanges {
    pub differences: Vec<AllocationDifference>,
    /// True if the server has no record of the installed allocation. The machine file then applies.
    pub is_unrecorded: bool,
}

impl AllocationChanges {
    /// Returns a digest of the differences, used to detect later changes; empty if there are no differences.
    pub(crate) fn digest(&self) -> String {
        let lines = self.differences.iter().map(|one| format!("{one}\n")).collect::<String>();
        if lines.is_empty() { lines } else { encode_hex(Sha256::digest(lines)) }
    }

    pub(crate) fn show(&self) -> Markup {
        html! {
            @if self.is_unrecorded { p.problem { "Allocation: " (UNRECORDED) "." } }
            @if !self.differences.is_empty() {
                h2 { "Differences between the machine file and the installed allocation" }
                ul { @for one in &self.differences { li { (one) } } }
            }
        }
    }
}
