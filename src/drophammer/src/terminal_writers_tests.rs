//! Test that only the listed files write to the terminal directly; all other code must call functions in these files.

use testing::sources::product_sources;

/// Files that write to a terminal directly, each through `format::terminal_escaping`.
const WRITERS: [&str; 3] = ["common/src/output.rs", "linux/src/console.rs", "http_server/src/server_log.rs"];
/// Source file of a sandboxed process. The parent process reads the standard error of this process.
const WORKER: &str = "linux/src/verify_program/worker.rs";

/// Returns the first line that writes to standard output or standard error.
fn writes(code: &str) -> Option<&str> {
    let words = ["print!(", "println!(", "dbg!(", "io::stdout()", "io::stderr()", "ProgressDrawTarget::"];
    code.lines().find(|line| {
        words
            .iter()
            .any(|word| line.replace("stdout().is_terminal()", "").replace("stderr().is_terminal()", "").contains(word))
    })
}

#[test]
fn no_other_file_writes_to_a_terminal() {
    let sources = product_sources();
    let writers = sources.iter().filter_map(|(file, code)| Some((file, writes(code)?)));
    let is_known = |file: &std::path::Path| WRITERS.iter().chain([&WORKER]).any(|known| file.ends_with(known));
    let others: Vec<_> = writers.clone().filter(|(file, _)| !is_known(file)).collect();
    assert!(others.is_empty(), "write through common::output or linux::console: {others:?}");
    assert_eq!(writers.count(), WRITERS.len() + 1, "the search must find every file that writes to a terminal");
}
