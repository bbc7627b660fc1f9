//! Test that only the listed files write to the terminal directly. All other code must call functions in these files.

use testing::sources::product_sources;

/// Files that write to a terminal directly. They escape their output with `format::terminal_escaping`.
const WRITERS: [&str; 3] = ["common/src/output.rs", "linux/src/console_log.rs", "http_server/src/server_log.rs"];
/// Source file of a sandboxed process, whose standard error is read by its parent process.
const WORKER: &str = "linux/src/verify_program/worker.rs";

/// Returns the first line of the code that writes to standard output or standard error.
fn writes(code: &str) -> Option<&str> {
    let words = ["print!(", "println!(", "dbg!(", "io::stdout()", "io::stderr()", "ProgressDrawTarget::"];
    code.lines().find(|line| {
        words
            .iter()
            .any(|word| line.replace("stdout().is_terminal()", "").replace("stderr().is_terminal()", "").contains(word))
    })
}

#[test]
fn only_listed_files_write_to_a_terminal() {
    let sources = product_sources();
    let writers = sources.iter().filter_map(|(file, code)| Some((file, writes(code)?)));
    let is_known = |file: &std::path::Path| WRITERS.iter().chain([&WORKER]).any(|known| file.ends_with(known));
    let others: Vec<_> = writers.clone().filter(|(file, _)| !is_known(file)).collect();
    assert!(others.is_empty(), "write through common::output or linux::console_log: {others:?}");
    assert_eq!(writers.count(), WRITERS.len() + 1, "the search must find every file that writes to a terminal");
}
