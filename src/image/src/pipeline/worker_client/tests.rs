//! Workers that succeed, exit early, or send invalid events.

use super::*;
use crate::pipeline::StageClock;
use crate::pipeline::buffer_pipe::PipeSender;
use crate::testing::{compress, noise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn all(worker: &mut DecodeWorker) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = worker.next_chunk()? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Sends these bytes to the worker. The caller sends the end.
fn fed(worker: &DecodeWorker, bytes: &[u8]) -> PipeSender {
    let sender = worker.sender();
    for piece in bytes.chunks(BUFFER_BYTES) {
        let mut filling = worker.pool().take_buffer(&StageClock::default());
        filling[..piece.len()].copy_from_slice(piece);
        sender.send(filling.into_chunk(piece.len()), &StageClock::default()).unwrap();
    }
    sender
}

fn start() -> DecodeWorker {
    DecodeWorker::start(PayloadKind::AnyBytes, &StageClocks::start()).unwrap()
}

#[test]
fn worker_decodes_images_unchanged() {
    // The image is larger than all buffers together.
    let image = [noise(40 << 20), vec![7; 90 << 20]].concat();
    for format in ["plain", "zstd", "lz4"] {
        let packed = compress(format, &image);
        let mut worker = start();
        let sender = worker.sender();
        let pool = worker.pool();
        let feeder = thread::spawn(move || {
            for piece in packed.chunks(BUFFER_BYTES) {
                let mut filling = pool.take_buffer(&StageClock::default());
                filling[..piece.len()].copy_from_slice(piece);
                sender.send(filling.into_chunk(piece.len()), &StageClock::default()).unwrap();
            }
            sender.end();
        });
        assert!(all(&mut worker).unwrap() == image, "{format}");
        feeder.join().unwrap();
    }
}

#[test]
fn worker_has_only_its_socket_and_no_privileges() {
    let mut worker = start();
    let _sender = fed(&worker, &noise(BUFFER_BYTES));
    worker.next_chunk().unwrap();
    let process = format!("/proc/{}", worker.id().unwrap());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    println!("{status}");
    let has = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {status}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for ids in [has("Uid"), has("Gid")] {
        assert!(ids.len() == 4 && ids.iter().all(|id| *id != "0" && *id == ids[0]), "{status}");
    }
    assert_eq!((has("NoNewPrivs"), has("Seccomp")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(has(set), ["0000000000000000"]);
    }
    if nix::unistd::geteuid().is_root() {
        assert!(has("Groups").is_empty(), "{status}");
        // Only root can inspect the worker. Other processes cannot, even if they run as the same user as the worker.
        let open: Vec<_> = std::fs::read_dir(format!("{process}/fd")).unwrap().map(|entry| entry.unwrap()).collect();
        let open = open.iter().map(|entry| std::fs::read_link(entry.path()).unwrap().display().to_string());
        let kinds: Vec<String> = open.map(|name| name.split(':').next().unwrap_or_default().to_owned()).collect();
        assert!(kinds.iter().all(|kind| ["socket", "pipe", "/dev/null"].contains(&kind.as_str())), "{kinds:?}");
    }
    let limits = std::fs::read_to_string(format!("{process}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("0"), "{files}");
}

#[test]
fn killed_worker_is_reported_and_its_sender_released() {
    let mut worker = start();
    let sender = fed(&worker, &noise(BUFFER_BYTES));
    worker.next_chunk().unwrap();
    let id = Pid::from_raw(i32::try_from(worker.id().unwrap()).unwrap());
    kill(id, Signal::SIGSYS).unwrap();
    let error = all(&mut worker).unwrap_err().to_string();
    assert_eq!(
        error,
        "the worker process that decodes the image ended unexpectedly: the process was killed by signal 31"
    );
    // The sender to the worker gets an error.
    let clock = StageClock::default();
    while sender.send(worker.pool().take_buffer(&clock).into_chunk(1), &clock).is_ok() {}
}

#[test]
fn errors_of_the_source_and_decoder_are_reported() {
    for (at, format) in [(0, "plain"), (100_000, "zstd"), (600_000, "gzip")] {
        let mut worker = start();
        let sender = fed(&worker, &compress(format, &noise(800_000))[..at]);
        sender.fail(io::Error::other("fetch http://someone:secret@h/image: gone"));
        assert_eq!(all(&mut worker).unwrap_err().to_string(), "fetch http://someone:secret@h/image: gone");
    }
    let mut worker = start();
    fed(&worker, &compress("zstd", &noise(800_000))[..100_000]).end();
    let error = all(&mut worker).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("the zstd stream is truncated: it ends within a frame"), "{error}");
}

/// Simulates a compromised worker that sends these events.
fn taken_over(packets: &[&[WorkerEvent]]) -> io::Result<Vec<u8>> {
    let packets: Vec<Vec<u8>> = packets.iter().map(|events| packet(events)).collect();
    says(&packets)
}

fn packet(events: &[WorkerEvent]) -> Vec<u8> {
    let mut packet = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut packet));
    packet
}

fn says(packets: &[Vec<u8>]) -> io::Result<Vec<u8>> {
    let (wire, socket) = WorkerSocket::create_pair().unwrap();
    let mut worker = DecodeWorker::connect(wire, PayloadKind::AnyBytes, &StageClocks::start()).unwrap();
    let other = WorkerSocket::over(socket);
    packets.iter().for_each(|packet| other.send(packet).unwrap());
    other.close();
    all(&mut worker)
}

const READY: WorkerEvent = WorkerEvent::Ready { landlock: true };

fn lends(region: SharedRegion, buffer: usize, at: usize, bytes: usize) -> WorkerEvent<'static> {
    let small = |number: usize| u32::try_from(number).unwrap();
    WorkerEvent::SharedBuffer { region, buffer: small(buffer), at: small(at), bytes: small(bytes) }
}

#[test]
fn compromised_worker_can_send_only_content() {
    let end = || WorkerEvent::End(vec![("decode", 1)]);
    assert_eq!(
        taken_over(&[&[READY, WorkerEvent::Inline(b"as "), WorkerEvent::Inline(b"it is")], &[end()]]).unwrap(),
        b"as it is"
    );
    let zeros = taken_over(&[&[
        READY,
        lends(SharedRegion::Plain, 1 << 20, 1 << 20, 9),
        lends(SharedRegion::Packed, 0, 5, 2),
        end(),
    ]]);
    assert_eq!(zeros.unwrap(), [0; 11]);
    for (region, bytes) in [(SharedRegion::Packed, PACKED_BYTES), (SharedRegion::Plain, PLAIN_BYTES)] {
        assert_eq!(taken_over(&[&[READY, lends(region, 0, bytes - 1, 1), end()]]).unwrap(), [0]);
        for outside in [
            lends(region, 0, bytes, 1),
            lends(region, 0, bytes - 1, 2),
            lends(region, bytes + 1, bytes + 1, 0),
            lends(region, 1000, 999, 1),
            lends(region, 0, 0, u32::MAX as usize),
            lends(region, u32::MAX as usize, u32::MAX as usize, u32::MAX as usize),
        ] {
            let error = taken_over(&[&[READY, outside]]).unwrap_err().to_string();
            assert!(error.contains("sent an invalid packet"), "{error}");
        }
    }
    for early in [&[WorkerEvent::Inline(b"x")][..], &[end()], &[READY, READY]] {
        assert!(taken_over(&[early]).unwrap_err().to_string().contains("sent an invalid packet"));
    }
    let words = WorkerEvent::Failed { is_content: true, text: "\u{1b}[2Jgone".to_owned() };
    assert_eq!(taken_over(&[&[words]]).unwrap_err().to_string(), " [2Jgone");
    assert!(taken_over(&[&[READY]]).unwrap_err().to_string().contains("ended unexpectedly"));
}

#[test]
fn any_worker_output_terminates() {
    let mut random = fastrand::Rng::with_seed(15);
    for _ in 0..2000 {
        let mut packets = vec![packet(&[READY, WorkerEvent::Inline(b"content"), lends(SharedRegion::Plain, 0, 0, 10)])];
        packets.extend((0..3).map(|_| (0..random.usize(1..60)).map(|_| random.u8(0..8)).collect::<Vec<u8>>()));
        let packet = random.choice(&mut packets).unwrap();
        let at = random.usize(..packet.len());
        packet[at] = random.u8(..);
        // Only termination is tested; the result is ignored.
        drop(says(&packets));
    }
}
