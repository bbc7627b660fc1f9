//! Upload of the log to the Loki server in pixie's configuration. Lines are added to a bounded buffer, from which a
//! thread sends them. If the buffer is full, lines are dropped and counted. Before a reboot, the agent waits only
//! briefly for the upload. Only the first error is printed on the console.

use super::pixie_config::{ApiCredentials, LoggingConfig, PixieConfig};
use common::error::{Context, Error, Phase, Result};
use common::format::without_secrets;
use common::sync::lock_mutex;
use linux::http;
use reqwest::StatusCode;
use reqwest::blocking::Client;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Timeout of a request to Loki.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between requests, so that lines are sent in batches.
const UPLOAD_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of buffered lines. An installation prints a few hundred lines.
const LINES: usize = 2000;
/// Maximum size of the buffer, in bytes.
const BYTES: usize = 512 << 10;
/// Maximum length of a line, in characters.
const LINE: usize = 4 << 10;

/// Minimum length of a secret that is redacted. A shorter secret might be part of ordinary words, which would then also
/// be redacted.
const MINIMUM_SECRET_LENGTH: usize = 6;

/// Log upload to Loki.
pub(crate) struct LokiUpload {
    shared: Arc<LokiShared>,
    /// Secrets that are redacted in all lines.
    secrets: Vec<String>,
}

struct LokiShared {
    state: Mutex<LokiBuffer>,
    /// Condition variable that is notified when lines were added or sent.
    changed: Condvar,
}

#[derive(Default)]
struct LokiBuffer {
    lines: VecDeque<(SystemTime, String)>,
    bytes: usize,
    dropped: usize,
    /// True while lines that were taken from the buffer are being sent.
    under_way: bool,
    /// True if a caller waits until all lines are sent. The next request is then sent without waiting for the minimum
    /// interval.
    hurry: bool,
}

/// Client of a Loki server, with the labels of the log lines.
struct LokiClient {
    client: Client,
    logging: LoggingConfig,
    machine: String,
}

impl LokiUpload {
    /// Starts the upload. Returns `None` if the configuration does not contain a usable Loki server.
    pub(crate) fn from_config(config: &PixieConfig, machine: &str) -> Option<LokiUpload> {
        let logging = config.logging.clone().filter(|logging| !logging.endpoint.trim().is_empty())?;
        let started = match logging.kind.as_str() {
            "loki" | "" => {
                LokiClient::new(logging, machine).map(|push| LokiUpload::start_thread(push, collect_secrets(config)))
            }
            kind => {
                Err(Error::new(Phase::Control, format!("pixie's configuration has the unsupported log_type {kind}")))
            }
        };
        started.inspect_err(|error| tracing::warn!("{error}; no logs will be uploaded")).ok()
    }

    fn start_thread(push: LokiClient, secrets: Vec<String>) -> LokiUpload {
        let shared = Arc::new(LokiShared { state: Mutex::default(), changed: Condvar::new() });
        let carried = shared.clone();
        thread::spawn(move || upload_loop(&push, &carried));
        LokiUpload { shared, secrets }
    }

    /// Adds a secret that will be redacted in all further lines.
    pub(crate) fn redact_secret(&mut self, secret: &str) {
        self.secrets.extend(Some(secret.to_owned()).filter(|secret| secret.len() >= MINIMUM_SECRET_LENGTH));
    }

    /// Adds each line of a string to the buffer.
    pub(crate) fn add_lines(&self, text: &str) {
        let text = self.secrets.iter().fold(without_secrets(text), |text, secret| text.replace(secret.as_str(), "…"));
        let now = SystemTime::now();
        let mut state = lock_mutex(&self.shared.state);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let line: String = line.chars().take(LINE).collect();
            state.bytes += line.len();
            state.lines.push_back((now, line));
        }
        while state.lines.len() > LINES || state.bytes > BYTES {
            let Some((_, line)) = state.lines.pop_front() else { break };
            state.bytes -= line.len();
            state.dropped += 1;
        }
        self.shared.changed.notify_all();
    }

    /// Waits until all lines are sent, but at most for `patience`.
    pub(crate) fn wait_until_sent(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut state = lock_mutex(&self.shared.state);
        state.hurry = true;
        self.shared.changed.notify_all();
        while !state.lines.is_empty() || state.under_way {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.hurry = false;
    }
}

/// Returns all secrets of the configuration that are long enough to be redacted.
fn collect_secrets(config: &PixieConfig) -> Vec<String> {
    let api = match &config.api {
        ApiCredentials::V1(api) => vec![&api.hmac],
        ApiCredentials::V2(api) => vec![&api.token],
    };
    let own = config.logging.iter().filter_map(|logging| logging.basic_auth.as_ref()).map(|basic| &basic.password);
    api.into_iter().chain(own).filter(|secret| secret.len() >= MINIMUM_SECRET_LENGTH).cloned().collect()
}

impl LokiShared {
    /// Waits until the buffer contains lines, and until `pause` has elapsed or a caller waits for the upload. Removes
    /// the lines from the buffer, and returns them.
    fn take_batch(&self, pause: Duration) -> Vec<(SystemTime, String)> {
        let mut state = lock_mutex(&self.state);
        let end = Instant::now() + pause;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !state.lines.is_empty() && (left.is_zero() || state.hurry) {
                break;
            }
            let left = if left.is_zero() { LONGEST_PAUSE } else { left };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.under_way = true;
        let mut lines: Vec<_> = state.lines.drain(..).collect();
        state.bytes = 0;
        let dropped = std::mem::take(&mut state.dropped);
        if dropped > 0 {
            lines.insert(
                0,
                (lines[0].0, format!("{dropped} lines were dropped because Loki did not accept them in time")),
            );
        }
        lines
    }

    /// Puts unsent lines back at the front of the buffer. Lines that do not fit are dropped.
    fn return_unsent(&self, lines: Vec<(SystemTime, String)>) {
        let mut state = lock_mutex(&self.state);
        for (time, line) in lines.into_iter().rev() {
            if state.lines.len() >= LINES || state.bytes + line.len() > BYTES {
                state.dropped += 1;
            } else {
                state.bytes += line.len();
                state.lines.push_front((time, line));
            }
        }
    }

    fn mark_sent(&self) {
        lock_mutex(&self.state).under_way = false;
        self.changed.notify_all();
    }
}

fn upload_loop(push: &LokiClient, shared: &LokiShared) {
    let (mut pause, mut told) = (UPLOAD_INTERVAL, false);
    loop {
        let lines = shared.take_batch(pause);
        match push.send_lines(&lines) {
            Ok(()) => pause = UPLOAD_INTERVAL,
            Err((again, error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        "{error}; the installation continues, and further errors of the log upload are not reported"
                    );
                }
                if again {
                    shared.return_unsent(lines);
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        shared.mark_sent();
    }
}

impl LokiClient {
    fn new(logging: LoggingConfig, machine: &str) -> Result<LokiClient> {
        let mut builder = http::client_builder(None).redirect(reqwest::redirect::Policy::none());
        if let Some(auth) = logging.certificate_auth.as_ref().filter(|auth| !auth.cert.is_empty()) {
            let both = format!("{}\n{}", auth.cert, auth.key);
            let what = || "`certificate_auth` of pixie's configuration";
            let identity = reqwest::Identity::from_pem(both.as_bytes()).context(Phase::Control, what)?;
            builder = builder.identity(identity).tls_danger_accept_invalid_certs(auth.insecure_skip_verify);
        }
        let client = builder.build().context(Phase::Control, || format!("set up TLS for {}", logging.endpoint))?;
        Ok(LokiClient { client, logging, machine: machine.to_owned() })
    }

    /// Sends lines in one request. The flag in the error is true if a retry may succeed.
    fn send_lines(&self, lines: &[(SystemTime, String)]) -> Result<(), (bool, Error)> {
        let request =
            self.client.post(&self.logging.endpoint).timeout(REQUEST_TIMEOUT).json(&self.build_document(lines));
        let request = match &self.logging.basic_auth {
            Some(basic) if !basic.user.is_empty() => request.basic_auth(&basic.user, Some(&basic.password)),
            _ => request,
        };
        let failed = |why: String| Error::new(Phase::Control, format!("logs for {}: {why}", self.logging.endpoint));
        match request.send() {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => {
                let status: StatusCode = response.status();
                Err((http::is_retryable(status), failed(format!("the server answered {status}"))))
            }
            Err(error) => {
                let error = error.without_url();
                let failure = failed("no answer".to_owned());
                Err((true, Error::with_source(Phase::Control, failure.to_string(), error)))
            }
        }
    }

    /// Returns the JSON document for Loki's push API. The timestamps in the document are strings with the number of
    /// nanoseconds since 1970.
    fn build_document(&self, lines: &[(SystemTime, String)]) -> Value {
        let nanoseconds =
            |time: &SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let values: Vec<[String; 2]> = lines.iter().map(|(time, line)| [nanoseconds(time), line.clone()]).collect();
        json!({"streams": [{"stream": {"component": "drophammer", "machineID": self.machine}, "values": values}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metal_stack::pixie_config::{BasicAuth, V2Credentials};
    use testing::http::{ResponseBehavior, Server};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn config(endpoint: String, kind: &str) -> PixieConfig {
        let basic_auth = Some(BasicAuth { user: "u".into(), password: "long-password".into() });
        let logging = Some(LoggingConfig { endpoint, kind: kind.into(), basic_auth, certificate_auth: None });
        let api = ApiCredentials::V2(V2Credentials {
            url: "https://api".into(),
            token: "token-of-mine".into(),
            ca_cert: None,
            identity: None,
        });
        PixieConfig { partition: "fra".into(), ntp_servers: vec![], logging, api, date: None }
    }

    fn lines(server: &Server) -> Vec<String> {
        let bodies: Vec<Value> =
            server.requests().iter().map(|request| serde_json::from_str(&request.body).unwrap()).collect();
        let values = bodies.iter().flat_map(|body| body["streams"][0]["values"].as_array().unwrap());
        values.map(|value| value[1].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn lines_arrive_with_their_labels_and_without_secrets() {
        let server = Server::start(vec![], |_| ResponseBehavior::status(204));
        let mut loki = LokiUpload::from_config(&config(server.url("loki/api/v1/push"), "loki"), "m").unwrap();
        loki.redact_secret("console7");
        loki.redact_secret("abc");
        loki.add_lines(
            "one abc\n\n  two with token-of-mine and http://me:pass@h/i?sig=abc\nthree long-password console7",
        );
        loki.wait_until_sent(PATIENCE);
        let requests = server.requests();
        let body: Value = serde_json::from_str(&requests[0].body).unwrap();
        assert_eq!(body["streams"][0]["stream"], json!({"component": "drophammer", "machineID": "m"}));
        assert_eq!(body["streams"][0]["values"][0][0].as_str().map(str::len), Some(19));
        assert_eq!(lines(&server), ["one abc", "  two with … and http://…@h/i?sig=…", "three … …"]);
        assert_eq!(requests[0].authorization.as_deref(), Some("Basic dTpsb25nLXBhc3N3b3Jk"));
        assert_eq!(requests[0].line(), "POST /loki/api/v1/push");
    }

    #[test]
    fn lines_are_resent_after_503_but_not_after_400() {
        for (status, sent) in [(503, 2), (400, 1)] {
            let server = Server::start(vec![], move |request| {
                ResponseBehavior::status(if request.nth == 0 { status } else { 204 })
            });
            let loki = LokiUpload::from_config(&config(server.url(""), ""), "m").unwrap();
            loki.add_lines("one");
            let end = Instant::now() + PATIENCE;
            while server.requests().len() < sent && Instant::now() < end {
                loki.wait_until_sent(Duration::from_millis(50));
            }
            loki.wait_until_sent(PATIENCE);
            assert_eq!(lines(&server), vec!["one"; sent], "{status}");
        }
    }

    #[test]
    fn unavailable_loki_does_not_block_and_memory_is_bounded() {
        let server = Server::start(vec![], |_| ResponseBehavior::stall_before_the_answer());
        let loki = LokiUpload::from_config(&config(server.url(""), "loki"), "m").unwrap();
        let began = Instant::now();
        for number in 0..3 * LINES {
            loki.add_lines(&format!("line {number}"));
        }
        loki.add_lines(&"x".repeat(10 * LINE));
        loki.wait_until_sent(Duration::from_millis(20));
        assert!(began.elapsed() < Duration::from_secs(30));
        let state = lock_mutex(&loki.shared.state);
        assert!(
            state.lines.len() <= LINES && state.bytes <= BYTES,
            "{} lines, {} bytes",
            state.lines.len(),
            state.bytes
        );
        assert!(state.lines.iter().all(|(_, line)| line.len() <= LINE));
    }

    #[test]
    fn upload_requires_a_configured_loki() {
        assert!(LokiUpload::from_config(&config("  ".into(), "loki"), "m").is_none());
        assert!(LokiUpload::from_config(&config("http://127.0.0.1:9".into(), "syslog"), "m").is_none());
        assert!(LokiUpload::from_config(&PixieConfig { logging: None, ..config(String::new(), "") }, "m").is_none());
    }
}
