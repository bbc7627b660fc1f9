//! Executable files that tests create and run.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable file. A child process writes the file: if the test itself opened the file, a program that another
/// thread starts at the same time would inherit the descriptor until its own execve(2), and the file could not be
/// executed in the meantime (`ETXTBSY`).
///
/// # Panics
/// Panics if the file cannot be written.
pub fn write_executable(path: &Path, text: &str) {
    let mut child = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh cannot be started");
    child.stdin.take().expect("the input is a pipe").write_all(text.as_bytes()).expect("sh does not read its input");
    assert!(child.wait().expect("sh cannot be waited for").success(), "{} cannot be written", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other threads start programs all the time while each file is written and run.
    #[test]
    fn a_file_can_be_run_although_other_threads_start_programs() {
        let dir = std::env::temp_dir().join(format!("write-executable-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dir = &dir;
                scope.spawn(move || {
                    for number in 0..50 {
                        let path = dir.join(format!("{thread}-{number}"));
                        write_executable(&path, "#!/bin/sh\nexit 7\n");
                        assert_eq!(Command::new(&path).status().unwrap().code(), Some(7));
                    }
                });
            }
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
