//! Erases NVMe namespaces with the commands Format NVM and Sanitize (NVM Express Base Specification 2.0c, 5.14 and
//! 5.24).

use super::EraseDeadline;
use crate::probe::nvme::{self, AdminCommand};
use model::inventory::EraseMethod;
use std::fs::File;
use std::thread;
use std::time::Duration;

const ALL_NAMESPACES: u32 = u32::MAX;

/// Log page Sanitize Status (figure 257).
const SANITIZE_STATUS: u32 = 0x81;
const STATUS_BYTES: usize = 32;

/// Value with which the controller indicates that it does not estimate the duration.
const UNKNOWN: u32 = u32::MAX;

// Codes of sanitize actions. The actions are sent with "allow unrestricted sanitize exit", so that other erase methods
// still work after a failed sanitize operation.
const EXIT_FAILURE_MODE: u32 = 1;
const BLOCK_ERASE: u32 = 2 | UNRESTRICTED;
const CRYPTO_ERASE: u32 = 4 | UNRESTRICTED;
const UNRESTRICTED: u32 = 1 << 3;

/// Timeout of commands that only start an operation or query the status.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Erases the namespace, and returns the result that the controller reports.
///
/// # Errors
/// Returns an error if the method is no longer supported for this namespace, the controller refuses the command, or the
/// deadline is exceeded.
pub(super) fn erase_nvme(device: &File, method: EraseMethod, deadline: EraseDeadline) -> Result<String, String> {
    let namespace = nvme::read_namespace(device).map_err(|error| error.to_string())?;
    // The methods are queried again, because another namespace may have been created since the inventory was read.
    if !namespace.methods.contains(&method) {
        return Err("the controller does not support this erase method for a single namespace".to_owned());
    }
    match method {
        EraseMethod::NvmeFormatCrypto => format_namespace(device, &namespace, 2, deadline),
        EraseMethod::NvmeFormat => format_namespace(device, &namespace, 1, deadline),
        EraseMethod::NvmeSanitizeCrypto => sanitize_subsystem(device, CRYPTO_ERASE, deadline),
        EraseMethod::NvmeSanitizeBlock => sanitize_subsystem(device, BLOCK_ERASE, deadline),
        _ => Err("the erase method is not an NVMe method".to_owned()),
    }
}

/// Formats the namespace with its current LBA format, because the plan was made for the sector size of this format.
fn format_namespace(
    device: &File,
    namespace: &nvme::NvmeNamespace,
    erase: u32,
    deadline: EraseDeadline,
) -> Result<String, String> {
    let format = AdminCommand {
        opcode: nvme::FORMAT_NVM,
        namespace: namespace.id,
        dword10: namespace.format | erase << 9,
        patience: deadline.time_left()?,
    };
    nvme::send_admin_command(device, format, &mut []).map_err(|error| format!("Format NVM: {error}"))?;
    Ok("the controller reports that formatting has completed".to_owned())
}

fn sanitize_subsystem(device: &File, action: u32, deadline: EraseDeadline) -> Result<String, String> {
    // The duration is checked first, because a running sanitize operation cannot be stopped, not even by a power cycle.
    let (needed, left) = (parse_estimate(&read_sanitize_status(device)?, action), deadline.time_left()?);
    if let Some(needed) = needed.filter(|needed| *needed > left) {
        return Err(format!(
            "the controller needs {needed} s for the sanitize operation, but only {left} s are left",
            needed = needed.as_secs(),
            left = left.as_secs()
        ));
    }
    start_sanitize(device, action).map_err(|error| format!("Sanitize: {error}"))?;
    loop {
        match parse_progress(&read_sanitize_status(device)?) {
            SanitizeProgress::Done => {
                return Ok("the controller reports that the sanitize operation has completed".to_owned());
            }
            SanitizeProgress::Failed => {
                // The controller is brought out of its failure mode, in which it rejects all other commands that write.
                let exit = start_sanitize(device, EXIT_FAILURE_MODE);
                return Err(match exit {
                    Ok(()) => "the controller reports that the sanitize operation failed".to_owned(),
                    Err(error) => format!("the sanitize operation failed, and the disk is no longer usable: {error}"),
                });
            }
            SanitizeProgress::Running { percent } => {
                deadline
                    .time_left()
                    .map_err(|error| format!("{error}; the sanitize operation is at {percent} % and continues"))?;
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

fn start_sanitize(device: &File, action: u32) -> std::io::Result<()> {
    let command = AdminCommand { opcode: nvme::SANITIZE, namespace: 0, dword10: action, patience: COMMAND_TIMEOUT };
    nvme::send_admin_command(device, command, &mut [])
}

#[derive(Debug, PartialEq, Eq)]
enum SanitizeProgress {
    Running { percent: u32 },
    Done,
    Failed,
}

fn read_sanitize_status(device: &File) -> Result<[u8; STATUS_BYTES], String> {
    let mut page = [0; STATUS_BYTES];
    // The upper half of dword 10 is the length of the log page: its number of dwords minus one.
    let dword10 = SANITIZE_STATUS | (STATUS_BYTES as u32 / 4 - 1) << 16;
    let command =
        AdminCommand { opcode: nvme::GET_LOG_PAGE, namespace: ALL_NAMESPACES, dword10, patience: COMMAND_TIMEOUT };
    nvme::send_admin_command(device, command, &mut page)
        .map_err(|error| format!("read the sanitize status: {error}"))?;
    Ok(page)
}

/// Evaluates the status page. The field SPROG counts up to 65535; the low three bits of the field SSTAT contain the
/// status. The status "never sanitized" directly after the start of a sanitize operation is treated as a failure,
/// because it can only be caused by a firmware defect or a lost command.
fn parse_progress(page: &[u8; STATUS_BYTES]) -> SanitizeProgress {
    let progress = u32::from(u16::from_le_bytes([page[0], page[1]]));
    match page[2] & 0b111 {
        // Both values mean that the sanitize operation has completed; with 4, the blocks were not deallocated.
        1 | 4 => SanitizeProgress::Done,
        2 => SanitizeProgress::Running { percent: progress * 100 / 65536 },
        _ => SanitizeProgress::Failed,
    }
}

/// Returns the controller's estimate of the duration of this action; `None` if the controller does not provide an
/// estimate.
fn parse_estimate(page: &[u8; STATUS_BYTES], action: u32) -> Option<Duration> {
    let seconds = match action {
        BLOCK_ERASE => [page[12], page[13], page[14], page[15]],
        _ => [page[16], page[17], page[18], page[19]],
    };
    let seconds = u32::from_le_bytes(seconds);
    (seconds != UNKNOWN).then(|| Duration::from_secs(u64::from(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_page_yields_sanitize_progress() {
        let cases = [
            ([0xff, 0xff, 0x01, 0x01], SanitizeProgress::Done),
            ([0xff, 0xff, 0x04, 0x01], SanitizeProgress::Done),
            ([0x00, 0x80, 0x02, 0x00], SanitizeProgress::Running { percent: 50 }),
            ([0xff, 0xff, 0x02, 0x00], SanitizeProgress::Running { percent: 99 }),
            ([0xff, 0xff, 0x03, 0x00], SanitizeProgress::Failed),
            ([0xff, 0xff, 0x00, 0x00], SanitizeProgress::Failed),
            // Bits 3 to 7 count the passes of an overwrite.
            ([0x00, 0x00, 0x0a, 0x00], SanitizeProgress::Running { percent: 0 }),
        ];
        for (start, expected) in cases {
            let mut page = [0; STATUS_BYTES];
            page[..4].copy_from_slice(&start);
            assert_eq!(parse_progress(&page), expected, "{start:?}");
        }
    }

    #[test]
    fn erase_estimates_are_parsed() {
        let mut page = [0xff; STATUS_BYTES];
        assert_eq!(parse_estimate(&page, BLOCK_ERASE), None);
        assert_eq!(parse_estimate(&page, CRYPTO_ERASE), None);
        page[12..16].copy_from_slice(&3600u32.to_le_bytes());
        page[16..20].copy_from_slice(&2u32.to_le_bytes());
        assert_eq!(parse_estimate(&page, BLOCK_ERASE), Some(Duration::from_secs(3600)));
        assert_eq!(parse_estimate(&page, CRYPTO_ERASE), Some(Duration::from_secs(2)));
    }

    #[test]
    fn refuses_other_disk_types() {
        let file = tempfile::tempfile().unwrap();
        let deadline = EraseDeadline::after_budget(COMMAND_TIMEOUT);
        assert!(erase_nvme(&file, EraseMethod::NvmeFormat, deadline).is_err());
    }
}
