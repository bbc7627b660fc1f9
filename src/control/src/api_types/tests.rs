//! The JSON of reports, letter by letter: other programs read it.

use super::*;
use model::install_report::StageShare;
use model::inventory::EraseMethod;

/// What all reports here have in common.
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
fn a_success() {
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
fn a_failure_that_touched_nothing() {
    let outcome = InstallOutcome::FailedUntouched(FailureSummary {
        stage: "plan".into(),
        unbelieved: marker(),
        ..FailureSummary::default()
    });
    let expected = FAILED.replace("STEP", "plan").replace("UNTOUCHED", "true");
    assert_json(&ended(outcome), &format!("{expected},\"marker\":{MARKER}}}"));
}

#[test]
fn a_failure_that_had_begun() {
    let outcome =
        InstallOutcome::FailedBegun(FailureSummary { stage: "image.burn".into(), ..FailureSummary::default() });
    let expected = FAILED.replace("STEP", "image.burn").replace("UNTOUCHED", "false");
    assert_json(&ended(outcome), &format!("{expected}}}"));
}
