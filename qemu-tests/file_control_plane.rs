//! Machine without a control plane. The proxy serves the machine file, which contains the document that the server
//! would send, and accepts the report.

use crate::host_tools::{Context, Result, run_tool, write};
use crate::scenario::FleetSignature;
use crate::server;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Beginning of the paths at which the proxy itself responds.
const FOLDER: &str = "/fleet/";

/// Time limit for the image. The server offers an image only after it has computed the digest.
const IMAGE_OFFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Files that the proxy serves to the machine, and list to which it adds the machine's reports.
pub struct FleetFiles {
    machine: Vec<u8>,
    signature: Option<Vec<u8>>,
    /// Messages of the server, to which the reports are added.
    messages: Arc<Mutex<Vec<Value>>>,
}

impl FleetFiles {
    /// Creates the machine file from the response of the server at this port.
    ///
    /// # Errors
    /// Fails if the server has no allocation for the machine, or minisign fails.
    pub fn create_files(
        fleet: FleetSignature,
        port: u16,
        state: &Path,
        id: &str,
        messages: Arc<Mutex<Vec<Value>>>,
    ) -> Result<FleetFiles> {
        let path = state.join("fleet.json");
        write(&path, request_machine(port, state, id)?.to_string())?;
        let read = |path: &Path| std::fs::read(path).context(path.display());
        let key = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/trust/one.key");
        let (file, key) = (path.display().to_string(), key.display().to_string());
        run_tool(&["minisign", "-S", "-s", &key, "-m", &file], Stdio::null())?;
        let signature = read(&path.with_extension("json.minisig"))?;
        Ok(FleetFiles {
            machine: read(&path)?,
            signature: (fleet == FleetSignature::Signed).then_some(signature),
            messages,
        })
    }

    /// Returns the complete HTTP response if the request is for one of these files.
    pub fn respond_to(&self, method: &str, path: &str, body: &[u8]) -> Option<Vec<u8>> {
        let name = path.strip_prefix(FOLDER)?;
        let found = match (method, name.rsplit_once('.')) {
            ("PUT", _) => {
                let report: Value = serde_json::from_slice(body).unwrap_or_default();
                self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(json!({ "report": report }));
                Some(&b""[..])
            }
            (_, Some((_, "json"))) => Some(self.machine.as_slice()),
            (_, Some((_, "minisig"))) => self.signature.as_deref(),
            _ => None,
        };
        let (status, body) = found.map_or(("404 Not Found", &b""[..]), |body| ("200 OK", body));
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        Some([head.as_bytes(), body].concat())
    }
}

/// Returns the machine, as `GET /v1/machine/{id}` would.
fn request_machine(port: u16, state: &Path, id: &str) -> Result<Value> {
    let began = Instant::now();
    loop {
        let preview = server::preview_machine(port, state, id)?;
        match preview["withheld"].as_str() {
            None => return Ok(preview["machine"].clone()),
            Some(why) if began.elapsed() > IMAGE_OFFER_TIMEOUT => {
                return Err(format!("the server has no allocation: {why}"));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Returns the server's kernel command line, with the URLs of machine file and report instead of the server's URL and
/// token.
pub fn adapt_cmdline(of_server: &str, port: u16) -> String {
    let theirs = ["drophammer.url=", "drophammer.token="];
    let rest = of_server.split(' ').filter(|word| !theirs.iter().any(|name| word.starts_with(name)));
    let folder = format!("http://10.0.2.2:{port}{FOLDER}");
    let ours = [format!("drophammer.file={folder}{{uuid}}.json"), format!("drophammer.report={folder}{{uuid}}.report")];
    rest.map(str::to_owned).chain(ours).collect::<Vec<_>>().join(" ")
}

/// Tests that the command line names only one control plane, that signatures are served if requested, and that reports
/// are stored.
pub fn self_test() {
    let words = adapt_cmdline("drophammer.url=http://h drophammer.token=t drophammer.machine=m a=b", 7);
    let expected = "drophammer.machine=m a=b drophammer.file=http://10.0.2.2:7/fleet/{uuid}.json \
                    drophammer.report=http://10.0.2.2:7/fleet/{uuid}.report";
    assert_eq!(words, expected);
    let messages = Arc::default();
    let files = FleetFiles { machine: b"{}".to_vec(), signature: None, messages: Arc::clone(&messages) };
    let ask = |method: &str, path: &str, body: &[u8]| {
        files.respond_to(method, path, body).map(|answer| String::from_utf8_lossy(&answer).into_owned())
    };
    assert_eq!(ask("GET", "/images/x", b""), None);
    assert!(ask("GET", "/fleet/m.json", b"").is_some_and(|answer| answer.ends_with("\r\n\r\n{}")));
    assert!(ask("GET", "/fleet/m.json.minisig", b"").is_some_and(|answer| answer.contains(" 404 ")));
    assert!(ask("PUT", "/fleet/m.report", b"{\"success\": true}").is_some_and(|answer| answer.contains(" 200 ")));
    assert_eq!(*messages.lock().unwrap_or_else(PoisonError::into_inner), [json!({"report": {"success": true}})]);
}
