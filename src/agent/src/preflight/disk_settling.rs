//! Detection that all disks have appeared. Disks appear one after the other, and a disk that appears early may match
//! hints that are meant for a later disk.

use model::inventory::InventoryDisk;
use model::pool_machine_disks::ConnectedDisk;
use std::time::Duration;

/// Time without changes after which the disks are considered stable.
const STABLE_DURATION: Duration = Duration::from_secs(5);

/// Time limits for waiting for disks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskWaitLimits {
    /// Time after which the machine no longer waits for an absent disk. Disks behind slow controllers appear late.
    pub late: Duration,
    /// Time after which the machine proceeds even if disks still appear and disappear. The plan then uses the disks
    /// that are present.
    pub restless: Duration,
}

impl DiskWaitLimits {
    /// Limits of the wait for the disks of a layout.
    pub(crate) const LAYOUT: DiskWaitLimits =
        DiskWaitLimits { late: Duration::from_secs(30), restless: Duration::from_secs(60) };
    /// Limits of the wait for the recorded disks of a pool machine. The disks of a full enclosure need minutes to spin
    /// up, and a pool machine can wait.
    pub(crate) const POOL: DiskWaitLimits =
        DiskWaitLimits { late: Duration::from_secs(180), restless: Duration::from_secs(240) };
    /// Limits of the wait for the disks of a pool machine without a record of earlier boots. The expected disks are
    /// unknown, and each of them may appear late.
    pub(crate) const FIRST_BOOT: DiskWaitLimits =
        DiskWaitLimits { late: Duration::from_secs(60), restless: Duration::from_secs(240) };
}

/// Last state of the disks, and the time of its last change.
#[derive(Debug)]
pub(crate) struct DiskSettling {
    picture: Option<Vec<ConnectedDisk>>,
    since: Duration,
    patience: DiskWaitLimits,
}

impl DiskSettling {
    pub(crate) fn with_patience(patience: DiskWaitLimits) -> DiskSettling {
        DiskSettling { picture: None, since: Duration::ZERO, patience }
    }

    /// Returns whether the wait for disks is over. `complete` is true if all expected disks are present. `elapsed` is
    /// the duration of the wait so far.
    pub(crate) fn is_over(&mut self, disks: &[InventoryDisk], complete: bool, elapsed: Duration) -> bool {
        let picture: Vec<ConnectedDisk> = disks.iter().map(ConnectedDisk::from).collect();
        if self.picture.as_ref() != Some(&picture) {
            (self.picture, self.since) = (Some(picture), elapsed);
        }
        let is_still = elapsed.saturating_sub(self.since) >= STABLE_DURATION;
        elapsed >= self.patience.restless || (is_still && (complete || elapsed >= self.patience.late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(names: &str) -> Vec<InventoryDisk> {
        let names = names.chars();
        names
            .map(|name| InventoryDisk { name: format!("sd{name}").into(), size_bytes: 9, ..InventoryDisk::default() })
            .collect()
    }

    /// Tuples of the time in seconds, the present disks, whether all disks of the layout are present, and whether the
    /// wait is over.
    type Looks = &'static [(u64, &'static str, bool, bool)];

    #[test]
    fn wait_ends_when_complete_disks_remain_unchanged() {
        let cases: [(&str, Looks); 5] = [
            (
                "all disks present from the start",
                &[(0, "ab", true, false), (4, "ab", true, false), (5, "ab", true, true)],
            ),
            (
                "a smaller one comes late",
                &[
                    (0, "a", true, false),
                    (3, "a", true, false),
                    (4, "ab", true, false),
                    (8, "ab", true, false),
                    (9, "ab", true, true),
                ],
            ),
            (
                "one never comes",
                &[(0, "a", false, false), (10, "a", false, false), (29, "a", false, false), (30, "a", false, true)],
            ),
            (
                "one comes at the last moment",
                &[(0, "a", false, false), (29, "ab", true, false), (33, "ab", true, false), (34, "ab", true, true)],
            ),
            (
                "one comes and goes",
                &[
                    (0, "a", true, false),
                    (3, "ab", true, false),
                    (31, "a", true, false),
                    (58, "ab", true, false),
                    (60, "a", true, true),
                ],
            ),
        ];
        for (name, looks) in cases {
            let mut still = DiskSettling::with_patience(DiskWaitLimits::LAYOUT);
            for (second, there, complete, over) in looks {
                let is_over = still.is_over(&disks(there), *complete, Duration::from_secs(*second));
                assert_eq!(is_over, *over, "{name}, second {second}");
            }
        }
    }

    #[test]
    fn another_disk_of_the_same_name_restarts_the_wait() {
        let (mut one, mut still) = (disks("a"), DiskSettling::with_patience(DiskWaitLimits::LAYOUT));
        assert!(!still.is_over(&one, true, Duration::ZERO));
        one[0].diskseq = 7;
        assert!(!still.is_over(&one, true, Duration::from_secs(5)));
        assert!(still.is_over(&one, true, Duration::from_secs(10)));
    }

    /// A pool machine has no layout, so any set of disks would count as complete.
    #[test]
    fn pool_machine_waits_for_known_disks() {
        let cases: [(&str, DiskWaitLimits, Looks); 4] = [
            ("all known disks are present", DiskWaitLimits::POOL, &[(0, "ab", true, false), (5, "ab", true, true)]),
            (
                "a known disk is behind a slow controller",
                DiskWaitLimits::POOL,
                &[(0, "a", false, false), (60, "a", false, false), (150, "ab", true, false), (155, "ab", true, true)],
            ),
            (
                "a known disk is gone",
                DiskWaitLimits::POOL,
                &[(0, "a", false, false), (179, "a", false, false), (180, "a", false, true)],
            ),
            (
                "no earlier boot is known",
                DiskWaitLimits::FIRST_BOOT,
                &[(0, "a", false, false), (45, "ab", false, false), (59, "ab", false, false), (60, "ab", false, true)],
            ),
        ];
        for (name, patience, looks) in cases {
            let mut still = DiskSettling::with_patience(patience);
            for (second, there, complete, over) in looks {
                let is_over = still.is_over(&disks(there), *complete, Duration::from_secs(*second));
                assert_eq!(is_over, *over, "{name}, second {second}");
            }
        }
    }
}
