//! Simulated operator at the machine's console, who types a line when the console shows a question.

use crate::qemu_machine::{POLL, read};
use crate::scenario::TypedLine;
use std::io::{Read, Result, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum number of answers to a question that is repeated.
const MAXIMUM_REPEATED_ANSWERS: usize = 4;

/// Delay before a line is typed. A program may still echo its input just after it has printed a prompt, and a real
/// operator does not type immediately either.
const TYPING_DELAY: Duration = Duration::from_secs(1);

/// Simulated operator. Typing ends when this value is dropped.
pub struct ConsoleTypist(#[expect(dead_code, reason = "the thread checks whether it still exists")] Arc<()>);

impl ConsoleTypist {
    /// Adds a serial port to QEMU's command line. Its output goes to `console`, and the simulated operator types into
    /// it.
    pub fn attach_console(command: &mut Command, console: &Path, lines: &[TypedLine]) -> ConsoleTypist {
        let name = format!("drophammer-{}", uuid::Uuid::new_v4());
        let socket = format!("socket,id=console,path={name},abstract=on,server=on,wait=off,logappend=on");
        command.arg("-chardev").arg(format!("{socket},logfile={}", console.display()));
        command.args(["-serial", "chardev:console"]);
        ConsoleTypist::spawn_typist(console, lines, move || {
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?)
        })
    }

    fn spawn_typist(
        console: &Path,
        lines: &[TypedLine],
        connect: impl Fn() -> Result<UnixStream> + Send + 'static,
    ) -> ConsoleTypist {
        let operator_present = Arc::new(());
        let (console, lines, operator) = (console.to_owned(), lines.to_vec(), Arc::downgrade(&operator_present));
        std::thread::spawn(move || {
            if let Err(error) = type_lines(&console, &lines, &connect, &operator) {
                eprintln!("console input ended: {error}");
            }
        });
        ConsoleTypist(operator_present)
    }
}

fn type_lines(
    console: &Path,
    lines: &[TypedLine],
    connect: &impl Fn() -> Result<UnixStream>,
    operator: &Weak<()>,
) -> Result<()> {
    let mut typed = vec![0; lines.len()];
    let mut keyboard = None;
    while operator.strong_count() > 0 {
        let shown = read(console);
        for (line, typed) in lines.iter().zip(&mut typed) {
            if *typed >= shown.matches(&line.at).count().min(MAXIMUM_REPEATED_ANSWERS) {
                continue;
            }
            let keyboard = match &mut keyboard {
                Some(keyboard) => keyboard,
                none => none.insert(discard_output(connect()?)?),
            };
            std::thread::sleep(TYPING_DELAY);
            keyboard.write_all(format!("{}\n", line.line).as_bytes())?;
            *typed += 1;
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Reads and discards the output on this socket, so that the socket does not fill up. The console file contains the
/// same output.
fn discard_output(keyboard: UnixStream) -> Result<UnixStream> {
    let mut other = keyboard.try_clone()?;
    std::thread::spawn(move || {
        let mut room = [0; 4096];
        while other.read(&mut room).is_ok_and(|length| length > 0) {}
    });
    Ok(keyboard)
}

/// Tests that each occurrence of a question is answered once, even if other lines are printed in between.
pub fn self_test() {
    let folder = tempfile::tempdir().expect("a folder");
    let console = folder.path().join("console");
    std::fs::write(&console, "passphrase? ").expect("written");
    let (here, mut console_end) = UnixStream::pair().expect("a socket");
    let lines = [("passphrase?", "horse"), ("once more", "house")];
    let lines = lines.map(|(at, line)| TypedLine { at: at.to_owned(), line: line.to_owned() });
    let _typist = ConsoleTypist::spawn_typist(&console, &lines, move || here.try_clone());
    let mut typed = |expected: &str| {
        let mut came = vec![0; expected.len()];
        console_end.read_exact(&mut came).expect("typed");
        assert_eq!(String::from_utf8_lossy(&came), expected);
    };
    typed("horse\n");
    std::fs::write(&console, "passphrase? a word of the kernel\nonce more").expect("written");
    typed("house\n");
    std::fs::write(&console, "passphrase? a word of the kernel\nonce more\npassphrase? ").expect("written");
    typed("horse\n");
}
