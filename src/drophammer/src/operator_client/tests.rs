use super::machine_list::format_machines;
use super::reinstall::describe_next_steps;
use super::*;
use ::server::operator::{ReinstallOrder, ReinstallOutcome as Ended, WaitingMarker};
use serde_json::json;
use site::effective_allocation::{AllocationDifference, DifferenceEffect};

fn machine(id: &str, name: &str) -> MachineSummary {
    let (allocation, image) = (Some("a1".to_owned()), Some("debian-12".to_owned()));
    let (size, wanted, last_seen) = (Some("c1".to_owned()), image.clone(), Some("2026-01-01T00:00:00Z".to_owned()));
    let (id, name, layout) = (id.to_owned(), name.to_owned(), Some("default".to_owned()));
    MachineSummary {
        id,
        name,
        size,
        allocation,
        image,
        wanted,
        last_seen,
        layout,
        installed: true,
        attempts: 3,
        ..MachineSummary::default()
    }
}

fn order() -> ReinstallOrder {
    let text = |text: &str| text.to_owned();
    let (id, image, created) = (text("o1"), text("debian-13"), text("2026-01-01T00:00:00Z"));
    ReinstallOrder {
        id,
        image,
        created,
        attempts: 2,
        begun: true,
        without_marker: false,
        change_promise: false,
        give_up: vec![],
        replace_newer: false,
        apply_allocation: false,
        fencing: None,
        confirmed: true,
        disks: vec![],
        attempt: None,
        given_up: false,
        handed: None,
    }
}

#[test]
fn machines_are_found_by_id_and_by_a_name_that_is_theirs_alone() {
    let all = [machine("4c-1", "one"), machine("4c-2", "two"), machine("4c-3", "two"), machine("4c-4", "")];
    assert_eq!(find_machine(&all, "4C-1").unwrap().name, "one");
    assert_eq!(find_machine(&all, "one").unwrap().id, "4c-1");
    assert_eq!(find_machine(&all, "two").unwrap_err(), "2 machines are named \"two\": use the id, 4c-2 or 4c-3");
    for none in ["three", ""] {
        assert!(find_machine(&all, none).unwrap_err().contains("`drophammer machine list` lists"), "{none}");
    }
}

#[test]
fn no_name_is_more_than_one_step() {
    assert_eq!(
        (encode_segment("debian-12.0"), encode_segment("a/b ü")),
        ("/debian-12.0".to_owned(), "/a%2Fb%20%C3%BC".to_owned())
    );
}

#[test]
fn the_list() {
    let outcome = |success, message: &str| {
        let (order, image) = ("o0".to_owned(), "debian-13".to_owned());
        Some(Ended { order, image, success, message: message.to_owned(), time: String::new() })
    };
    let given_up = ReinstallOrder { given_up: true, ..order() };
    let all = [
        MachineSummary {
            order: Some(order()),
            outcome: outcome(false, "image.burn:\u{1b}[2Jno\nmore"),
            ..machine("1", "one")
        },
        MachineSummary { order: Some(given_up), ..machine("2", "two") },
        MachineSummary { locked: Some("why".to_owned()), outcome: outcome(true, "fine"), ..machine("3", "three") },
        MachineSummary { installed: false, image: None, ..machine("4", "four") },
        MachineSummary { id: "5".to_owned(), ..MachineSummary::default() },
        MachineSummary { installed: false, waits: Some(Default::default()), ..machine("6", "six") },
        MachineSummary { needs_confirmation: true, ..machine("7", "seven") },
        MachineSummary {
            needs_confirmation: true,
            on_disk: Some(WaitingMarker { image: "debian-14".to_owned(), ..WaitingMarker::default() }),
            order: Some(order()),
            ..machine("8", "eight")
        },
    ];
    let table = format_machines(&all);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect()).collect();
    assert_eq!(
        rows[1],
        [
            "one",
            "1",
            "c1",
            "debian-12",
            "debian-12",
            "debian-13 attempt 2 of 3, started",
            "2026-01-01T00:00:00Z",
            "-",
            "FAILED debian-13: image.burn: [2Jno"
        ]
    );
    assert_eq!(rows[2][5], "debian-13 abandoned");
    assert_eq!(rows[7][5], "needs confirmation");
    assert_eq!(rows[8][5], "debian-13 needs confirmation, its disks have debian-14");
    assert_eq!((rows[3][5], rows[3][8]), ("locked", "done debian-13: fine"));
    assert_eq!((rows[4][3], rows[4][5]), ("-", "not installed"));
    assert_eq!(rows[5], ["-", "5", "-", "-", "-", "-", "-", "-", "-"]);

    assert_eq!(rows[6][5], "waits with a marker");
}

#[test]
fn new_machines_and_failures_are_in_the_list() {
    let failure = json!({"stage": "storage.format", "message": "no space", "time": "", "remedy": "none"});
    let all = [
        MachineSummary { id: "1".to_owned(), new: true, ..MachineSummary::default() },
        MachineSummary { failure: Some(serde_json::from_value(failure).unwrap()), ..machine("2", "two") },
    ];
    let table = format_machines(&all);
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[1].split("  ").any(|cell| cell.trim() == "new"), "{table}");
    assert!(rows[2].trim_end().ends_with("FAILED: storage.format: no space"), "{table}");
}

#[test]
fn what_happens_next_is_said() {
    let before = machine("4c-1", "one");
    let text = describe_next_steps(
        &before,
        &MachineSummary { order: Some(order()), ..before.clone() },
        Some("drophammer reinstall --server U"),
    );
    for words in [
        "one will be reinstalled with debian-13 in place of debian-12 at its next boot over PXE; order o1.",
        "drophammer reinstall --server U\n",
        "Show what the reinstall will do, disk by disk:\n  drophammer machine plan one\n",
        "drophammer machine reinstall one --cancel",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let changed = |effect| {
        let (installed, file) = (Some("a".into()), Some("b".into()));
        AllocationDifference { field: "hostname".to_owned(), installed, file, secret: false, effect }
    };
    for (effect, is_unrecorded, lines) in [
        (
            Some(DifferenceEffect::Kept),
            false,
            "the machine file differs from the installed allocation; --apply-allocation applies the whole file:\n  \
             hostname: stays \"a\"; the file's value is ignored: \"b\"\n",
        ),
        (
            Some(DifferenceEffect::Applied),
            false,
            "the reinstall applies the machine file to the installed allocation:\n  hostname: \"a\" becomes \"b\"\n",
        ),
        (None, true, "the installed allocation is not on record, because "),
    ] {
        let listed = MachineSummary {
            order: Some(order()),
            differences: effect.map(changed).into_iter().collect(),
            allocation_unrecorded: is_unrecorded,
            ..before.clone()
        };
        let text = describe_next_steps(&before, &listed, None);
        let (_, rest) = text.split_once("order o1.\n").unwrap();
        assert!(rest.starts_with(lines), "{text}");
    }
    assert_eq!(
        describe_next_steps(&before, &before, None),
        "The reinstall of one is cancelled. The machine is unchanged.\n"
    );
}
