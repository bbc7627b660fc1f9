//! External programs: output, deadlines and errors.

use super::output_lines::TAIL_LINES;
use super::*;

#[test]
fn output_is_returned_and_watched() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let lines = seen.clone();
    let output = ToolCommand::new("printf")
        .arg("one\ntwo\n")
        .run_watched(move |line| lines.lock().unwrap().push(line.to_owned()))
        .unwrap();
    assert_eq!(output.stdout, "one\ntwo\n");
    assert_eq!(*seen.lock().unwrap(), ["one", "two"]);
}

#[test]
fn error_contains_command_exit_code_and_last_lines() {
    let error = ToolCommand::new("sh").args(["-c", "echo 'disk is on fire' >&2; exit 3"]).run().unwrap_err();
    assert_eq!(
        error.to_string(),
        "`sh -c 'echo '\\''disk is on fire'\\'' >&2; exit 3'` exited with 3: disk is on fire"
    );
}

#[test]
fn missing_program_is_named() {
    let error = ToolCommand::new("no-such-tool").run().unwrap_err();
    assert!(error.to_string().starts_with("`no-such-tool` could not be started"), "{error}");
    assert_eq!(find_missing_tools(&["sh", "no-such-tool"]), ["no-such-tool"]);
}

#[test]
fn check_before_start_can_forbid_the_start() {
    let run = |allowed: bool| {
        let check = move || if allowed { Ok(()) } else { Err(std::io::Error::other("still busy")) };
        ToolCommand::new("echo").arg("started").check_before_start(check).run()
    };
    assert_eq!(run(true).unwrap().stdout, "started\n");
    assert_eq!(run(false).unwrap_err().to_string(), "`echo started` could not be started: still busy");
}

#[test]
fn deadline_ends_the_process_and_its_children() {
    let began = Instant::now();
    let error = ToolCommand::new("sh")
        .args(["-c", "echo waiting; sleep 60 & sleep 60"])
        .deadline(Duration::from_millis(300))
        .run()
        .unwrap_err();
    assert!(matches!(error.end, ProcessFailure::Deadline { .. }), "{error}");
    assert_eq!(error.tail, ["waiting"]);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn deadline_error_contains_kernel_warnings() {
    let warnings = vec!["nvme nvme1: I/O 684 QID 1 timeout, reset controller".to_owned()];
    let end = ProcessFailure::Deadline { limit: Duration::from_secs(120), warnings };
    let error = CommandError { argv: "lvm pvs".to_owned(), end, tail: vec!["one".to_owned()] };
    assert_eq!(
        error.to_string(),
        "`lvm pvs` did not end within 120 s and was killed: one; kernel warnings in the meantime: \
         nvme nvme1: I/O 684 QID 1 timeout, reset controller"
    );
}

#[test]
fn stdin_is_empty() {
    assert_eq!(ToolCommand::new("cat").run().unwrap().stdout, "");
}

#[test]
fn captured_output_is_limited() {
    let output = ToolCommand::new("sh").args(["-c", "yes | head -c 4000000"]).run().unwrap();
    assert!((OUTPUT_BYTES - 4096..=OUTPUT_BYTES).contains(&output.stdout.len()), "{}", output.stdout.len());
}

#[test]
fn required_output_is_complete_or_an_error() {
    let said = |limit: usize| {
        ToolCommand::new("sh").args(["-c", "yes | head -c 4000000"]).require_complete_output(limit).run()
    };
    assert_eq!(said(4_000_000).unwrap().stdout.len(), 4_000_000);
    let error = said(3_999_999).unwrap_err();
    assert!(matches!(error.end, ProcessFailure::NotWhole(3_999_999)), "{error}");
    let expected = "` printed more than 3999999 bytes, or left behind a process that keeps its output pipe open";
    assert!(error.to_string().ends_with(expected), "{error}");
    // A background process that outlives the tool.
    let error =
        ToolCommand::new("sh").args(["-c", "echo one; sleep 9 &"]).require_complete_output(100).run().unwrap_err();
    assert!(matches!(error.end, ProcessFailure::NotWhole(100)), "{error}");
}

#[test]
fn message_without_program_output_describes_the_failure() {
    let failed = |end| {
        let tail = vec!["hunter2".to_owned(), "exited with 5: hunter2".to_owned()];
        let error = CommandError { argv: "sh -c x".to_owned(), end, tail };
        common::error::Error::with_source(common::error::Phase::Target, "run /install.sh", error).to_string()
    };
    let deadline = ProcessFailure::Deadline { limit: Duration::from_secs(2), warnings: vec!["hunter2".to_owned()] };
    for (end, expected) in [
        (ProcessFailure::Exited(12), "run /install.sh: `sh -c x` exited with 12"),
        (ProcessFailure::Killed(9), "run /install.sh: `sh -c x` was killed by signal 9"),
        (deadline, "run /install.sh: `sh -c x` did not end within 2 s and was killed"),
        (
            ProcessFailure::NotWhole(7),
            "run /install.sh: `sh -c x` printed more than 7 bytes, or left behind a process that keeps its output pipe open",
        ),
    ] {
        let message = failed(end);
        assert!(message.contains("hunter2"), "{message}");
        assert_eq!(without_program_output(&message), expected);
        assert_eq!(without_program_output(&format!("{expected}\nhunter2")), expected);
    }
    for (message, expected) in [
        ("", ""),
        ("disk full", "disk full"),
        ("one\ntwo", "one"),
        ("it exited with 3, saying: hunter2", "it exited with 3"),
    ] {
        assert_eq!(without_program_output(message), expected);
    }
}

#[test]
fn only_the_last_lines_are_quoted() {
    let error = ToolCommand::new("sh").args(["-c", "seq 1 500 >&2; exit 1"]).run().unwrap_err();
    assert_eq!(error.tail.len(), TAIL_LINES);
    assert_eq!(error.tail.last().map(String::as_str), Some("500"));
}
