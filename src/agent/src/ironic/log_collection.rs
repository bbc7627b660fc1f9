//! `collect_system_logs`: logs of a failed machine, as one archive.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::error::{Context, Phase, Result};
use common::sync::lock_mutex;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

/// Maximum size of the agent's own log, in bytes. Older lines are dropped.
const OWN_BYTES: usize = 1 << 20;

/// Maximum size of the kernel log, in bytes.
const KERNEL_BYTES: usize = 4 << 20;

/// Size of the buffer for a record of the kernel log, in bytes. The buffer is larger than any record
/// (Documentation/ABI/testing/dev-kmsg).
const RECORD_BYTES: usize = 8192;

/// Log of the executed steps.
#[derive(Default)]
pub(crate) struct StepLog(Mutex<(VecDeque<String>, usize)>);

impl StepLog {
    pub(crate) fn append_text(&self, text: &str) {
        let text = common::format::without_secrets(text);
        let mut journal = lock_mutex(&self.0);
        let (lines, bytes) = &mut *journal;
        *bytes += text.len() + 1;
        lines.push_back(text);
        while *bytes > OWN_BYTES {
            match lines.pop_front() {
                Some(line) => *bytes -= line.len() + 1,
                None => break,
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        let journal = lock_mutex(&self.0);
        journal.0.iter().fold(String::new(), |text, line| text + line + "\n")
    }
}

/// Packs files into a compressed tar archive, and encodes the archive in base64 for the conductor.
///
/// # Errors
/// Fails if there is not enough memory.
pub(crate) fn pack_archive(files: &[(&str, Vec<u8>)]) -> Result<String> {
    let pack = || {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, content.as_slice())?;
        }
        tar.into_inner()?.finish()
    };
    Ok(STANDARD.encode(pack().context(Phase::Control, || "pack the logs")?))
}

/// Returns the current kernel log; empty if the kernel log is not readable.
pub(crate) fn read_kernel_log() -> Vec<u8> {
    let Ok(mut log) = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/kmsg") else {
        return Vec::new();
    };
    let (mut text, mut record) = (Vec::new(), [0; RECORD_BYTES]);
    while text.len() < KERNEL_BYTES {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&record[..length]),
            // EPIPE means that a record was overwritten before it was read. The next read returns the next record.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn packed_logs_can_be_unpacked() {
        let packed = pack_archive(&[("agent.log", b"a plan".to_vec()), ("kernel.log", Vec::new())]).unwrap();
        let packed = STANDARD.decode(packed).unwrap();
        let mut tar = tar::Archive::new(GzDecoder::new(packed.as_slice()));
        let names: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect();
        assert_eq!(names, [("agent.log".into(), "a plan".into()), ("kernel.log".into(), String::new())]);
    }

    #[test]
    fn step_log_is_limited_and_has_no_passwords() {
        let journal = StepLog::default();
        journal.append_text("fetch http://me:pass@h/i");
        assert_eq!(journal.text(), "fetch http://…@h/i\n");
        (0..40).for_each(|_| journal.append_text(&"x".repeat(100_000)));
        let text = journal.text();
        assert!(text.len() <= OWN_BYTES && text.len() > OWN_BYTES / 2, "{}", text.len());
    }
}
