//! Tests without a gRPC server. The conformance tests (`scripts/metal`) start one.

use super::*;
use crate::fake_control_plane::ended;
use crate::metal_stack::pixie_config::{ApiCredentials as Spoken, V1Credentials as Of};
use model::install_marker::RecordedDisk;
use model::install_report::FailureSummary;
use std::net::TcpListener;
use tempfile::TempDir;
use testing::http::{Server, tls_file};

const QUICK: RetryPolicy = RetryPolicy {
    patience: Duration::from_millis(300),
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(20),
};

/// Returns a client whose gRPC server does not exist.
pub(super) fn v1(url: &str, memory: &TempDir) -> MetalApiV1 {
    let pem = |name: &str| std::fs::read_to_string(tls_file(name)).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let api = Spoken::V1(Of {
        address: closed.to_string(),
        metal_api_url: url.to_owned(),
        ca_cert: pem("ca.pem"),
        cert: pem("server.pem"),
        key: pem("server.key"),
        hmac: "secret".to_owned(),
    });
    let config = PixieConfig { partition: "fra".into(), ntp_servers: vec![], logging: None, api, date: None };
    let pace = V1Timeouts { retries: QUICK, pause: Duration::from_millis(1), silence: Duration::from_millis(50) };
    MetalApiV1::with_timeouts("http://127.0.0.1:9", "m", &config, ReinstallNoteStore::new(memory.path()), pace).unwrap()
}

/// Returns the control plane's response for a machine whose allocation has these fields.
fn allocated(of: &str) -> String {
    let fields = r#""hostname": "h", "image": {"id": "i", "url": "http://i"}, "filesystemlayout": {"id": "l"}"#;
    format!(r#"{{"id": "M", "allocation": {{{fields}, {of}}}}}"#)
}

fn plane(answers: &[&str]) -> Server {
    let answers: Vec<String> = answers.iter().map(|of| allocated(of)).collect();
    let answers: Vec<(u16, &str)> = answers.iter().map(|text| (200, text.as_str())).collect();
    Server::script(&answers)
}

/// Fields of an installed machine in metal-api's response: `succeeded` is still false, and `boot_info` is from the last
/// report.
const INSTALLED: &str = r#""allocationuuid": "a", "reinstall": false, "succeeded": false, "boot_info": {"image_id": "i", "primary_disk": "",
    "os_partition": "", "initrd": "/tmp/initrd", "cmdline": "ro", "kernel": "/tmp/kernel", "bootloaderid": "metal-debian"}"#;

const REINSTALL: &str = r#""allocationuuid": "a", "reinstall": true, "succeeded": false, "boot_info": {"image_id": "j", "kernel": "/tmp/kernel"}"#;

#[test]
fn each_boot_is_counted_as_one_attempt() {
    let (server, memory) = (plane(&[REINSTALL; 6]), tempfile::tempdir().unwrap());
    let order = |v1: &MetalApiV1| v1.fetch_machine().unwrap().allocation.unwrap().order.unwrap();
    let first = v1(&server.url(""), &memory);
    assert!(first.is_allocated(true).unwrap());
    for _ in 0..3 {
        let is = order(&first);
        assert_eq!((is.attempt, is.attempts, is.started, is.id.as_str()), (1, 3, false, ""));
    }
    let disks = [RecordedDisk { device: "/dev/sda".into(), ..RecordedDisk::default() }];
    first
        .confirm_begin(&AttemptNotice { allocation: "a", order: Some("4"), disks: &disks, ..AttemptNotice::default() })
        .unwrap();
    let is = order(&v1(&server.url(""), &memory));
    assert_eq!((is.attempt, is.started, is.id.as_str(), is.disks.as_slice()), (2, true, "4", &disks[..]));
}

/// The operator orders another image after an attempt has passed the point of no return and failed.
#[test]
fn another_image_does_not_hide_an_earlier_point_of_no_return() {
    let (server, memory) = (plane(&[REINSTALL; 2]), tempfile::tempdir().unwrap());
    let first = v1(&server.url(""), &memory);
    first.fetch_machine().unwrap();
    assert!(first.is_noted_as_not_started());
    let (disks, digest) = ([RecordedDisk::default()], format!("sha256:{}", "0".repeat(64)));
    let secret_digest = Some(digest.as_str());
    first
        .confirm_begin(&AttemptNotice {
            allocation: "a",
            order: Some("4"),
            disks: &disks,
            secret_digest,
            ..AttemptNotice::default()
        })
        .unwrap();
    let server = Server::script(&[(200, &allocated(REINSTALL).replace(r#""id": "i""#, r#""id": "k""#))]);
    let second = v1(&server.url(""), &memory);
    let allocation = second.fetch_machine().unwrap().allocation.unwrap();
    let order = allocation.order.unwrap();
    assert_eq!((allocation.image.id.as_str(), order.attempt, order.started, order.id.as_str()), ("k", 1, true, "4"));
    assert_eq!((order.disks.as_slice(), order.attempt_record), (&disks[..], None));
    assert!(!second.is_noted_as_not_started());
}

/// A refused point of no return leaves the changed order in force, so the next boot must carry it out.
#[test]
fn changed_image_or_layout_does_not_start() {
    for (from, to) in [(r#""id": "i""#, r#""id": "k""#), (r#"{"id": "l"}"#, r#"{"id": "l", "disks": []}"#)] {
        let (received, changed) = (allocated(REINSTALL), allocated(REINSTALL).replace(from, to));
        let (server, memory) = (Server::script(&[(200, &received), (200, &changed)]), tempfile::tempdir().unwrap());
        let client = v1(&server.url(""), &memory);
        client.fetch_machine().unwrap();
        let notice = AttemptNotice { allocation: "a", order: Some("1"), ..AttemptNotice::default() };
        let error = client.confirm_begin(&notice).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("Nothing was written"), "{to}: {error}");
        assert!(client.is_noted_as_not_started(), "{to}");
        let outcome = InstallOutcome::FailedUntouched(FailureSummary::default());
        let failed = InstallResult { outcome, allocation: "a".into(), ..ended() };
        assert!(client.report_result(&failed, None).unwrap().retry, "{to}");
    }
}

#[test]
fn outdated_allocation_or_order_does_not_start() {
    for (now, order, is) in [
        (REINSTALL, Some("1"), true),
        (REINSTALL, None, false),
        (r#""allocationuuid": "a""#, None, true),
        (r#""allocationuuid": "a""#, Some("1"), false),
        (r#""allocationuuid": "b", "reinstall": true"#, Some("1"), false),
    ] {
        let (server, memory) = (plane(&[now]), tempfile::tempdir().unwrap());
        let started = v1(&server.url(""), &memory).confirm_begin(&AttemptNotice {
            allocation: "a",
            order,
            ..AttemptNotice::default()
        });
        match started {
            Ok(()) => assert!(is, "{now} {order:?}"),
            Err(error) => {
                assert!(!is && error.is_refusal() && error.to_string().contains("Nothing was written"), "{error}")
            }
        }
    }
    let (server, memory) = (Server::script(&[(200, r#"{"id": "m"}"#)]), tempfile::tempdir().unwrap());
    assert!(
        v1(&server.url(""), &memory)
            .confirm_begin(&AttemptNotice { allocation: "a", ..AttemptNotice::default() })
            .is_err()
    );
}

#[test]
fn responses_with_wrong_or_missing_ids_are_refused() {
    let memory = tempfile::tempdir().unwrap();
    for (answer, words) in [
        (r#"{"id": "other", "allocation": null}"#.to_owned(), "is for machine other"),
        (allocated(r#""allocationuuid": """#), "lacks an allocationuuid"),
    ] {
        let server = Server::script(&[(200, &answer)]);
        let error = v1(&server.url(""), &memory).is_allocated(true).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
    }
}

/// A second report would replace the password in the first report.
#[test]
fn report_of_installed_machine_requires_a_new_password() {
    for (of, password, calls) in [
        (INSTALLED, None, false),
        (INSTALLED, Some("new"), true),
        (r#""allocationuuid": "a""#, None, true),
        (r#""allocationuuid": "a", "boot_info": null"#, None, true),
        (REINSTALL, None, true),
    ] {
        let (server, memory) = (plane(&[of]), tempfile::tempdir().unwrap());
        let v1 = v1(&server.url(""), &memory);
        assert!(v1.is_allocated(true).unwrap());
        let told = v1.report_result(&InstallResult { allocation: "a".into(), ..ended() }, password);
        assert_eq!(told.is_err(), calls, "{of} {password:?}");
    }
}

/// Tests which failures are reported to the control plane.
#[test]
fn only_failed_reinstalls_are_aborted() {
    for (of, outcome, calls) in [
        (REINSTALL, InstallOutcome::FailedUntouched(FailureSummary::default()), true),
        (REINSTALL, InstallOutcome::FailedBegun(FailureSummary::default()), true),
        (
            REINSTALL,
            InstallOutcome::FailedBegun(FailureSummary { stage: "report.final".into(), ..FailureSummary::default() }),
            false,
        ),
        (r#""allocationuuid": "a""#, InstallOutcome::FailedUntouched(FailureSummary::default()), false),
        (r#""allocationuuid": "a""#, InstallOutcome::FailedBegun(FailureSummary::default()), false),
    ] {
        let (server, memory) = (plane(&[of]), tempfile::tempdir().unwrap());
        let v1 = v1(&server.url(""), &memory);
        assert!(v1.is_allocated(true).unwrap());
        let told = v1.report_result(&InstallResult { outcome, allocation: "a".into(), ..ended() }, None);
        match told {
            Err(error) => {
                assert!(calls && error.to_string().starts_with("api.v1.BootService/AbortReinstall"), "{error}")
            }
            Ok(answer) => assert!(!calls && !answer.retry, "{of}"),
        }
    }
}
