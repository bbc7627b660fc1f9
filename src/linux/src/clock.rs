//! The system clock.

use std::io;
use std::time::SystemTime;

/// Sets the system clock.
///
/// # Errors
/// Returns an error if the kernel rejects the time, or the process lacks the required privilege.
pub fn write_clock(now: SystemTime) -> io::Result<()> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    let seconds = libc::time_t::try_from(since.as_secs()).map_err(io::Error::other)?;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: i64::from(since.subsec_nanos()) };
    // SAFETY: the kernel reads the structure, which lives until the call has ended.
    match unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
