//! TPM 2 of a machine, simulated by swtpm. Its state is in the folder of the machine, and is preserved across power
//! cuts.

use crate::host_tools::{Context, Result, patience, tie_to_thread};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the start. swtpm starts within milliseconds, but the previous process may still hold the lock on the
/// state.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Command TPM2_DictionaryAttackParameters that permits 32 failed tries, as on real boards. A TPM counts each power cut
/// after its use as a failed try, so swtpm's default of three tries would be used up after three boots that the harness
/// ends.
const SET_FAILED_TRIES_COMMAND: &[u8] =
    b"\x80\x02\0\0\0\x27\0\0\x01\x3a\x40\0\0\x0a\0\0\0\x09\x40\0\0\x09\0\0\0\0\0\0\0\0\x20\0\0\0\xa0\0\0\0\xa0";
/// Command TPM2_Shutdown.
const SHUTDOWN: &[u8] = b"\x80\x01\0\0\0\x0c\0\0\x01\x45\0\0";

/// Running swtpm process for one boot of the machine. It is killed when this value is dropped.
pub struct Tpm {
    process: Child,
    socket: PathBuf,
}

impl Tpm {
    /// Starts swtpm.
    ///
    /// # Errors
    /// Fails if swtpm is not installed, or does not start.
    pub fn start(folder: &Path) -> Result<Tpm> {
        let state = state_folder(folder);
        if !state.exists() {
            fs::create_dir_all(&state).context(state.display())?;
            let commands = folder.join("tpm.commands");
            let more = format!("type=unixio,path={}", commands.display());
            drop(
                Tpm::spawn_swtpm(folder, &["--server", &more, "--flags", "not-need-init,startup-clear"])?
                    .set_lockout_tries(&commands)?,
            );
        }
        Tpm::spawn_swtpm(folder, &[])
    }

    /// Sets the number of failed tries that a new TPM permits.
    fn set_lockout_tries(self, commands: &Path) -> Result<Tpm> {
        let mut stream = UnixStream::connect(commands).context(commands.display())?;
        stream.set_read_timeout(Some(START_DEADLINE)).context("swtpm")?;
        for command in [SET_FAILED_TRIES_COMMAND, SHUTDOWN] {
            let mut answer = [0; 64];
            stream.write_all(command).context("swtpm")?;
            let length = stream.read(&mut answer).context("swtpm")?;
            if length < 10 || answer[6..10] != [0; 4] {
                return Err(format!("swtpm answers {:02x?}", &answer[..length]));
            }
        }
        Ok(self)
    }

    fn spawn_swtpm(folder: &Path, more: &[&str]) -> Result<Tpm> {
        let (state, socket) = (state_folder(folder), folder.join("tpm.sock"));
        let log = folder.join("swtpm.log");
        let deadline = Instant::now() + START_DEADLINE * patience() as u32;
        loop {
            // An earlier process may have left the socket.
            let _ = fs::remove_file(&socket);
            let words = File::create(&log).context(log.display())?;
            let mut process = tie_to_thread("swtpm")
                .args(["socket", "--tpm2", "--terminate", "--tpmstate"])
                .arg(format!("dir={}", state.display()))
                .arg("--ctrl")
                .arg(format!("type=unixio,path={}", socket.display()))
                .args(more)
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

    /// Adds the TPM to the QEMU command line.
    pub fn add_device(&self, command: &mut Command) {
        command.arg("-chardev").arg(format!("socket,id=tpm,path={}", self.socket.display()));
        command.args(["-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"]);
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // Both calls fail only if the process has already exited, as it does when its machine ends.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn state_folder(folder: &Path) -> PathBuf {
    folder.join("tpm")
}

/// Simulates the replacement of the mainboard, by removing the state of the TPM.
///
/// # Errors
/// Fails if the state cannot be removed.
pub fn renew_state(folder: &Path) -> Result<()> {
    let state = state_folder(folder);
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context(state.display()),
        _ => Ok(()),
    }
}
