//! Executable files that tests create and run.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable file from a child process. If the test itself wrote the file, a program that another thread
/// starts at the same time would inherit the open descriptor until its execve(2), and the kernel would meanwhile refuse
/// to execute the file (`ETXTBSY`).
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

    /// While each file is written and executed, other threads start programs continuously.
    #[test]
    fn written_executable_runs_while_other_threads_spawn() {
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
