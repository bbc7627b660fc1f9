//! Tests of the exact JSON of messages, because other programs read them.

use super::*;
use common::error_code::ErrorCode;
use model::install_report::{EventName, ProgressEvent, StageShare, TransferProgress};
use model::inventory::EraseMethod;
use model::machine_migration::MigrationReport;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns a report with fields that are equal in all tests.
fn ended(outcome: InstallOutcome) -> InstallResult {
    InstallResult {
        outcome,
        message: "m".into(),
        allocation: "a-1".into(),
        order: Some("o-1".into()),
        plan: "the plan".into(),
        timings: vec![StageTime { stage: "storage.wipe".into(), seconds: 1.5 }],
        peak_rss_bytes: None,
        done: DiskChanges::default(),
    }
}

fn marker() -> Option<InstallMarker> {
    let marker = InstallMarker {
        machine: "m-1".into(),
        allocation: "a-1".into(),
        order: Some("o-1".into()),
        ..InstallMarker::default()
    };
    Some(marker)
}

const MARKER: &str =
    r#"{"machine":"m-1","allocation":"a-1","order":"o-1","image":"","layout":"","time":"","disks":[]}"#;

fn assert_json(ended: &InstallResult, expected: &str) {
    assert_eq!(serde_json::to_string(&InstallReport::from(ended)).unwrap(), expected);
}

#[test]
fn success_report_has_expected_json() {
    let boot = BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro quiet".into(),
        bootloader_id: "metal-debian".into(),
    };
    let text = |text: &str| text.to_owned();
    let identity = |guid: &str| [(text("guid"), text(guid))].into();
    let erased = ErasedDisk {
        device: text("/dev/sda"),
        serial: text("S45N"),
        method: EraseMethod::Discard,
        proof: text("both ends read back as zero"),
        seconds: 0.5,
    };
    let done = DiskChanges {
        erased: vec![erased],
        kept: vec![PreservationProof { object: text("disk /dev/sdb"), before: identity("1"), after: identity("1") }],
        hidden: vec![HiddenFiles { path: text("/var/lib"), files: 7 }],
        burn: Some(ImageTransferFigures {
            bytes: 207,
            seconds: 2.0,
            shares: vec![StageShare { stage: text("decode"), percent: 71 }],
        }),
        volumes: vec![PreparedVolume { name: text("db-1"), uid: text("u"), path: text("/dev/x"), size_bytes: 9 }],
    };
    let outcome = InstallOutcome::Succeeded { boot, marker: marker() };
    let ended = InstallResult { done, peak_rss_bytes: Some(4096), ..ended(outcome) };
    let expected = [
        r#"{"success":true,"message":"m","allocationuuid":"a-1","kernel":"/vmlinuz","initrd":"/initrd","cmdline":"ro quiet","#,
        r#""bootloaderid":"metal-debian","timings":[{"step":"storage.wipe","seconds":1.5}],"plan":"the plan","#,
        r#""peak_rss_bytes":4096,"erased":[{"device":"/dev/sda","serial":"S45N","method":"discard","#,
        r#""proof":"both ends read back as zero","seconds":0.5}],"order":"o-1","untouched":false,"marker":"#,
        MARKER,
        r#","kept":[{"object":"disk /dev/sdb","before":{"guid":"1"},"after":{"guid":"1"}}],"#,
        r#""hidden":[{"path":"/var/lib","files":7}],"#,
        r#""burn":{"bytes":207,"seconds":2.0,"shares":[{"stage":"decode","percent":71}]},"#,
        r#""volumes":[{"name":"db-1","uid":"u","path":"/dev/x","size_bytes":9}]}"#,
    ];
    assert_json(&ended, &expected.concat());
}

const FAILED: &str = r#"{"success":false,"message":"m","allocationuuid":"a-1","step":"STEP","kernel":"","initrd":"","cmdline":"","bootloaderid":"","timings":[{"step":"storage.wipe","seconds":1.5}],"plan":"the plan","order":"o-1","untouched":UNTOUCHED"#;

#[test]
fn untouched_failure_report_has_expected_json() {
    let outcome = InstallOutcome::FailedUntouched(FailureSummary {
        stage: "plan".into(),
        untrusted_marker: marker(),
        ..FailureSummary::default()
    });
    let expected = FAILED.replace("STEP", "plan").replace("UNTOUCHED", "true");
    assert_json(&ended(outcome), &format!("{expected},\"marker\":{MARKER}}}"));
}

#[test]
fn started_failure_report_has_expected_json() {
    let outcome =
        InstallOutcome::FailedBegun(FailureSummary { stage: "image.burn".into(), ..FailureSummary::default() });
    let expected = FAILED.replace("STEP", "image.burn").replace("UNTOUCHED", "false");
    assert_json(&ended(outcome), &format!("{expected}}}"));
}

#[test]
fn a_failure_is_reported_with_its_code() {
    let failed = FailureSummary { code: Some(ErrorCode::Mkfs), ..FailureSummary::default() };
    let report = InstallReport::from(&ended(InstallOutcome::FailedBegun(failed)));
    assert_eq!(report.code.as_deref(), Some("DH-310"));
    // Older servers respond without a code.
    let body: ErrorBody = serde_json::from_str(r#"{"statuscode": 409, "message": "m"}"#).unwrap();
    assert_eq!((body.code, body.error_code), (None, None));
}

/// Reads a document of `testdata/recorded/agent.json`, and checks that no field is lost.
fn read_recorded<T: Serialize + DeserializeOwned>(pointer: &str) -> T {
    let documents: Value = serde_json::from_str(include_str!("../../../../testdata/recorded/agent.json")).unwrap();
    let written = documents.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not recorded"));
    let read: T = serde_json::from_value(written.clone()).unwrap_or_else(|error| panic!("{pointer}: {error}"));
    assert_eq!(&serde_json::to_value(&read).unwrap(), written, "{pointer}");
    read
}

#[test]
fn parses_registrations_and_starts_of_earlier_agents() {
    let registered: RegisterRequest = read_recorded("/register");
    let RegisteredHardware { memory, cpu_cores, disks, nics } = registered.hardware;
    assert_eq!(
        (memory, cpu_cores, disks[0].name.as_str(), disks[0].size),
        (2_053_238_784, 2, "/dev/sda", 21_474_836_480)
    );
    assert_eq!((nics[0].mac.as_str(), registered.agent.as_str()), ("52:54:00:12:34:01", "drophammer 0.1.0"));
    let inventory = registered.inventory.unwrap();
    assert_eq!((inventory.disks[0].serial.as_str(), inventory.firmware_variables), ("QM00001", None));

    let first: PointOfNoReturn = read_recorded("/point_of_no_return/first");
    let expected = PointOfNoReturn { allocationuuid: "a-installed".to_owned(), ..PointOfNoReturn::default() };
    assert_eq!(first, expected);
    let full: PointOfNoReturn = read_recorded("/point_of_no_return/full");
    assert_eq!(full.order.as_deref(), Some("7f9619ff-8b86-4d01-b42d-00cf4fc964ff"));
    assert_eq!((full.approved.as_deref(), full.secret_digest), (Some("sha256:00"), None));
    assert_eq!((full.disks[0].serial.as_str(), full.disks[0].making.len()), ("QM00001", 2));
}

#[test]
fn parses_reports_events_and_logs_of_earlier_agents() {
    let success: InstallReport = read_recorded("/reports/success");
    assert_eq!((success.success, success.bootloaderid.as_str(), success.timings.len()), (true, "debian", 2));
    assert_eq!(success.marker.unwrap().order, success.order);
    assert_eq!((success.erased[0].method, success.burn.unwrap().bytes), (EraseMethod::Discard, 387_000_000));
    assert_eq!((success.kept.len(), success.hidden[0].files, success.volumes[0].name.as_str()), (1, 3, "db-1"));
    let untouched: InstallReport = read_recorded("/reports/failure untouched");
    assert_eq!((untouched.success, untouched.untouched, untouched.step.as_deref()), (false, true, Some("plan")));
    let started: InstallReport = read_recorded("/reports/failure begun");
    assert_eq!((started.untouched, started.step.as_deref(), started.marker), (false, Some("image.burn"), None));

    let names = ["PXE Booting", "Preparing", "Registering", "Waiting", "Installing"].into_iter().chain([
        "Booting New Kernel",
        "Phoned Home",
        "Alive",
        "Crashed",
        "Planned Reboot",
        "Installing",
    ]);
    let events: Vec<ProgressEvent> = read_recorded("/events");
    assert!(events.iter().map(|event| event.event.as_str()).eq(names));
    let last = events.last().unwrap();
    assert_eq!(
        (last.event, last.stage.as_deref(), last.seconds),
        (EventName::Installing, Some("image.burn"), Some(1.5))
    );
    let progress = TransferProgress { bytes: 1, total_bytes: Some(4), bytes_per_second: 1, seconds_left: Some(3) };
    assert_eq!(last.progress, Some(progress));
    assert_eq!(read_recorded::<LogPart>("/log"), LogPart { start: 7, log: "booted\n".to_owned() });
}

#[test]
fn parses_migration_reports_of_earlier_agents() {
    let source: MigrationReport = read_recorded("/moving/send");
    let carried = source.carried.unwrap();
    assert_eq!(
        (carried.marker.allocation.as_str(), carried.nics[0].mac.as_str()),
        ("a-installed", "52:54:00:12:34:01")
    );
    assert_eq!(
        (carried.filesystems[0].size_bytes, carried.arrays.len(), carried.partitions.len()),
        (20_000_000_000, 1, 1)
    );
    let target: MigrationReport = read_recorded("/moving/receive");
    assert_eq!((target.port, target.words.as_deref(), target.has_secret), (Some(4711), Some("waits"), false));
}
