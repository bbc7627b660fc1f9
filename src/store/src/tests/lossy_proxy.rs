//! Proxy in front of PostgreSQL that cuts a connection during a commit.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;
use testing::postgres::PrivatePostgres;

/// Message that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The commit itself.
    Request,
    /// The response to the commit, and the responses to the statements that were sent together with it. PostgreSQL has
    /// stored the transaction when the connection is closed.
    Response,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyState {
    Forward,
    Armed(Loss),
}

pub(super) struct LossyProxy {
    dir: TempDir,
    state: Arc<Mutex<ProxyState>>,
}

impl LossyProxy {
    pub(super) fn start(server: &PrivatePostgres) -> LossyProxy {
        let dir = tempfile::tempdir().unwrap();
        let (state, upstream) = (Arc::new(Mutex::new(ProxyState::Forward)), server.socket());
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).unwrap();
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), UnixStream::connect(&upstream).unwrap());
                let state = shared.clone();
                // True once the commit of this connection was forwarded. Its response is then lost.
                let is_committed = Arc::new(AtomicBool::new(false));
                let commits = is_committed.clone();
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || copy(ends.0, ends.1, |bytes| is_request_lost(&state, &commits, bytes)));
                let mut lost = Vec::new();
                thread::spawn(move || {
                    copy(server, client, |bytes| match is_committed.load(Ordering::SeqCst) {
                        true => lose_response(&mut lost, bytes),
                        false => ByteTreatment::Forwarded,
                    });
                });
            }
        });
        LossyProxy { dir, state }
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("postgres:///{name}?host={}&user=postgres", self.dir.path().display())
    }

    /// Loses one message of the next commit.
    pub(super) fn arm(&self, loss: Loss) {
        *self.state.lock().unwrap() = ProxyState::Armed(loss);
    }
}

/// Treatment of bytes that the proxy has read.
enum ByteTreatment {
    Forwarded,
    /// The bytes are lost.
    Lost,
    /// The bytes are lost, and the connection is closed.
    Cut,
}

fn contains_commit(bytes: &[u8]) -> bool {
    bytes.windows(7).any(|window| window == b"COMMIT\0")
}

fn is_request_lost(state: &Mutex<ProxyState>, commits: &AtomicBool, bytes: &[u8]) -> ByteTreatment {
    let mut state = state.lock().unwrap();
    let ProxyState::Armed(loss) = *state else { return ByteTreatment::Forwarded };
    if !contains_commit(bytes) {
        return ByteTreatment::Forwarded;
    }
    *state = ProxyState::Forward;
    commits.store(loss == Loss::Response, Ordering::SeqCst);
    if loss == Loss::Request { ByteTreatment::Cut } else { ByteTreatment::Forwarded }
}

/// Loses responses until PostgreSQL has confirmed the commit.
fn lose_response(lost: &mut Vec<u8>, bytes: &[u8]) -> ByteTreatment {
    lost.extend_from_slice(bytes);
    if contains_commit(lost) { ByteTreatment::Cut } else { ByteTreatment::Lost }
}

/// Copies until one of the streams is closed, or `decide` cuts the connection. Then closes both streams.
fn copy(mut from: UnixStream, mut to: UnixStream, mut decide: impl FnMut(&[u8]) -> ByteTreatment) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        match decide(&buffer[..length]) {
            ByteTreatment::Lost => {}
            ByteTreatment::Forwarded if to.write_all(&buffer[..length]).is_ok() => {}
            ByteTreatment::Forwarded | ByteTreatment::Cut => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
