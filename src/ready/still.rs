//! Have all disks appeared? Controllers show them one after the other: an early disk may match hints that mean a late one.

use crate::device::KernelName;
use crate::inventory::Disk;
use std::time::Duration;

/// The disks must stay unchanged for this long.
const STILL: Duration = Duration::from_secs(5);

/// Disks behind slow controllers spin up late. The disks of the layout get this long to appear.
const LATE_DISKS: Duration = Duration::from_secs(30);

/// A disk that comes and goes must not hold the machine for ever. After this long, the plan decides with what it finds.
const RESTLESS: Duration = Duration::from_secs(60);

/// Name, sequence number, size, serial number and WWN of each disk at one moment.
type Picture = Vec<(KernelName, u64, u64, String, String)>;

/// The last picture, and since when it is unchanged.
#[derive(Debug, Default)]
pub struct Stillness {
    picture: Option<Picture>,
    since: Duration,
}

impl Stillness {
    /// Is the waiting over? `complete`: each disk of the layout is found. `elapsed`: how long the waiting has taken until now.
    pub fn is_over(&mut self, disks: &[Disk], complete: bool, elapsed: Duration) -> bool {
        let picture: Picture = disks
            .iter()
            .map(|disk| (disk.name.clone(), disk.diskseq, disk.size_bytes, disk.serial.clone(), disk.wwn.clone()))
            .collect();
        if self.picture.as_ref() != Some(&picture) {
            (self.picture, self.since) = (Some(picture), elapsed);
        }
        let is_still = elapsed.saturating_sub(self.since) >= STILL;
        elapsed >= RESTLESS || (is_still && (complete || elapsed >= LATE_DISKS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(names: &str) -> Vec<Disk> {
        let names = names.chars();
        names.map(|name| Disk { name: format!("sd{name}").into(), size_bytes: 9, ..Disk::default() }).collect()
    }

    /// Second, disks that are there, whether all disks of the layout are found, and whether the waiting is over.
    type Looks = &'static [(u64, &'static str, bool, bool)];

    #[test]
    fn the_first_picture_in_which_all_is_found_is_not_the_last() {
        let cases: [(&str, Looks); 5] = [
            ("all there from the beginning", &[(0, "ab", true, false), (4, "ab", true, false), (5, "ab", true, true)]),
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
            let mut still = Stillness::default();
            for (second, there, complete, over) in looks {
                let is_over = still.is_over(&disks(there), *complete, Duration::from_secs(*second));
                assert_eq!(is_over, *over, "{name}, second {second}");
            }
        }
    }

    #[test]
    fn another_disk_of_the_same_name_is_another_picture() {
        let (mut one, mut still) = (disks("a"), Stillness::default());
        assert!(!still.is_over(&one, true, Duration::ZERO));
        one[0].diskseq = 7;
        assert!(!still.is_over(&one, true, Duration::from_secs(5)));
        assert!(still.is_over(&one, true, Duration::from_secs(10)));
    }
}
