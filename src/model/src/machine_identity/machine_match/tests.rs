//! Tests with a case for each row of the decision table.

use super::*;

const A: &str = "4c4c4544-0051-3010-8031-b2c04f33aaaa";
const A_SWAPPED: &str = "44454c4c-5100-1030-8031-b2c04f33aaaa";
const B: &str = "4c4c4544-0051-3010-8031-b2c04f33bbbb";
const MADE_UP: &str = "6f0c3b9e-3d57-4c57-8f0e-0c3a5d3f1f11";
const MAC: &str = "00:0e:c6:12:34:56";

fn uuid(text: &str) -> Option<Uuid> {
    Some(text.parse().unwrap())
}

fn known(id: &str, macs: &[&str], registered: Option<&str>) -> KnownMachine {
    KnownMachine {
        id: id.to_owned(),
        name: id[32..].to_owned(),
        macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        smbios_uuid: None,
        registered: RegisteredIdentity { uuid: registered.and_then(uuid), macs: Vec::new() },
    }
}

fn asks(reported: Option<&str>) -> BootIdentity {
    BootIdentity { uuid: reported.and_then(uuid), mac: Some(MAC.to_owned()) }
}

/// Formats the result as one word, with the last digits of the id.
fn matched(reported: Option<&str>, by_uuid: Option<&KnownMachine>, by_mac: &[KnownMachine]) -> String {
    match match_machine(&asks(reported), by_uuid, by_mac) {
        MachineMatch::Proven { id, warning } => {
            format!("proven {}{}", &id[32..], if warning.is_some() { ", warned" } else { "" })
        }
        MachineMatch::Unproven { id, .. } => format!("unproven {}", &id[32..]),
        MachineMatch::Unknown(uuid) => format!("unknown {}", &uuid.to_string()[32..]),
        MachineMatch::Withheld { id, why } => format!("withheld {}: {why}", &id[32..]),
        MachineMatch::Ambiguous(why) => format!("ambiguous: {why}"),
        MachineMatch::Unidentified => "unidentified".to_owned(),
    }
}

#[test]
fn uuid_of_a_machine_file_takes_precedence_over_macs() {
    let (open, listed, other) = (known(A, &[], None), known(A, &[MAC], None), known(A, &["52:54:00:00:00:01"], None));
    assert_eq!(matched(Some(A), Some(&open), &[]), "proven aaaa");
    assert_eq!(matched(Some(A_SWAPPED), Some(&listed), std::slice::from_ref(&listed)), "proven aaaa");
    let of_other = known(B, &[MAC], Some(B));
    assert_eq!(matched(Some(A), Some(&open), std::slice::from_ref(&of_other)), "proven aaaa, warned");
    let withheld = matched(Some(A), Some(&other), &[of_other]);
    assert!(withheld.starts_with("withheld aaaa: ") && withheld.contains(MAC), "{withheld}");
    let BootIdentity { uuid, .. } = asks(Some(A));
    let without_mac = BootIdentity { uuid, mac: None };
    assert!(matches!(match_machine(&without_mac, Some(&other), &[]), MachineMatch::Proven { warning: None, .. }));
}

#[test]
fn mac_with_another_uuid_is_unproven_or_withheld() {
    for (registered, expected) in [(None, "unproven aaaa"), (Some(B), "unproven aaaa"), (Some(A), "withheld aaaa")] {
        let found = matched(Some(B), None, &[known(A, &[MAC], registered)]);
        assert!(found.starts_with(expected), "{registered:?}: {found}");
        if expected.starts_with("withheld") {
            assert!(found.contains(A) && found.contains(B) && found.contains("machine rename"), "{found}");
        }
    }
    let made_up = known(MADE_UP, &[MAC], Some(A));
    assert_eq!(matched(Some(A_SWAPPED), None, std::slice::from_ref(&made_up)), "unproven 1f11");
    assert!(matched(Some(B), None, std::slice::from_ref(&made_up)).starts_with("withheld 1f11"));
    // `smbios_uuid` in the file takes precedence over the UUID with which the machine has registered.
    let said = KnownMachine { smbios_uuid: uuid(B), ..made_up };
    assert_eq!(matched(Some(B), None, std::slice::from_ref(&said)), "proven 1f11");
    assert!(matched(Some(A), None, std::slice::from_ref(&said)).starts_with("withheld 1f11"));
    assert_eq!(matched(None, None, &[said]), "unproven 1f11");
}

#[test]
fn mac_identifies_the_machine_without_usable_uuid() {
    assert_eq!(matched(None, None, &[known(MADE_UP, &[MAC], None)]), "proven 1f11");
    assert_eq!(matched(None, None, &[known(A, &[MAC], Some(A))]), "unproven aaaa");
    assert_eq!(matched(None, None, &[]), "unidentified");
    assert_eq!(matched(Some(B), None, &[]), "unknown bbbb");
}

#[test]
fn mac_of_several_machines_identifies_none() {
    let several = [known(A, &[MAC], None), known(MADE_UP, &[MAC], None)];
    for reported in [None, Some(B)] {
        let found = matched(reported, None, &several);
        assert!(found.starts_with("ambiguous") && found.contains(A) && found.contains(MADE_UP), "{found}");
    }
    assert_eq!(matched(Some(A), Some(&several[0]), &several), "proven aaaa, warned");
}
