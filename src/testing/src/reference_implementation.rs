//! Process that runs another implementation. Tests compare its answers with those of drophammer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Process that answers requests one after the other. A request consists of four bytes with its length, and its
/// content. An answer is one line. The process is killed when this value is dropped.
pub struct ReferenceProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ReferenceProcess {
    pub fn start(command: &mut Command) -> ReferenceProcess {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        ReferenceProcess { child, input, output }
    }

    /// Starts a script with Debian's Python interpreter, for which Debian's packages install their modules.
    pub fn start_python(script: &str) -> ReferenceProcess {
        ReferenceProcess::start(Command::new("/usr/bin/python3").arg(script))
    }

    /// Sends a request, and returns the answer.
    pub fn ask(&mut self, request: &[u8]) -> String {
        self.input.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
        self.input.write_all(request).unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for ReferenceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
