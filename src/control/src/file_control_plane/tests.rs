//! Tests with files on a web server and in a directory: waiting for a file, verifying its signature, and reading it
//! again before anything is destroyed.

use super::*;
use crate::fake_control_plane::ended;
use base64::prelude::{BASE64_STANDARD, Engine};
use image::{SignatureKey, SignatureKeys};
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::collections::BTreeMap;
use std::sync::Arc;
use testing::http::{Request, ResponseBehavior, Server};

const MACHINE_ID: &str = "4c4c4544-0051-3010";

const QUICK: RetryPolicy = RetryPolicy {
    patience: Duration::from_millis(20),
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(5),
};

/// Web server that records each request and the status of its response.
#[derive(Clone, Default)]
struct Web {
    files: Arc<Mutex<BTreeMap<String, String>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Web {
    /// Starts the server, and returns it together with its URL.
    fn start() -> (Web, String) {
        let web = Web::default();
        let answering = web.clone();
        let server = Server::start(Vec::new(), move |request| {
            let act = answering.answer(request);
            answering.requests.lock().unwrap().push(format!("{} {}", request.line(), act.status.unwrap_or(200)));
            act
        });
        (web, server.url("").trim_end_matches('/').to_owned())
    }

    fn answer(&self, request: &Request) -> ResponseBehavior {
        let mut files = self.files.lock().unwrap();
        if request.method == "PUT" {
            files.insert(request.path.clone(), request.body.clone());
            return ResponseBehavior::status(201);
        }
        let Some(text) = files.get(&request.path) else { return ResponseBehavior::status(404) };
        let etag = Some(format!("\"{}\"", text.len()));
        match request.header("if-none-match") == etag.as_deref() {
            true => ResponseBehavior::status(304),
            false => ResponseBehavior { etag, ..ResponseBehavior::body(text.as_str()) },
        }
    }

    /// Stores a file, and its signature with this key.
    fn put(&self, path: &str, text: &str, key: &Key) {
        self.files
            .lock()
            .unwrap()
            .extend([(path.to_owned(), text.to_owned()), (format!("{path}.minisig"), key.sign(text))]);
    }

    fn remove(&self, path: &str) {
        self.files.lock().unwrap().remove(path);
    }

    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// Key with which files are signed, in the format of minisign.
struct Key(Ed25519KeyPair);

impl Key {
    fn of(seed: u8) -> Key {
        Key(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    fn id(&self) -> &[u8] {
        &self.0.public_key().as_ref()[..8]
    }

    fn public(&self) -> SignatureKey {
        BASE64_STANDARD.encode([b"Ed", self.id(), self.0.public_key().as_ref()].concat()).parse().unwrap()
    }

    fn sign(&self, text: &str) -> String {
        let over_text = self.0.sign(text.as_bytes());
        let over_comment = self.0.sign(&[over_text.as_ref(), b"t"].concat());
        let labeled = BASE64_STANDARD.encode([b"Ed", self.id(), over_text.as_ref()].concat());
        let over_comment = BASE64_STANDARD.encode(over_comment.as_ref());
        format!("untrusted comment: u\n{labeled}\ntrusted comment: t\n{over_comment}\n")
    }
}

fn control(file: &str, report: Option<&str>, keys: &[&Key]) -> FileControl {
    let keys = SignatureKeys(keys.iter().map(|key| key.public()).collect());
    let verifier = (!keys.0.is_empty()).then(|| -> SignatureVerifier {
        Box::new(move |name, text, signature| keys.verify_signature(name, text, signature).map(drop))
    });
    let control = FileControl::new(file, report, verifier, MACHINE_ID, &Inventory::default()).unwrap();
    FileControl { patient: QUICK, brief: QUICK, ..control }
}

fn document(machine: &str, allocation: &str) -> String {
    format!(r#"{{"id": "{machine}"{allocation}}}"#)
}

/// Returns an allocation with additional fields.
fn allocated(id: &str, more: &str) -> String {
    format!(
        r#", "allocation": {{"allocationuuid": "{id}", "hostname": "h", "image": {{"id": "i", "url": "u"}},
            "filesystemlayout": {{}}{more}}}"#
    )
}

const NOW: Duration = Duration::from_millis(1);

#[test]
fn allocation_file_is_awaited_and_must_remain_unchanged() {
    let ((web, url), key) = (Web::start(), Key::of(1));
    let control = control(&format!("{url}/m/{{uuid}}.json"), None, &[&key]);
    let path = format!("/m/{MACHINE_ID}.json");
    assert!(!control.wait_for_allocation(NOW).unwrap());
    web.put(&path, &document(MACHINE_ID, ""), &key);
    assert!(!control.wait_for_allocation(NOW).unwrap() && !control.wait_for_allocation(NOW).unwrap());
    let installation = document(&MACHINE_ID.to_uppercase(), &allocated("a-1", ""));
    web.put(&path, &installation, &key);
    assert!(control.wait_for_allocation(NOW).unwrap());
    let allocation = control.fetch_machine().unwrap().allocation.unwrap();
    assert_eq!(allocation.id, "a-1");
    control.announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() }).unwrap();
    let (get, signature) = (format!("GET {path}"), format!("GET {path}.minisig 200"));
    let (nothing, whole, same) = (format!("{get} 404"), format!("{get} 200"), format!("{get} 304"));
    let expected = [&nothing, &whole, &signature, &same, &whole, &signature, &same].map(String::as_str);
    assert_eq!(web.take_requests(), expected);

    web.put(&path, &document(MACHINE_ID, &allocated("a-22", "")), &key);
    let error = control
        .announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() })
        .unwrap_err()
        .to_string();
    assert!(error.contains("was changed or removed"), "{error}");
    web.put(&path, &installation, &key);
    assert!(control.wait_for_allocation(NOW).unwrap());
    web.remove(&path);
    let error = control
        .announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() })
        .unwrap_err()
        .to_string();
    assert!(error.contains("was changed or removed"), "{error}");
}

#[test]
fn unsigned_or_untrusted_files_are_refused() {
    let ((web, url), key, stranger) = (Web::start(), Key::of(1), Key::of(2));
    let good = document(MACHINE_ID, &allocated("a-1", ""));
    web.put("/good", &good, &key);
    web.put("/strange", &good, &stranger);
    web.put("/changed", &good, &key);
    web.files.lock().unwrap().insert("/changed".to_owned(), document(MACHINE_ID, &allocated("a-2", "")));
    web.put("/unsigned", &good, &key);
    web.remove("/unsigned.minisig");
    assert!(control(&format!("{url}/good"), None, &[&stranger, &key]).wait_for_allocation(NOW).unwrap());
    for (path, keys, why) in [
        ("/good", vec![], "a signature cannot be verified without the kernel argument drophammer.key="),
        ("/unsigned", vec![&key], "a signature is missing at http://"),
        ("/strange", vec![&key], "is signed by key"),
        ("/changed", vec![&key], "one of them is damaged or forged"),
    ] {
        let error = control(&format!("{url}{path}"), None, &keys).wait_for_allocation(NOW).unwrap_err();
        assert!(error.to_string().contains(why), "{path}: {error}");
        assert!(!error.is_refusal(), "the error is not a refusal of the token");
    }
}

#[test]
fn foreign_files_and_unnumbered_reinstalls_are_refused() {
    let ((web, url), key) = (Web::start(), Key::of(1));
    let order = |id: &str| format!(r#", "reinstall": true, "order": {{"id": "{id}", "attempt": 1, "attempts": 1}}"#);
    for (text, why) in [
        (document("another", &allocated("a-1", "")), "is for machine another, but this is machine 4c4c4544-0051-3010"),
        (document(MACHINE_ID, &allocated("", "")), "lacks an allocationuuid"),
        (document(MACHINE_ID, &allocated("a-1", r#", "reinstall": true"#)), "requires an order"),
        (document(MACHINE_ID, &allocated("a-1", &order("o-1"))), "requires an order whose id is a number"),
        (document(MACHINE_ID, &allocated("a-1", &order("0"))), "requires an order whose id is a number"),
        ("{".to_owned(), "cannot be parsed"),
    ] {
        web.put("/file", &text, &key);
        let error = control(&format!("{url}/file"), None, &[&key]).wait_for_allocation(NOW).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    web.put("/file", &document(MACHINE_ID, &allocated("a-1", &order("2"))), &key);
    assert!(control(&format!("{url}/file"), None, &[&key]).wait_for_allocation(NOW).unwrap());
}

#[test]
fn unreachable_server_is_reported_and_local_path_read() {
    let (key, directory) = (Key::of(1), tempfile::tempdir().unwrap());
    let error = control("http://127.0.0.1:9/file", None, &[&key]).wait_for_allocation(NOW).unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:9/file: no answer"), "{error}");
    let pattern = directory.path().join("{uuid}.json");
    let path = directory.path().join(format!("{MACHINE_ID}.json"));
    let control = control(pattern.to_str().unwrap(), None, &[&key]);
    assert!(!control.wait_for_allocation(NOW).unwrap());
    let text = document(MACHINE_ID, &allocated("a-1", ""));
    std::fs::write(&path, &text).unwrap();
    std::fs::write(path.with_extension("json.minisig"), key.sign(&text)).unwrap();
    assert!(control.wait_for_allocation(NOW).unwrap());
    control.announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() }).unwrap();
}

#[test]
fn report_is_uploaded_once_and_failures_are_ignored() {
    let ((web, url), key) = (Web::start(), Key::of(1));
    let report = format!("{url}/reports/{{uuid}}");
    assert_eq!(
        control("/f", Some(&report), &[&key]).report_result(&ended()).unwrap(),
        ReportAcknowledgement::default()
    );
    let path = format!("/reports/{MACHINE_ID}");
    let put: InstallReport = serde_json::from_str(&web.files.lock().unwrap()[&path]).unwrap();
    assert_eq!(put, InstallReport::from(&ended()));
    assert_eq!(web.take_requests(), [format!("PUT {path} 201")]);
    let nobody = control("/f", Some("http://127.0.0.1:9/"), &[&key]);
    assert_eq!(nobody.report_result(&ended()).unwrap(), ReportAcknowledgement::default());
}

/// A cache between the machine and the web server could still contain a file that the operator has removed.
#[test]
fn file_is_revalidated_before_the_first_write() {
    let text = document(MACHINE_ID, &allocated("a-1", ""));
    let key = Key::of(1);
    let signature = key.sign(&text);
    let server = Server::start(Vec::new(), move |request| match request.path.ends_with(".minisig") {
        true => ResponseBehavior::body(signature.as_str()),
        false => ResponseBehavior::body(text.as_str()),
    });
    let control = control(&server.url("file"), None, &[&key]);
    assert!(control.wait_for_allocation(NOW).unwrap());
    control.announce_point_of_no_return(&AttemptNotice { allocation: "a-1", ..AttemptNotice::default() }).unwrap();
    let requests = server.requests();
    let headers = |name: &str| requests.iter().map(|request| request.header(name)).collect::<Vec<_>>();
    for name in ["cache-control", "pragma"] {
        assert_eq!(headers(name), [None, None, Some("no-cache"), Some("no-cache")], "{name}");
    }
}
