//! Order of installations, determined without clocks.
//!
//! The clock of a machine without a battery starts in the past, and the clocks of different machines differ. A marker
//! therefore lists the digests of the installations that it replaced. An installation is newer than another
//! installation only if its marker lists the digest of the other one. Markers of earlier versions contain no list, so
//! their installations are never newer than another installation.

use super::InstallMarker;
use common::encoding::format_sha256;

/// Maximum length of [`InstallMarker::supersedes`]. If the list would be longer, its oldest entries are dropped. An
/// installation whose entry was dropped is treated as unrelated.
const MAXIMUM_SUPERSEDED: usize = 32;

impl InstallMarker {
    /// Returns `sha256:HEX` of the marker, which identifies the installation. The digest omits allocation and project,
    /// so that it stays the same when a reinstall with `drophammer.keep` assigns the marker to a new allocation. The
    /// digest also omits the list of replaced installations, because earlier versions of drophammer drop this list when
    /// they rewrite a marker, and the list of renewed volumes, which earlier versions do not read.
    pub fn digest(&self) -> String {
        let (allocation, project, supersedes) = (String::new(), String::new(), Vec::new());
        let identity = InstallMarker { allocation, project, supersedes, renewed: None, ..self.clone() };
        let text = serde_json::to_vec(&identity).unwrap_or_default();
        format_sha256(text)
    }

    /// Returns whether this installation replaced the installation `other`.
    pub fn has_superseded(&self, other: &InstallMarker) -> bool {
        self.supersedes.contains(&other.digest())
    }
}

/// Returns the index of the newest installation, which replaced all other installations. Returns `None` if there are no
/// markers, or if the order of the installations is not proven. Copies of one marker, such as on both halves of a
/// mirror, are treated as one installation.
pub fn find_newest(markers: &[&InstallMarker]) -> Option<usize> {
    let digests: Vec<String> = markers.iter().map(|marker| marker.digest()).collect();
    let is_newer = |one: usize, other: usize| markers[one].supersedes.contains(&digests[other]);
    let replaced_others = |candidate: &usize| {
        let mut others = (0..markers.len()).filter(|other| digests[*other] != digests[*candidate]);
        others.all(|other| is_newer(*candidate, other) && !is_newer(other, *candidate))
    };
    (0..markers.len()).find(replaced_others)
}

/// Returns the value of [`InstallMarker::supersedes`] for a new marker: the digests of the installations in `replaced`,
/// and of all installations that the markers in `replaced` list as replaced.
pub fn collect_superseded<'a>(replaced: impl Iterator<Item = &'a InstallMarker>) -> Vec<String> {
    let replaced: Vec<&InstallMarker> = replaced.collect();
    let mut digests: Vec<String> = Vec::new();
    let inherited = replaced.iter().flat_map(|marker| marker.supersedes.iter().cloned());
    for digest in replaced.iter().map(|marker| marker.digest()).chain(inherited) {
        if digests.len() < MAXIMUM_SUPERSEDED && !digests.contains(&digest) {
            digests.push(digest);
        }
    }
    digests
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: &str = "1970-01-01T00:00:07Z";

    fn marker(order: &str, replaced: &[&InstallMarker]) -> InstallMarker {
        let supersedes = collect_superseded(replaced.iter().copied());
        let order = common::empty_string_as_none::non_empty(order.to_owned());
        InstallMarker {
            machine: "m".into(),
            allocation: "a".into(),
            time: DEAD.into(),
            order,
            supersedes,
            ..InstallMarker::default()
        }
    }

    #[test]
    fn newest_installation_supersedes_all_others() {
        let first = InstallMarker { time: "2099-01-01T00:00:00Z".into(), ..marker("1", &[]) };
        let second = marker("2", &[&first]);
        let third = marker("3", &[&second]);
        let unrelated = InstallMarker { time: "2099-12-31T00:00:00Z".into(), ..marker("4", &[]) };
        for (markers, newest) in [
            (vec![], None),
            (vec![&first], Some(0)),
            (vec![&first, &first], Some(0)),
            (vec![&first, &second], Some(1)),
            (vec![&third, &first, &second], Some(0)),
            (vec![&first, &third], Some(1)),
            (vec![&unrelated, &first], None),
            (vec![&third, &unrelated], None),
        ] {
            assert_eq!(find_newest(&markers), newest, "{markers:?}");
        }
    }

    #[test]
    fn mutually_superseding_installations_have_no_order() {
        let (mut one, mut other) = (marker("1", &[]), marker("2", &[]));
        (one.supersedes, other.supersedes) = (vec![other.digest()], vec![one.digest()]);
        assert_eq!(find_newest(&[&one, &other]), None);
    }

    /// Earlier versions drop the list when they rewrite a marker, and the allocation and project may change.
    #[test]
    fn digest_ignores_allocation_project_and_superseded_list() {
        let first = marker("1", &[]);
        let second = marker("2", &[&first]);
        let changed =
            InstallMarker { allocation: "b".into(), project: "p".into(), supersedes: vec![], ..second.clone() };
        assert_eq!(changed.digest(), second.digest());
        let read = InstallMarker { renewed: Some(vec!["vg0/root".into()]), ..second.clone() };
        assert_eq!(read.digest(), second.digest());
        let later = InstallMarker { time: "2026-11-26T00:00:00Z".into(), ..second.clone() };
        assert!(later.digest() != second.digest() && second.digest() != first.digest());
    }

    #[test]
    fn marker_without_superseded_list_supersedes_nothing() {
        let old =
            br#"{"machine": "m", "allocation": "a", "image": "i", "layout": "l", "time": "2099-01-01T00:00:00Z"}"#;
        let old: InstallMarker = serde_json::from_slice(old).unwrap();
        let new = marker("1", &[&old]);
        assert!(old.supersedes.is_empty() && new.has_superseded(&old) && !old.has_superseded(&new));
        assert_eq!(find_newest(&[&old, &new]), Some(1));
        assert_eq!(find_newest(&[&old, &marker("1", &[])]), None);
    }

    #[test]
    fn superseded_list_is_limited() {
        let mut last = marker("0", &[]);
        for order in 1..100 {
            let next = marker(&order.to_string(), &[&last]);
            assert!(next.has_superseded(&last) && next.supersedes.len() <= MAXIMUM_SUPERSEDED);
            last = next;
        }
    }
}
