//! A TPM 2 beside a machine: swtpm, whose state stays in the machine's folder when the power goes.

use crate::host::{Context, Result, child, patience};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// swtpm is there within milliseconds; the one of the machine's last life may still be at its end, and has the lock on the state.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// One process for each time that the machine is switched on. Dropping it ends it.
pub struct Tpm {
    process: Child,
    socket: PathBuf,
}

impl Tpm {
    /// # Errors
    /// swtpm is not installed, or does not start.
    pub fn start(folder: &Path) -> Result<Tpm> {
        let (state, socket) = (state(folder), folder.join("tpm.sock"));
        fs::create_dir_all(&state).context(state.display())?;
        let log = folder.join("swtpm.log");
        let deadline = Instant::now() + START_DEADLINE * patience() as u32;
        loop {
            // What an earlier one has left.
            let _ = fs::remove_file(&socket);
            let words = File::create(&log).context(log.display())?;
            let mut process = child("swtpm")
                .args(["socket", "--tpm2", "--terminate", "--tpmstate"])
                .arg(format!("dir={}", state.display()))
                .arg("--ctrl")
                .arg(format!("type=unixio,path={}", socket.display()))
                .stdin(Stdio::null())
                .stdout(words.try_clone().context("swtpm.log")?)
                .stderr(words)
                .spawn()
                .context("swtpm (package swtpm)")?;
            while !socket.exists() && process.try_wait().context("swtpm")?.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if socket.exists() {
                return Ok(Tpm { process, socket });
            }
            let _ = process.kill();
            let _ = process.wait();
            if Instant::now() > deadline {
                let words = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("swtpm (package swtpm) does not start: {}", words.trim()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Plugs it in.
    pub fn add(&self, command: &mut Command) {
        command.arg("-chardev").arg(format!("socket,id=tpm,path={}", self.socket.display()));
        command.args(["-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"]);
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // Both fail only if it has ended already, as it does after its machine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn state(folder: &Path) -> PathBuf {
    folder.join("tpm")
}

/// Another board: what the TPM knew is gone.
///
/// # Errors
/// Its state cannot be removed.
pub fn renew(folder: &Path) -> Result<()> {
    let state = state(folder);
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context(state.display()),
        _ => Ok(()),
    }
}
