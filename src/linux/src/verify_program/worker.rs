//! Process that enters the sandbox and executes `verify`.

use crate::process::program_sandbox::{self, SandboxFile};
use model::ganeti_os_definition::DefinitionFiles;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command, Stdio};

/// Directory of the definition in the sandbox.
const DEFINITION_DIRECTORY: &str = "/definition";

/// Exit code that indicates that `verify` could not be started.
pub(crate) const NOT_STARTED_EXIT_CODE: i32 = 125;
/// Prefix of the error message that is printed if `verify` could not be started.
pub(crate) const NO_SANDBOX_PREFIX: &str = "no sandbox: ";

/// Enters the sandbox and executes the `verify` program of the OS definition. The files of the definition are read from
/// standard input. The environment is preserved.
pub fn run_verify_worker() -> ! {
    let Err(error) = enter_and_exec();
    eprintln!("{NO_SANDBOX_PREFIX}{error}");
    process::exit(NOT_STARTED_EXIT_CODE)
}

fn enter_and_exec() -> io::Result<std::convert::Infallible> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let files: DefinitionFiles = serde_json::from_slice(&text)?;
    let seen = files.iter().map(|(path, file)| SandboxFile {
        path: Path::new(DEFINITION_DIRECTORY).join(path),
        executable: file.executable,
        content: file.text.as_bytes(),
    });
    program_sandbox::enter_sandbox(&seen.collect::<Vec<_>>())?;
    let program = Path::new(DEFINITION_DIRECTORY).join("verify");
    let error = Command::new(&program).arg("parameters").current_dir(DEFINITION_DIRECTORY).stdin(Stdio::null()).exec();
    let first = files.get("verify").and_then(|file| file.text.lines().next()).unwrap_or_default();
    Err(io::Error::other(format!("cannot start `verify` (its first line is {first:?}): {error}")))
}
