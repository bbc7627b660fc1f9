//! Fuzzing: streams that no compressor would write, made from small good ones. No panic, no hang, bounded memory, and several
//! threads come to the same end as one.
//!
//! An input that breaks something is kept in `testdata/fuzz/decode`, which every run begins with.

use super::forge::specimens;
use super::*;
use fastrand::Rng;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Inputs of a run without DROPHAMMER_FUZZ_SECONDS, always the same ones.
const FEW: u64 = 300;
/// An input that takes so long never comes to an end, however busy the machine is.
const HANGS: Duration = Duration::from_secs(30);
/// More than this is not read out of one input.
const ENOUGH_BYTES: usize = 24 << 20;
/// The largest window or dictionary that is taken, twice, and all buffers.
const MEMORY_KIB: u64 = 512 * 1024;

type Current = Arc<Mutex<(u64, Vec<u8>, Instant)>>;

/// `DROPHAMMER_FUZZ_SECONDS` says how long, `DROPHAMMER_FUZZ_SEED` repeats a run.
#[test]
fn fuzz_decoders() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("DROPHAMMER_FUZZ_SECONDS");
    let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { fastrand::u64(..) } else { 1 });
    println!("DROPHAMMER_FUZZ_SEED={seed}");
    let current: Current = Arc::new(Mutex::new((0, Vec::new(), Instant::now())));
    let (end, ended) = mpsc::channel();
    let worker = {
        let current = current.clone();
        thread::spawn(move || {
            let counts = run(seed, seconds.map(Duration::from_secs), &current);
            let _ = end.send(());
            counts
        })
    };
    while ended.recv_timeout(Duration::from_millis(250)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let (number, input, began) = &*current.lock().unwrap();
        assert!(began.elapsed() < HANGS, "input {number} hangs: {}", keep(input).display());
    }
    let (inputs, good) = worker.join().unwrap();
    println!("{inputs} streams, {good} of them decoded to their end");
    if seconds.is_some() {
        let peak = peak_kib();
        assert!(peak < MEMORY_KIB, "{peak} KiB were needed");
        println!("peak memory {} MiB", peak / 1024);
    }
}

/// Decodes input after input; gives their number, and how many of them were good.
fn run(seed: u64, time: Option<Duration>, current: &Current) -> (u64, u64) {
    let corpus: Vec<Vec<u8>> = specimens().into_iter().map(|(_, stream)| stream).collect();
    let mut random = Rng::with_seed(seed);
    let began = Instant::now();
    let goes_on = |number| time.map_or(number < FEW, |time| began.elapsed() < time);
    let mut kept = kept().into_iter();
    let (mut number, mut good) = (0, 0);
    while goes_on(number) {
        let input = kept.next().unwrap_or_else(|| mutated(&corpus, &mut random));
        *current.lock().unwrap() = (number, input.clone(), Instant::now());
        good += u64::from(judge(&input, random.usize(1..2000)));
        number += 1;
    }
    (number, good)
}

/// Was it good? Fails with it when it panics, or when several threads make something else of it than one.
fn judge(input: &[u8], buffer_bytes: usize) -> bool {
    let how = How { buffer_bytes, plain: Plain::Tar, threads: 1 };
    let one = catch_unwind(|| beginning(input, how));
    let several = catch_unwind(|| beginning(input, How { threads: 2, ..how }));
    let (Ok(one), Ok(several)) = (one, several) else {
        panic!("a panic, see above: {}", keep(input).display());
    };
    let says = |made: &io::Result<Vec<u8>>| made.as_ref().map_or_else(|error| error.to_string(), |_| "good".to_owned());
    let same = match (&one, &several) {
        (Ok(one), Ok(several)) => one == several,
        (Err(_), Err(_)) => true,
        _ => false,
    };
    assert!(same, "one: {}, several: {}: {}", says(&one), says(&several), keep(input).display());
    assert!(!says(&one).contains("without a word"), "{}", keep(input).display());
    one.is_ok()
}

/// All of it, or as much as is enough: then the reader goes away.
fn beginning(input: &[u8], how: How) -> io::Result<Vec<u8>> {
    through(source(input, how.buffer_bytes, Ok(())), how, |mut reader| {
        let mut out = Vec::new();
        while let Some(chunk) = reader.take_chunk(usize::MAX)? {
            out.extend_from_slice(&chunk);
            if out.len() >= ENOUGH_BYTES {
                out.truncate(ENOUGH_BYTES);
                break;
            }
        }
        Ok(out)
    })
}

fn mutated(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..random.usize(1..6) {
        change(&mut bytes, corpus, random);
    }
    if random.u8(..4) > 0 {
        mend_lz4(&mut bytes);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Rng) {
    const EDGES: [u8; 8] = [0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff];
    let range = |random: &mut Rng, length: usize| {
        let start = random.usize(..=length);
        start..(start + random.usize(..64)).min(length)
    };
    // Most of a format is in the first bytes of its frames.
    let place = |random: &mut Rng, length: usize| {
        let end = if random.bool() { length.min(24) } else { length };
        random.usize(..end)
    };
    if bytes.is_empty() {
        bytes.extend(&corpus[random.usize(..corpus.len())]);
    }
    let at = place(random, bytes.len());
    match random.u8(..9) {
        0 => bytes[at] ^= 1 << random.u8(..8),
        1 => bytes[at] = EDGES[random.usize(..EDGES.len())],
        2 => bytes[at] = random.u8(..),
        3 => bytes.truncate(at),
        4 => {
            let part = range(random, bytes.len());
            bytes.drain(part);
        }
        5 => {
            let part = bytes[range(random, bytes.len())].to_vec();
            let many = part.repeat(random.usize(1..20));
            bytes.splice(at..at, many);
        }
        6 => {
            let other = &corpus[random.usize(..corpus.len())];
            let part = other[range(random, other.len())].to_vec();
            bytes.splice(at..at, part);
        }
        7 => {
            let other = corpus[random.usize(..corpus.len())].clone();
            bytes.extend(other);
        }
        _ => {
            let number = [u32::MAX, 1 << 31, 0x7fff_ffff, 1 << 17, 1 << 22][random.usize(..5)].to_le_bytes();
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
}

/// Its header checksum would stop nearly every change of a flag.
fn mend_lz4(bytes: &mut [u8]) {
    if let [0x04, 0x22, 0x4d, 0x18, flags, ..] = bytes {
        let end = 6 + if *flags & 8 != 0 { 8 } else { 0 } + if *flags & 1 != 0 { 4 } else { 0 };
        if bytes.len() > end {
            bytes[end] = twox_hash::XxHash32::oneshot(0, &bytes[4..end]).to_le_bytes()[1];
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz/decode")
}

fn kept() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn keep(input: &[u8]) -> PathBuf {
    std::fs::create_dir_all(folder()).unwrap();
    let file = folder().join(uuid::Uuid::new_v4().simple().to_string());
    std::fs::write(&file, input).unwrap();
    file
}

/// Of this process, so far.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
