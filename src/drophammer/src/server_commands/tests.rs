use super::machine_list::machine_columns;
use super::reinstall::{describe_next_steps, explain_missing_allocation};
use super::*;
use crate::object_list::{ListOptions, format_for_terminal, format_wide};
use ::api::operator_api::{ReinstallOrder, ReinstallOutcome as Ended, WaitingMarker};
use model::install_report::{EventName, ProgressEvent};
use serde_json::json;
use site::effective_allocation::{AllocationDifference, DifferenceEffect};
use time::macros::datetime;

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
        created_by: text("ann"),
        attempts: 2,
        started: true,
        without_marker: false,
        change_promise: false,
        give_up: vec![],
        leave_locked: vec![],
        replace_newer: false,
        apply_allocation: false,
        fencing: None,
        confirmed: true,
        disks: vec![],
        attempt: None,
        given_up: false,
        handed: None,
        unregistered: 0,
        is_final_boot: false,
        required_approval: None,
        layout_digest: None,
    }
}

#[test]
fn machines_are_found_by_id_and_unique_name() {
    let all = [machine("4c-1", "one"), machine("4c-2", "two"), machine("4c-3", "two"), machine("4c-4", "")];
    assert_eq!(find_machine(&all, "4C-1").unwrap().name, "one");
    assert_eq!(find_machine(&all, "one").unwrap().id, "4c-1");
    assert_eq!(find_machine(&all, "two").unwrap_err(), "2 machines are named \"two\": use one of the ids 4c-2 or 4c-3");
    for none in ["three", ""] {
        assert!(find_machine(&all, none).unwrap_err().contains("`drophammer machine list` lists"), "{none}");
    }
}

#[test]
fn path_segments_are_percent_encoded() {
    assert_eq!(
        (encode_segment("debian-12.0"), encode_segment("a/b ü")),
        ("/debian-12.0".to_owned(), "/a%2Fb%20%C3%BC".to_owned())
    );
}

#[test]
fn machine_table_shows_phase_image_and_message() {
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
        MachineSummary { order: Some(given_up.clone()), ..machine("2", "two") },
        MachineSummary { order: Some(ReinstallOrder { started: false, ..given_up }), ..machine("9", "nine") },
        MachineSummary {
            locked: Some("why".to_owned()),
            project: Some("blue".to_owned()),
            outcome: outcome(true, "fine"),
            ..machine("3", "three")
        },
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
    let table = format_wide(&machine_columns(&all, datetime!(2026-01-01 03:00 UTC)), &all);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect()).collect();
    assert_eq!(
        rows[0],
        ["NAME", "ID", "PHASE", "PROJECT", "SIZE", "IMAGE", "WANTED", "LAYOUT", "ADDRESS", "SEEN", "MESSAGE"]
    );
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap();
    assert_eq!(
        row("one")[1..],
        [
            "1",
            "reinstalling",
            "-",
            "c1",
            "debian-12",
            "debian-12",
            "default",
            "-",
            "3 h ago",
            "debian-13 attempt 2 of 3, started; the reinstall with debian-13 has failed: image.burn: [2Jno"
        ]
    );
    assert_eq!(row("two")[10], "debian-13 abandoned");
    assert_eq!((row("nine")[2], row("nine")[10]), ("reinstall suspended", "debian-13 suspended"));
    assert_eq!(row("seven")[10], "needs confirmation");
    assert_eq!(row("eight")[10], "debian-13 needs confirmation, its disks have debian-14");
    assert_eq!((row("three")[3], row("three")[10]), ("blue", "locked: why"));
    assert_eq!((row("four")[2], row("four")[5], row("four")[10]), ("not installed", "-", "-"));
    assert_eq!(*row("5"), ["5", "5", "free", "-", "-", "-", "-", "-", "-", "-", "-"]);
    assert_eq!((row("six")[2], row("six")[10]), ("waits for adoption", "waits with a marker"));
}

#[test]
fn a_running_or_failed_installation_is_described_by_its_last_event() {
    let with_event = |event, stage: Option<&str>, message: &str| {
        let (message, stage) = (message.to_owned(), stage.map(str::to_owned));
        let last_event = Some(ProgressEvent { event, message, stage, seconds: None, progress: None });
        MachineSummary { installed: false, last_event, ..machine("1", "one") }
    };
    for (listed, phase, message) in [
        (with_event(EventName::Installing, Some("image.burn"), ""), "installing", "image.burn"),
        (with_event(EventName::Installing, Some("image.burn"), "207 MB"), "installing", "image.burn: 207 MB"),
        (with_event(EventName::Crashed, Some("storage.wipe"), "storage.wipe: EIO"), "failed", "storage.wipe: EIO"),
        (with_event(EventName::Waiting, None, "no allocation"), "not installed", ""),
    ] {
        let all = [listed];
        let columns = machine_columns(&all, datetime!(2026-01-01 0:00:59 UTC)).columns;
        let text = |key: &str| (columns.iter().find(|column| column.key == key).unwrap().cell)(&all[0]).text;
        assert_eq!((text("phase").as_str(), text("message").as_str()), (phase, message));
        assert_eq!(text("seen"), "59 s ago");
    }
}

#[test]
fn new_machines_and_failures_are_in_the_list() {
    let failure = json!({"stage": "storage.format", "message": "no space", "time": "", "remedy": "none"});
    let all = [
        MachineSummary { id: "1".to_owned(), new: true, ..MachineSummary::default() },
        MachineSummary { failure: Some(serde_json::from_value(failure).unwrap()), ..machine("2", "two") },
    ];
    let columns = machine_columns(&all, datetime!(2026-01-01 0:00 UTC)).columns;
    let cell =
        |index: usize, key: &str| (columns.iter().find(|column| column.key == key).unwrap().cell)(&all[index]).text;
    assert_eq!((cell(0, "phase").as_str(), cell(0, "message").as_str()), ("new", ""));
    assert_eq!(cell(1, "message"), "storage.format: no space");
}

#[test]
fn reinstall_of_a_free_machine_is_refused_with_the_command_that_installs_it() {
    let why = explain_missing_allocation(&machine("4c-1", "web-1"));
    assert!(why.contains("`drophammer machine allocate web-1 --image IMAGE`") && why.ends_with(" (DH-641)"), "{why}");
}

#[test]
fn new_machines_and_unstarted_orders_are_described() {
    let new = MachineSummary { new: true, address: Some("10.0.0.7".to_owned()), ..machine("4c-1", "") };
    let unstarted = ReinstallOrder { attempts: 0, started: false, ..order() };
    let ordered = MachineSummary { order: Some(unstarted), ..machine("4c-2", "web-2") };
    let all = [new, ordered];
    let table = format_wide(&machine_columns(&all, datetime!(2026-01-01 03:00 UTC)), &all);
    assert!(table.contains("  registered from 10.0.0.7\n"), "{table}");
    assert!(table.contains("  debian-13 at the next boot over PXE\n"), "{table}");
}

#[test]
fn next_steps_of_a_reinstall_are_printed() {
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
    assert!(!text.contains("replaces"), "{text}");
    let replaced = Some(ReinstallOrder { id: "o0".to_owned(), started: false, ..order() });
    let listed = MachineSummary { order: Some(order()), replaced, ..before.clone() };
    let text = describe_next_steps(&before, &listed, None);
    let words = "order o1.\nThis order replaces order o0 (image debian-13, ordered by ann at 2026-01-01T00:00:00Z).\n";
    assert!(text.contains(words), "{text}");
    let changed = |effect| {
        let (installed, file) = (Some("a".into()), Some("b".into()));
        AllocationDifference { field: "hostname".to_owned(), installed, file, secret: false, effect }
    };
    for (effect, is_unrecorded, lines) in [
        (
            Some(DifferenceEffect::Kept),
            false,
            "the machine file differs from the installed allocation; --apply-allocation applies the whole file:\n  \
             hostname: stays \"a\"; the value in the machine file is ignored: \"b\"\n",
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
        "The reinstall of one is canceled. The machine is unchanged.\n"
    );
}

#[test]
fn filters_match_the_image_of_an_adopted_machine() {
    let all = [MachineSummary { claimed: true, ..machine("1", "one") }, machine("2", "two"), machine("3", "three")];
    let columns = machine_columns(&all, datetime!(2026-01-01 0:00 UTC));
    for (filter, expected) in
        [("image=debian-12", "one\nthree\ntwo\n"), ("image=*(claimed)", "one\n"), ("image=debian-1", "")]
    {
        let options = ListOptions { filter: vec![filter.to_owned()], quiet: true, ..ListOptions::default() };
        assert_eq!(format_for_terminal(&columns, &all, &options, false).unwrap(), expected, "{filter}");
    }
}
