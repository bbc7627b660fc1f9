//! Structure-aware fuzzing of the tar parser: headers, records and sparse maps have correct checksums and lengths, and
//! few contradictions. GNU tar, libarchive and Python must read each accepted archive in the same way.

use super::reference_readers::{Judges, assert_agreement, disagree, read_ours};
use super::*;
use fastrand::Rng;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

static JUDGES: LazyLock<Mutex<Judges>> = LazyLock::new(|| Mutex::new(Judges::start()));

/// Number of inputs by verdict.
static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

#[test]
fn fuzz_tar_structure() {
    let fuzz = Fuzz {
        folder: folder("tar-structure"),
        few: 200,
        hangs: Duration::from_secs(120),
        corpus: Vec::new(),
        mutated: |_, random| generate(random),
        check_input,
    };
    fuzz.run();
    let counts = COUNTS.lock().unwrap();
    counts.iter().for_each(|(verdict, count)| println!("{count:>8}  {verdict}"));
    let accepted: u64 =
        counts.iter().filter(|(verdict, _)| verdict.starts_with("accepted")).map(|(_, count)| count).sum();
    let total: u64 = counts.values().sum();
    assert!(accepted * 10 > total, "{accepted} of {total} were accepted");
    assert!(accepted * 10 < total * 9, "{accepted} of {total} were accepted");
    assert!(counts.len() > 12, "{counts:?}");
}

fn check_input(input: &[u8], random: &mut Rng) -> bool {
    let ours = read_ours(input);
    let mut judges = JUDGES.lock().unwrap();
    let verdict = match &ours {
        Ok(reading) => {
            assert_agreement(&mut judges, input, reading, "accepted");
            let sparse = reading.members.iter().any(|member| member.0.starts_with("sparse"));
            if sparse { "accepted, sparse".to_owned() } else { "accepted".to_owned() }
        }
        Err(error) => format!("refused: {}", reason(error)),
    };
    *COUNTS.lock().unwrap().entry(verdict).or_default() += 1;
    if ours.is_err() && random.u8(..8) == 0 {
        let verdicts = judges.read(input);
        let refused = verdicts.iter().filter(|(_, verdict)| verdict.is_err()).count();
        let others = if disagree(&verdicts) { "different readings" } else { "one reading" };
        *COUNTS.lock().unwrap().entry(format!("  of refused ones: {others}, {refused} refuse")).or_default() += 1;
    }
    ours.is_ok()
}

/// Returns an error message without names and numbers.
fn reason(error: &str) -> String {
    let error = error.rsplit_once("malformed").map_or(error, |(_, reason)| reason);
    let error = error.trim_start_matches(|c: char| !c.is_alphabetic());
    let error = error.split('"').next().unwrap_or_default();
    error.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Decides, with a probability of 1 in 6, that a generated value is wrong or contradictory.
fn is_flawed(random: &mut Rng) -> bool {
    random.u8(..6) == 0
}

fn generate(random: &mut Rng) -> Vec<u8> {
    let mut tar = Tar::new();
    for number in 0..random.usize(1..5) {
        if random.u8(..8) == 0 {
            let key = if is_flawed(random) { *random.choice(&PAX_KEYS).unwrap() } else { "comment" };
            let record = format!("{key}={}", random.choice(&VALUES).unwrap());
            tar = tar.pax(b'g', &[record.as_bytes()]);
        }
        tar = match random.u8(..10) {
            0..6 => plain_member(random, tar, number),
            6 => old_sparse(random, tar, number),
            _ => pax_sparse(random, tar, number),
        };
    }
    let mut bytes = tar.end();
    if random.u8(..30) == 0 {
        let end = random.usize(..=bytes.len() / 512) * 512;
        bytes.truncate(end);
    }
    bytes
}

const PAX_KEYS: [&str; 12] = [
    "path",
    "linkpath",
    "size",
    "GNU.sparse.name",
    "GNU.sparse.realsize",
    "GNU.sparse.size",
    "GNU.sparse.major",
    "GNU.sparse.map",
    "SCHILY.realsize",
    "SUN.holesdata",
    "hdrcharset",
    "GNU.sparse.numblocks",
];
const VALUES: [&str; 10] = ["", "0", "1", "512", "1024", "a", "other", "0,4,8192,4", "BINARY", "+1"];
const KINDS: [u8; 10] = [b'0', b'0', b'0', 0, b'7', b'1', b'2', b'5', b'6', b'3'];

fn plain_member(random: &mut Rng, mut tar: Tar, number: usize) -> Tar {
    let kind = *random.choice(&KINDS).unwrap();
    let is_file = matches!(kind, b'0' | b'7' | 0);
    let length = if is_file || is_flawed(random) { *random.choice(&[0, 1, 511, 512, 513, 1024]).unwrap() } else { 0 };
    let content = if random.bool() { inner(random, length) } else { vec![b'c'; length] };
    let name = format!("m{number}");
    let mut records: Vec<String> = Vec::new();
    if random.u8(..3) == 0 {
        records.push(format!("path=p{number}"));
    }
    if random.u8(..4) == 0 {
        let size = if is_flawed(random) { *random.choice(&[0, 1, 512, 1024, 1 << 34]).unwrap() } else { length };
        records.push(format!("size={size}"));
    }
    if matches!(kind, b'1' | b'2') && random.bool() {
        records.push("linkpath=target".to_owned());
    }
    if is_flawed(random) {
        records.push(format!("{}={}", random.choice(&PAX_KEYS).unwrap(), random.choice(&VALUES).unwrap()));
    }
    let long = if is_flawed(random) { format!("l{number}\0") } else { format!("p{number}\0") };
    let has_long = random.u8(..5) == 0;
    let long_comes_first = random.bool();
    if has_long && long_comes_first {
        tar = tar.raw("", b'L', long.as_bytes(), |_| ());
    }
    if !records.is_empty() {
        random.shuffle(&mut records);
        let records: Vec<&[u8]> = records.iter().map(|record| record.as_bytes()).collect();
        tar = tar.pax(b'x', &records);
    }
    if has_long && !long_comes_first {
        tar = tar.raw("", b'L', long.as_bytes(), |_| ());
    }
    let (header, field, (offset, other)) = (header_format(random), size_field(random, length), other_field(random));
    tar.raw(&name, kind, &content, move |made| {
        if matches!(kind, b'1' | b'2') {
            made.set_link_name_literal("m0").unwrap();
        }
        made.as_mut_bytes()[156] = kind;
        header(made);
        made.as_mut_bytes()[offset..offset + 8].copy_from_slice(&other);
        made.as_old_mut().size = field;
    })
}

/// Returns content that begins with the header of a member. A reader that uses a wrong extent would unpack this member.
fn inner(random: &mut Rng, length: usize) -> Vec<u8> {
    let inner = Tar::new().file(if random.bool() { "inner" } else { "m0" }, b"").0;
    inner.into_iter().chain(std::iter::repeat(b'i')).take(length).collect()
}

fn header_format(random: &mut Rng) -> fn(&mut tar::Header) {
    fn gnu(header: &mut tar::Header) {
        header.as_mut_bytes()[257..265].copy_from_slice(b"ustar  \0");
    }
    fn prefix(header: &mut tar::Header) {
        header.as_mut_bytes()[345..348].copy_from_slice(b"pre");
    }
    match (random.u8(..6), is_flawed(random)) {
        (0 | 1, _) => gnu,
        (2, _) => |header| {
            header.as_mut_bytes()[257..265].copy_from_slice(b"ustar\x0000");
            prefix(header);
        },
        (3, true) => |header| {
            gnu(header);
            prefix(header);
        },
        (4, true) => |header| {
            header.as_mut_bytes()[257..265].copy_from_slice(b"ustar\x0001");
            prefix(header);
        },
        (5, _) => |header| header.as_mut_bytes()[257..265].fill(0),
        _ => |_| (),
    }
}

/// Returns a size field: usually in one of the forms that tar programs write, sometimes with a malformed or wrong
/// number.
fn size_field(random: &mut Rng, length: usize) -> [u8; 12] {
    let text = |text: String| <[u8; 12]>::try_from(text.as_bytes()).unwrap();
    if !is_flawed(random) {
        return match random.u8(..4) {
            0 => text(format!("{length:>11o}\0")),
            1 => text(format!("{length:012o}")),
            2 => {
                let mut binary = [0; 12];
                binary[0] = 0x80;
                binary[4..].copy_from_slice(&(length as u64).to_be_bytes());
                binary
            }
            _ => text(format!("{length:011o}\0")),
        };
    }
    match random.u8(..7) {
        0 => text(format!("+{length:010o}\0")),
        1 => text(format!("-{length:010o}\0")),
        2 => text(format!("{length:<11o}\0")),
        3 => text(format!("\0{length:010o}\0")),
        4 => text(format!("{length:09o}.1\0")),
        5 => [b' '; 12],
        _ => text(format!("{:011o}\0", length + 512)),
    }
}

/// Returns the offset of another numeric field of eight bytes, and a value: usually in one of the forms that tar
/// programs write, sometimes malformed.
fn other_field(random: &mut Rng) -> (usize, [u8; 8]) {
    let offset = *random.choice(&[100, 108, 116, 329, 337]).unwrap();
    let written = [*b"0000644\0", *b"    17 \0", [0; 8], [b' '; 8], [0x80, 0, 0, 0, 0, 0, 0, 7]];
    let wrong =
        [*b"+000644\0", *b"-000644\0", *b"0644.00\0", *b"\x00000644\0", [0x81, 0, 0, 0, 0, 0, 0, 7], *b"0x00644\0"];
    let values = if is_flawed(random) { &wrong[..] } else { &written[..] };
    (offset, *random.choice(values).unwrap())
}

/// Returns offset and length of each data segment, in order, and the length of the file.
fn pieces(random: &mut Rng) -> (Vec<(usize, usize)>, usize) {
    let (mut pieces, mut end) = (Vec::new(), 0);
    for _ in 0..random.usize(0..5) {
        let offset = end + random.usize(0..3) * 512;
        // GNU tar reads each segment from its own block.
        let length = if is_flawed(random) { random.usize(..700) } else { random.usize(..3) * 512 };
        if length > 0 {
            pieces.push((offset, length));
        }
        end = offset + length;
    }
    // GNU tar and libarchive end a map with an empty segment at the end of the file.
    let length = end + random.usize(0..2) * 512;
    if !is_flawed(random) {
        pieces.push((length, 0));
    }
    (pieces, length)
}

fn old_sparse(random: &mut Rng, tar: Tar, number: usize) -> Tar {
    let (mut pieces, length) = pieces(random);
    pieces.truncate(4);
    let data: usize = pieces.iter().map(|(_, length)| length).sum();
    let flaw = is_flawed(random).then(|| random.usize(..4));
    tar.raw(&format!("sparse{number}"), b'S', &vec![b's'; data], move |header| {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.realsize.copy_from_slice(format!("{length:011o}\0").as_bytes());
        for (slot, (offset, length)) in gnu.sparse.iter_mut().zip(&pieces) {
            slot.offset.copy_from_slice(format!("{offset:011o}\0").as_bytes());
            slot.numbytes.copy_from_slice(format!("{length:011o}\0").as_bytes());
        }
        match flaw {
            Some(0) => gnu.isextended = [1],
            Some(1) => gnu.sparse.swap(0, 3),
            Some(2) => gnu.sparse[0].offset[0] = b'+',
            Some(3) => gnu.realsize = *b"00000000001\0",
            _ => {}
        }
    })
}

fn pax_sparse(random: &mut Rng, tar: Tar, number: usize) -> Tar {
    let (mut pieces, length) = pieces(random);
    let data = vec![b's'; pieces.iter().map(|(_, length)| length).sum()];
    if is_flawed(random) && !pieces.is_empty() {
        let at = random.usize(..pieces.len());
        pieces[at].0 += *random.choice(&[1, 512, 4096]).unwrap();
    }
    let version = random.u8(..3);
    let mut records = Vec::new();
    if version == 2 || is_flawed(random) {
        records.extend([format!("GNU.sparse.major={}", version / 2), format!("GNU.sparse.minor={}", version % 2)]);
    }
    records.push(format!("GNU.sparse.name=sparse{number}"));
    let key = if version == 2 { "realsize" } else { "size" };
    records.push(format!("GNU.sparse.{key}={length}"));
    let mut content = Vec::new();
    match version {
        // Version 0.0 repeats the keys for each segment. Python requires this order of keys.
        0 => {
            records.push(format!("GNU.sparse.numblocks={}", pieces.len()));
            for (offset, length) in &pieces {
                records.push(format!("GNU.sparse.offset={offset}"));
                records.push(format!("GNU.sparse.numbytes={length}"));
            }
        }
        1 => {
            let numbers: Vec<String> = pieces.iter().map(|(offset, length)| format!("{offset},{length}")).collect();
            records.push(format!("GNU.sparse.numblocks={}", pieces.len()));
            records.push(format!("GNU.sparse.map={}", numbers.join(",")));
        }
        _ => {
            let lines: String = pieces.iter().map(|(offset, length)| format!("{offset}\n{length}\n")).collect();
            content.extend(format!("{}\n{lines}", pieces.len()).into_bytes());
            content.resize(content.len().next_multiple_of(512), 0);
        }
    }
    content.extend(data);
    if is_flawed(random) {
        records.push(format!("{}={}", random.choice(&PAX_KEYS).unwrap(), random.choice(&VALUES).unwrap()));
    }
    let records: Vec<&[u8]> = records.iter().map(|record| record.as_bytes()).collect();
    let is_gnu = is_flawed(random);
    tar.pax(b'x', &records).raw(&format!("GNUSparseFile.{number}"), b'0', &content, move |header| {
        if is_gnu {
            header.as_mut_bytes()[257..265].copy_from_slice(b"ustar  \0");
        }
    })
}
