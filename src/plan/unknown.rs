//! Members of arrays and physical volumes of which nobody could tell what they belong to: the rest of it may lie anywhere.

use super::verdict::Deciding;
use super::{Mode, Verdict, Waiver};
use crate::device::DevicePath;

impl Deciding<'_> {
    /// An installation wipes what it is given. A reinstall refuses while one of its disks has such a part: of what is kept
    /// elsewhere it may be the half. What an attempt that was cut off has left half made on wiped disks is its own: it was
    /// refused before it began, had there been anything else.
    pub fn refuse_unknown(&mut self) {
        if self.request.mode == Mode::Install {
            return;
        }
        let begun = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(Waiver::Begun);
        for unknown in &self.inventory.unknown {
            let is_ours = |device: &&DevicePath| {
                let verdicts = self.verdicts_on(device);
                verdicts.contains(&Verdict::Keep) || (!begun && verdicts.iter().any(|is| *is != Verdict::NotOurs))
            };
            let ours: Vec<&str> = unknown.devices.iter().filter(is_ours).map(DevicePath::as_str).collect();
            if ours.is_empty() {
                continue;
            }
            let message = format!(
                "nobody can tell what {} belongs to, and whether that lies on other disks too: {}; repair it, or erase it where nobody needs it",
                ours.join(", "),
                unknown.reason
            );
            self.refuse("disks", message);
        }
    }
}
