//! Reads a line from the machine's console without displaying the typed characters.

use super::print_line;
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// Terminal named by the kernel's last `console=` parameter.
pub const CONSOLE: &str = "/dev/console";

/// Maximum line length of a terminal (N_TTY_BUF_SIZE in drivers/tty/n_tty.c).
const LINE_BYTES: usize = 4096;

/// Prints a question and waits for a line. Returns `None` if no line was entered before the time `until`.
///
/// # Errors
/// Returns an error if the console is not a terminal, or cannot be read.
pub fn read_hidden_line(console: &Path, question: &str, until: Instant) -> Result<Option<String>> {
    let mut terminal = NoEchoTerminal::new(console)?;
    // The question is printed only now, when earlier input has been discarded and echo is off.
    print_line(question);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut waits = libc::pollfd { fd: terminal.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer refers to one structure, which lives until the call returns.
        match unsafe { libc::poll(&raw mut waits, 1, i32::try_from(left.as_millis()).unwrap_or(i32::MAX)) } {
            0 => return Ok(None),
            1.. => break,
            _ => match Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => {}
                error => return Err(error),
            },
        }
    }
    let mut line = vec![0; LINE_BYTES];
    let length = terminal.file.read(&mut line)?;
    line.truncate(length);
    let text = String::from_utf8(line).map_err(|_| Error::other("the input is not valid UTF-8"))?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Terminal with echo turned off. When this value is dropped, the previous settings of the terminal are restored.
struct NoEchoTerminal {
    file: File,
    before: libc::termios,
}

impl NoEchoTerminal {
    fn new(console: &Path) -> Result<NoEchoTerminal> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(console)?;
        // SAFETY: the structure contains only integers, for which zero is valid.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the structure lives until the call returns.
        if unsafe { libc::tcgetattr(file.as_raw_fd(), &raw mut before) } < 0 {
            return Err(Error::last_os_error());
        }
        let mut silent = before;
        silent.c_lflag = (before.c_lflag | libc::ICANON | libc::ECHONL) & !libc::ECHO;
        set_terminal_attributes(&file, &silent)?;
        Ok(NoEchoTerminal { file, before })
    }
}

impl Drop for NoEchoTerminal {
    fn drop(&mut self) {
        let _ = set_terminal_attributes(&self.file, &self.before);
    }
}

/// Sets terminal attributes and discards unread input.
fn set_terminal_attributes(file: &File, to: &libc::termios) -> Result<()> {
    // SAFETY: the descriptor is open, and the structure lives until the call returns.
    if unsafe { libc::tcsetattr(file.as_raw_fd(), libc::TCSAFLUSH, to) } < 0 {
        return Err(Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::io::Write;
    use std::os::fd::FromRawFd;
    use std::path::PathBuf;
    use std::time::Duration;

    /// Opens a pseudoterminal. Returns the end at which the operator types, and the path of the terminal.
    fn terminal() -> (File, PathBuf) {
        let mut name = [0; 64];
        // SAFETY: the descriptors are open, and the length passed is that of the buffer.
        let (person, name) = unsafe {
            let person = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
            assert!(person >= 0 && libc::grantpt(person) == 0 && libc::unlockpt(person) == 0);
            assert_eq!(libc::ptsname_r(person, name.as_mut_ptr(), name.len()), 0);
            (File::from_raw_fd(person), CStr::from_ptr(name.as_ptr()).to_str().unwrap().to_owned())
        };
        (person, name.into())
    }

    fn shows(terminal: &File) -> bool {
        // SAFETY: as above.
        let mut now: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut now) }, 0);
        now.c_lflag & libc::ECHO != 0
    }

    #[test]
    fn hidden_line_is_read_without_echo() {
        let (mut person, console) = terminal();
        let held = OpenOptions::new().read(true).write(true).open(&console).unwrap();
        assert!(shows(&held));
        let until = Instant::now() + Duration::from_secs(60);
        let reader = std::thread::spawn(move || read_hidden_line(&console, "a question", until));
        while shows(&held) {
            std::thread::sleep(Duration::from_millis(5));
        }
        person.write_all(b"correct horse\n").unwrap();
        assert_eq!(reader.join().unwrap().unwrap().as_deref(), Some("correct horse"));
        assert!(shows(&held), "as it was before");
        let mut echoed = vec![0; 64];
        let length = person.read(&mut echoed).unwrap();
        assert_eq!(&echoed[..length], b"\r\n", "only the line end is echoed");
    }

    #[test]
    fn hidden_input_times_out_and_requires_a_terminal() {
        let (person, console) = terminal();
        assert_eq!(read_hidden_line(&console, "a question", Instant::now()).unwrap(), None);
        drop(person);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(read_hidden_line(file.path(), "a question", Instant::now()).is_err());
    }
}
