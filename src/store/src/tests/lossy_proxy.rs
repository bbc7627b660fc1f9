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
    /// The response to the commit, which PostgreSQL has stored.
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
                // True once the commit of this connection was forwarded, so that its response is lost.
                let is_committed = Arc::new(AtomicBool::new(false));
                let commits = is_committed.clone();
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || copy(ends.0, ends.1, |bytes| is_request_lost(&state, &commits, bytes)));
                thread::spawn(move || copy(server, client, |_| is_committed.load(Ordering::SeqCst)));
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

fn is_request_lost(state: &Mutex<ProxyState>, commits: &AtomicBool, bytes: &[u8]) -> bool {
    let mut state = state.lock().unwrap();
    let ProxyState::Armed(loss) = *state else { return false };
    if !bytes.windows(7).any(|window| window == b"COMMIT\0") {
        return false;
    }
    *state = ProxyState::Forward;
    commits.store(loss == Loss::Response, Ordering::SeqCst);
    loss == Loss::Request
}

/// Copies until an end is closed, or `is_lost` returns true for the bytes that were read. Closes both ends then.
fn copy(mut from: UnixStream, mut to: UnixStream, is_lost: impl Fn(&[u8]) -> bool) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if is_lost(&buffer[..length]) || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
