//! Comparison of machine files and approvals.

use super::GuardedChangeKind::{AddedAllocation, EndedAllocation, RemovedApproval, RemovedMachine};
use super::*;
use store::operator_documents::DocumentContent;

const PATH: &str = "machines/a.yaml";

fn documents(all: &[(&str, &str)]) -> Documents {
    let content = |text: &str| DocumentContent { text: text.to_owned(), executable: false };
    all.iter().map(|(path, text)| ((*path).to_owned(), content(text))).collect()
}

fn compare(before: &[(&str, &str)], after: &[(&str, &str)], confirmed: &[&str]) -> ProtectedChanges {
    let confirmed = confirmed.iter().map(|id| (*id).to_owned()).collect();
    let (before, after) = (documents(before), documents(after));
    find_changes((&before, &after), &SiteSnapshot::default(), Path::new("/srv"), &confirmed)
}

fn guarded(machine: &str, kind: GuardedChangeKind) -> Vec<GuardedChange> {
    vec![GuardedChange { machine: machine.to_owned(), kind }]
}

#[test]
fn locks_and_disk_keys_are_lost_only_with_a_confirmation() {
    let old = "id: m\nlocked: check\nallocation: {id: a1, disk_key: key1}\n";
    for (new, lines) in [
        (old, vec![]),
        ("id: M\nlocked: other\nallocation: {id: a1, disk_key: key1, hostname: h}\n", vec![]),
        ("id: m\nallocation: {id: a1, disk_key: key1}\n", vec!["would be unlocked; the reason of the lock is: check"]),
        ("id: m\nlocked: false\nallocation: {id: a1, disk_key: key1}\n", vec!["would be unlocked"]),
        ("id: m\nlocked: x\nallocation: {id: a1, disk_key: key2}\n", vec!["the disk key would be replaced"]),
        ("id: m\nlocked: x\nallocation: {id: a1}\n", vec!["the disk key would be removed"]),
        ("id: m\nlocked: x\n", vec!["allocation a1 would be removed or replaced", "the disk key would be removed"]),
        // Under the new id of a renamed machine, the fields are the same.
        ("id: n\n", vec!["would be unlocked", "the disk key would be removed"]),
    ] {
        let changes = compare(&[(PATH, old)], &[(PATH, new)], &[]);
        assert_eq!(changes.unconfirmed.len(), lines.len(), "{new}: {:?}", changes.unconfirmed);
        for (line, expected) in changes.unconfirmed.iter().zip(&lines) {
            assert!(line.starts_with("machine m (m): ") && line.contains(expected), "{line}");
            assert!(!line.contains("key1"), "{line}");
        }
        let confirmed = compare(&[(PATH, old)], &[(PATH, new)], &["m"]);
        assert!(confirmed.unconfirmed.is_empty(), "{new}");
        assert_eq!(confirmed.overwritten.contains("m"), !lines.is_empty(), "{new}");
    }
}

#[test]
fn changed_allocations_depend_on_the_state_of_the_machine() {
    let (with, without) = ("id: m\nallocation: {id: a1}\n", "id: m\n");
    let other = "id: m\nallocation: {id: a2}\n";
    for (old, new, expected) in [
        (with, with, vec![]),
        (with, without, guarded("m", EndedAllocation("a1".to_owned()))),
        (without, with, guarded("m", AddedAllocation("a1".to_owned()))),
        (
            with,
            other,
            [EndedAllocation("a1".to_owned()), AddedAllocation("a2".to_owned())]
                .into_iter()
                .flat_map(|kind| guarded("m", kind))
                .collect(),
        ),
    ] {
        assert_eq!(compare(&[(PATH, old)], &[(PATH, new)], &[]).guarded, expected, "{old}{new}");
        assert_eq!(
            compare(&[(PATH, old)], &[("machines/b.yaml", new)], &[]).guarded,
            expected,
            "the path is irrelevant"
        );
        assert_eq!(compare(&[(PATH, old)], &[(PATH, new)], &["m"]).guarded, [], "{old}{new}");
    }
    // A new machine file is not protected.
    assert_eq!(compare(&[], &[(PATH, with)], &[]), ProtectedChanges::default());
}

#[test]
fn removed_machines_and_approvals_are_found_in_invalid_documents() {
    let invalid = "id: m\nunknown: [1]\nallocation: {id: a1}\n";
    let removed = guarded("m", RemovedMachine(Some("a1".to_owned())));
    for confirmed in [&[][..], &["m"]] {
        assert_eq!(compare(&[(PATH, invalid)], &[], confirmed).guarded, removed, "a confirmation has no effect");
    }
    assert_eq!(compare(&[(PATH, invalid)], &[(PATH, "id: n\n")], &[]).guarded, removed);
    let unreadable = compare(&[(PATH, "id: [\n")], &[], &[]);
    assert!(unreadable.guarded.is_empty() && unreadable.unconfirmed[0].starts_with("machines/a.yaml: the stored"));
    assert_eq!(compare(&[(PATH, "id: [\n")], &[(PATH, "id: m\n")], &[]), ProtectedChanges::default());
    let approval = ("approved/M.yaml", "{}");
    assert_eq!(compare(&[approval], &[], &[]).guarded, guarded("m", RemovedApproval));
    assert_eq!(compare(&[approval], &[("approved/M.yaml", "{ }")], &[]), ProtectedChanges::default());
}

#[test]
fn only_known_machines_can_be_confirmed() {
    let documents = documents(&[(PATH, "id: m\n")]);
    let resolve = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        resolve_confirmed(&words, &documents, &SiteSnapshot::default(), Path::new("/srv"))
    };
    assert_eq!(resolve(&["M"]), Ok(BTreeSet::from(["m".to_owned()])));
    assert_eq!(resolve(&[]), Ok(BTreeSet::new()));
    assert!(resolve(&["m", "x"]).unwrap_err()[0].contains("contain no machine \"x\""));
}
