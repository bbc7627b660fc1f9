//! Workers that read filesystems, exit early, or are compromised.

#![allow(clippy::single_range_in_vec_init, clippy::reversed_empty_ranges, reason = "hostile lists have such ranges")]

use super::*;
use crate::used_blocks::ENDS_BYTES;
use std::thread;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

fn disk() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    file
}

fn swap() -> File {
    let file = disk();
    file.write_all_at(b"SWAPSPACE2", 4096 - 10).unwrap();
    file.write_all_at(&[1_u32.to_le_bytes(), ((SIZE / 4096 - 1) as u32).to_le_bytes()].concat(), 1024).unwrap();
    file
}

#[test]
fn sandboxed_process_reads_the_disk_through_its_parent() {
    let used = read_in_worker(&swap(), SIZE, 512);
    assert_eq!((&*used.what, used.ranges), ("swap", vec![0..ENDS_BYTES, SIZE - ENDS_BYTES..SIZE]));
    let used = read_in_worker(&disk(), SIZE, 512);
    assert_eq!(
        (&*used.what, used.has_table, used.ranges),
        ("the whole disk", false, std::iter::once(0..SIZE).collect())
    );
}

#[test]
fn worker_has_only_its_socket_and_no_disk_descriptor() {
    let (worker, socket) = start_worker().unwrap();
    // The worker waits for the request, and is sandboxed before it requests the first bytes.
    ReadRequest { size: SIZE, sector: 512 }.write_to(&mut &socket).unwrap();
    assert!(matches!(WorkerMessage::read_from(&mut &socket).unwrap(), WorkerMessage::Read { at: 512, length: 512 }));
    let process = format!("/proc/{}", worker.id());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    let has = |name: &str, value: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        assert_eq!(line.unwrap().split_whitespace().next(), Some(value), "{name}: {status}");
    };
    for (name, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0000000000000000")] {
        has(name, value);
    }
    let limits = std::fs::read_to_string(format!("{process}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(["Max data size", "Max cpu time", "Max open files"].map(limit), ["268435456", "300", "0"]);
    if nix::unistd::geteuid().is_root() {
        let open: Vec<_> = std::fs::read_dir(format!("{process}/fd")).unwrap().map(|entry| entry.unwrap()).collect();
        let open: Vec<_> = open.iter().map(|entry| std::fs::read_link(entry.path()).unwrap()).collect();
        let is_harmless = |path: &std::path::PathBuf| {
            ["socket", "pipe", "/dev/null"].iter().any(|kind| path.display().to_string().starts_with(kind))
        };
        assert!(open.iter().all(is_harmless), "{open:?}");
    }
}

/// Simulates a compromised worker that sends these bytes, and returns the result of its parent.
fn taken_over(messages: &[u8]) -> io::Result<UsedBlocks> {
    let (here, there) = UnixStream::pair().unwrap();
    let messages = messages.to_vec();
    let other = thread::spawn(move || {
        let mut there = there;
        // The parent may have closed its end.
        let _ = there.write_all(&messages);
        let _ = there.shutdown(std::net::Shutdown::Write);
        let _ = io::copy(&mut there, &mut io::sink());
    });
    let served = serve_worker(&here, &disk(), ReadRequest { size: SIZE, sector: 512 }, Instant::now() + WORKER_TIMEOUT);
    drop(here);
    other.join().unwrap();
    served
}

fn message(messages: &[WorkerMessage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.write_to(&mut bytes).unwrap());
    bytes
}

fn done() -> WorkerMessage {
    WorkerMessage::Done { has_table: false, what: "ext4\u{1b}[2J".to_owned() }
}

#[test]
fn only_ordered_ranges_within_the_disk_are_accepted() {
    let says = |ranges: &[Range<u64>]| taken_over(&message(&[WorkerMessage::Used(ranges.to_vec()), done()]));
    let used = says(&[4 * MIB..5 * MIB, 6 * MIB..SIZE]).unwrap();
    assert_eq!(used.ranges, [0..MIB, 4 * MIB..5 * MIB, 6 * MIB..SIZE]);
    assert_eq!(used.what, "ext4 [2J");
    assert_eq!(says(&[]).unwrap().ranges, [0..MIB, SIZE - MIB..SIZE], "both ends always count as used");
    for bad in [
        &[5 * MIB..4 * MIB][..],
        &[4 * MIB..4 * MIB],
        &[4 * MIB..5 * MIB, 4 * MIB..6 * MIB],
        &[4 * MIB..5 * MIB, 5 * MIB..6 * MIB],
        &[4 * MIB..5 * MIB, 2 * MIB..3 * MIB],
        &[0..SIZE + 1],
        &[SIZE..u64::MAX],
    ] {
        assert_eq!(says(bad).unwrap_err().kind(), ErrorKind::InvalidData, "{bad:?}");
    }
}

#[test]
fn reads_beyond_the_disk_or_limits_are_refused() {
    let reads = |at, length| taken_over(&message(&[WorkerMessage::Read { at, length }, done()]));
    assert!(reads(0, 1 << 20).is_ok() && reads(SIZE - 1, 1).is_ok());
    for (at, length) in [(SIZE, 1), (u64::MAX, 1), (SIZE - 1, 2)] {
        assert_eq!(reads(at, length).unwrap_err().kind(), ErrorKind::InvalidData, "{at} {length}");
    }
    let too_long = [&[1][..], &[0; 8], &u32::MAX.to_le_bytes()].concat();
    let too_many = [&[2][..], &5000_u32.to_le_bytes()].concat();
    let long_name = [&[3, 0][..], &u32::MAX.to_le_bytes()].concat();
    for bad in [&too_long[..], &too_many, &long_name, &[9], &[0]] {
        assert_eq!(taken_over(bad).unwrap_err().kind(), ErrorKind::InvalidData, "{bad:?}");
    }
    // The messages of the worker are truncated.
    let whole = message(&[WorkerMessage::Used(vec![4 * MIB..5 * MIB]), done()]);
    for length in 0..whole.len() {
        assert_eq!(taken_over(&whole[..length]).unwrap_err().kind(), ErrorKind::UnexpectedEof, "{length}");
    }
}

#[test]
fn dead_or_hanging_worker_leaves_the_whole_disk_used() {
    let (mut worker, socket) = start_worker().unwrap();
    let id = nix::unistd::Pid::from_raw(i32::try_from(worker.id()).unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
    let order = ReadRequest { size: SIZE, sector: 512 };
    let why = serve_worker(&socket, &disk(), order, Instant::now() + WORKER_TIMEOUT).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(worker.describe_end(), "the process was killed by signal 9");
    // A worker that sends nothing, and one that does not read.
    let (here, _there) = UnixStream::pair().unwrap();
    for until in [Instant::now() + Duration::from_millis(20), Instant::now()] {
        assert_eq!(serve_worker(&here, &disk(), order, until).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
