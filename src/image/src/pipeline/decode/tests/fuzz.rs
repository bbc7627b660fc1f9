//! Fuzzing with mutations of small valid streams. The decoder must not panic or hang, its memory must be bounded, and
//! several threads must give the same result as one.

use super::corrupt_streams::specimens;
use super::*;
use fastrand::Rng;
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

/// Maximum output that is read from one input, in bytes.
const ENOUGH_BYTES: usize = 24 << 20;
/// Memory limit: twice the largest accepted window or dictionary, and all buffers.
const MEMORY_KIB: u64 = 512 * 1024;

#[test]
fn fuzz_decoders() {
    let fuzz = Fuzz {
        folder: folder("decode"),
        few: 300,
        hangs: Duration::from_secs(30),
        corpus: specimens().into_iter().map(|(_, stream)| stream).collect(),
        mutated,
        check_input: |input, random| check_input(input, random.usize(1..2000)),
    };
    let long = fuzz.run();
    if long {
        let peak = peak_kib();
        assert!(peak < MEMORY_KIB, "{peak} KiB were needed");
        println!("peak memory {} MiB", peak / 1024);
    }
}

/// Returns whether the input is valid. Fails if decoding panics, or if several threads give a different result than
/// one.
fn check_input(input: &[u8], buffer_bytes: usize) -> bool {
    let how = DecodeParameters { buffer_bytes, plain: PayloadKind::Tar, threads: 1 };
    let (one, several) = (beginning(input, how), beginning(input, DecodeParameters { threads: 2, ..how }));
    let says = |made: &io::Result<Vec<u8>>| made.as_ref().map_or_else(|error| error.to_string(), |_| "good".to_owned());
    let same = match (&one, &several) {
        (Ok(one), Ok(several)) => one == several,
        (Err(_), Err(_)) => true,
        _ => false,
    };
    assert!(same, "one: {}, several: {}", says(&one), says(&several));
    assert!(!says(&one).contains("ended unexpectedly"));
    one.is_ok()
}

/// Decodes the input, up to [`ENOUGH_BYTES`]; then the reader is dropped.
fn beginning(input: &[u8], how: DecodeParameters) -> io::Result<Vec<u8>> {
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
    // The first bytes of a frame determine most of its format.
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

/// Corrects the header checksum, which would otherwise reveal nearly every changed flag.
fn mend_lz4(bytes: &mut [u8]) {
    if let [0x04, 0x22, 0x4d, 0x18, flags, ..] = bytes {
        let end = 6 + if *flags & 8 != 0 { 8 } else { 0 } + if *flags & 1 != 0 { 4 } else { 0 };
        if bytes.len() > end {
            bytes[end] = twox_hash::XxHash32::oneshot(0, &bytes[4..end]).to_le_bytes()[1];
        }
    }
}
