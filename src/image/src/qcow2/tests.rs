//! Converts images made by qemu-img and malformed images, and compares the result with the original disk.

use super::header::{ClusterLocation, HEADER_BYTES};
use super::*;
use crate::pipeline::BufferChunk;
use crate::testing::{noise, reader, source};
use fastrand::Rng;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

mod fuzz_structure;

/// Sink that computes the digest of the data, and fails after `most` bytes.
#[derive(Default)]
struct Collected {
    hash: Sha256,
    bytes: u64,
    most: Option<u64>,
}

impl Collected {
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        match self.most {
            Some(most) if self.bytes > most => Err(io::Error::other("the receiver has stopped")),
            _ => Ok(()),
        }
    }

    fn end(self) -> String {
        format!("{:x}", self.hash.finalize())
    }
}

impl WorkerOutput for Collected {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.add(bytes)
    }

    fn content(&mut self, chunk: BufferChunk) -> io::Result<()> {
        self.add(&chunk)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bytes(Vec<u8>);

impl WorkerOutput for Bytes {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn content(&mut self, chunk: BufferChunk) -> io::Result<()> {
        self.put(&chunk)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn converted(image: &[u8]) -> io::Result<String> {
    let mut collected = Collected::default();
    convert_stream(reader(image, 512 * 1024), &mut collected, &BufferPool::new(3, 1 << 20))?;
    Ok(collected.end())
}

/// Performs the check that the agent performs before it writes anything.
fn checked(image: &[u8]) -> io::Result<()> {
    let head = &image[..image.len().min(HEAD_BYTES)];
    let mut list = Bytes(Vec::new());
    super::list_tables(reader(head, 100_000), &mut list)?;
    let numbers: Vec<u64> = header::table_entries(&list.0).collect();
    let mut pieces = [&(head.len() as u64).to_be_bytes()[..], head].concat();
    for at in &numbers[1..] {
        let at = usize::try_from(*at).unwrap_or(usize::MAX).min(image.len());
        pieces.extend(&image[at..image.len().min(at + numbers[0] as usize)]);
    }
    check_tables(reader(&pieces, 100_000))
}

fn unpacked(path: &Path) -> io::Result<String> {
    let mut collected = Collected::default();
    unpack_file(&File::open(path)?, &mut collected)?;
    Ok(collected.end())
}

fn digest(path: &Path) -> String {
    let mut collected = Collected::default();
    io::copy(&mut File::open(path).unwrap(), &mut collected).unwrap();
    collected.end()
}

fn qemu_img(directory: &Path, words: &str) {
    linux::process::ToolCommand::new("sh")
        .args(["-c", &format!("cd {} && qemu-img {words}", directory.display())])
        .run()
        .unwrap_or_else(|error| panic!("qemu-img {words}: {error}"));
}

/// Creates a disk with some noise, some text, many zeros, and a last cluster that is not full.
fn disk(directory: &Path) {
    let file = File::create(directory.join("disk.raw")).unwrap();
    let (noise, text) = (noise(300_000), b"what can be packed ".repeat(20_000));
    for (number, at) in [0, 1 << 20, 3 << 20, 90 << 20, 510 << 20, 513 << 20, 524 << 20].iter().enumerate() {
        file.write_all_at(&text, *at).unwrap();
        file.write_all_at(&noise[number..], at + text.len() as u64 + 4096).unwrap();
        file.write_all_at(&text[number..], at + 800_000).unwrap();
    }
    file.set_len((526 << 20) + 512).unwrap();
}

/// Named `root_` because only `scripts/test loop` provides the tools that this test runs.
#[test]
#[ignore = "needs qemu-img"]
fn root_qcow2_of_qemu_img_converts_to_its_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (at, image) = (directory.path(), directory.path().join("disk.qcow2"));
    disk(at);
    let expected = digest(&at.join("disk.raw"));
    for how in [
        "",
        "-c",
        "-c -o compat=0.10",
        "-c -o compression_type=zstd",
        "-o preallocation=metadata",
        "-o cluster_size=4k",
        "-c -o cluster_size=2M",
        "-c -o cluster_size=8k,compression_type=zstd",
        "-o lazy_refcounts=on,refcount_bits=1",
    ] {
        qemu_img(at, &format!("convert -f raw -O qcow2 {how} disk.raw disk.qcow2"));
        let bytes = fs::read(&image).unwrap();
        checked(&bytes).unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(converted(&bytes).unwrap_or_else(|error| panic!("{how}: {error}")), expected, "{how}");
        assert_eq!(unpacked(&image).unwrap(), expected, "{how}");
        // A qcow2 truncated in its data is rejected.
        let error = converted(&bytes[..bytes.len() * 2 / 3]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{how}: {error}");
    }
}

/// An image whose clusters are out of order can be packed from a file, but is rejected as a stream. Named `root_` for
/// the same reason as the test above.
#[test]
#[ignore = "needs qemu-img and qemu-io"]
fn root_unordered_qcow2_is_accepted_only_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    // Order of clusters as left by a running machine: 640 MiB written from the end to the beginning.
    qemu_img(at, "create -q -f qcow2 disk.qcow2 700M");
    let writes: String = (0..640).rev().map(|mib| format!(" -c 'write -q -P {} {mib}M 1M'", mib % 251)).collect();
    let io = format!("cd {} && qemu-io -f qcow2{writes} disk.qcow2", at.display());
    linux::process::ToolCommand::new("sh").args(["-c", &io]).run().unwrap();
    qemu_img(at, "convert -f qcow2 -O raw disk.qcow2 disk.raw");
    let bytes = fs::read(at.join("disk.qcow2")).unwrap();
    for refused in [checked(&bytes), converted(&bytes).map(drop)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("are not in disk order") && error.contains("`drophammer image pack`"), "{error}");
    }
    assert_eq!(unpacked(&at.join("disk.qcow2")).unwrap(), digest(&at.join("disk.raw")));

    // A few clusters out of order are accepted.
    let few: String =
        [3, 9, 1, 600, 2, 650, 40].iter().map(|mib| format!(" -c 'write -q -P {} {mib}M 1M'", mib % 251)).collect();
    qemu_img(at, "create -q -f qcow2 few.qcow2 700M");
    let io = format!("cd {} && qemu-io -f qcow2{few} few.qcow2", at.display());
    linux::process::ToolCommand::new("sh").args(["-c", &io]).run().unwrap();
    qemu_img(at, "convert -f qcow2 -O raw few.qcow2 few.raw");
    let bytes = fs::read(at.join("few.qcow2")).unwrap();
    checked(&bytes).unwrap();
    assert_eq!(converted(&bytes).unwrap(), digest(&at.join("few.raw")));

    for (make, says) in [
        ("create -q -f qcow2 -b few.qcow2 -F qcow2 odd.qcow2", "depends on another file"),
        ("create -q -f qcow2 -o data_file=data.raw odd.qcow2 1M", "depends on another file"),
        ("create -q -f qcow2 -o extended_l2=on odd.qcow2 1M", "subclusters (extended_l2)"),
        ("create -q -f qcow2 odd.qcow2 1M && qemu-img snapshot -c one odd.qcow2", "contains 1 snapshots"),
        // `luks` is not tested: qemu-img benchmarks the processor for it, and fails on a busy machine.
        (
            "create -q -f qcow2 --object secret,id=s,data=x -o encrypt.format=aes,encrypt.key-secret=s odd.qcow2 1M",
            "is encrypted",
        ),
    ] {
        let _ = fs::remove_file(at.join("odd.qcow2"));
        qemu_img(at, make);
        let bytes = fs::read(at.join("odd.qcow2")).unwrap();
        for refused in [checked(&bytes), converted(&bytes).map(drop), unpacked(&at.join("odd.qcow2")).map(drop)] {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}

/// Returns a small handmade image and its disk. The clusters are one with data, one of zeros, one that is unallocated,
/// and two compressed ones in the same cluster of the file.
pub(crate) fn small() -> (Vec<u8>, Vec<u8>) {
    const CLUSTER: usize = 4096;
    let text = b"packed ".repeat(CLUSTER)[..CLUSTER].to_vec();
    let pack = |text: &[u8]| {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    };
    let (first, second) = (pack(&text), pack(&text[1..].iter().chain(b"!").copied().collect::<Vec<u8>>()));
    let mut image = vec![0; 6 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let size = 5 * CLUSTER + 512;
    put(0, &MAGIC);
    for (at, number) in [(4, 3_u32), (20, 12), (36, 1), (56, 1), (96, 4), (100, 104)] {
        put(at, &number.to_be_bytes());
    }
    for (at, number) in [(24, size as u64), (40, CLUSTER as u64), (CLUSTER, (2 * CLUSTER as u64) | (1 << 63))] {
        put(at, &number.to_be_bytes());
    }
    let packed = |at: usize| (1 << 62) | at as u64;
    let (one, two) = (4 * CLUSTER, 4 * CLUSTER + first.len());
    let table = [(3 * CLUSTER as u64) | (1 << 63), packed(one), 1, 0, packed(two), (5 * CLUSTER as u64) | (1 << 63)];
    for (number, entry) in table.iter().enumerate() {
        put(2 * CLUSTER + 8 * number, &entry.to_be_bytes());
    }
    let data = noise(2 * CLUSTER);
    put(3 * CLUSTER, &data[..CLUSTER]);
    put(one, &first);
    put(two, &second);
    put(5 * CLUSTER, &data[CLUSTER..]);
    let mut disk = data[..CLUSTER].to_vec();
    disk.extend(&text);
    disk.resize(4 * CLUSTER, 0);
    disk.extend(&text[1..]);
    disk.push(b'!');
    disk.extend(&data[CLUSTER..CLUSTER + 512]);
    (image, disk)
}

#[test]
fn clusters_of_every_type_become_a_disk() {
    let (image, disk) = small();
    checked(&image).unwrap();
    let expected = format!("{:x}", Sha256::digest(&disk));
    assert_eq!(converted(&image).unwrap(), expected);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("i"), &image).unwrap();
    assert_eq!(unpacked(&directory.path().join("i")).unwrap(), expected);
    // Data after the last cluster is ignored, but the stream is read to its end.
    let longer = [&image[..], &[7; 3_000_000]].concat();
    assert_eq!(converted(&longer).unwrap(), expected);
    let error = convert_stream(
        source(&image, 1000, Err(io::Error::other("dropped"))),
        &mut Collected::default(),
        &BufferPool::new(3, 1 << 20),
    );
    assert!(error.unwrap_err().to_string().contains("dropped"));
}

#[test]
fn refuses_unsupported_qcow2_headers_with_the_reason() {
    let with = |at: usize, bytes: &[u8]| {
        let (mut image, _) = small();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    };
    let long = |number: u64| number.to_be_bytes();
    for (image, says) in [
        (with(0, b"x"), "not a qcow2"),
        (with(7, &[4]), "has version 4; supported versions: 2 and 3"),
        (with(8, &long(200)), "depends on another file"),
        (with(35, &[1]), "is encrypted"),
        (with(63, &[2]), "contains 2 snapshots"),
        (with(72, &long(1)), "was not closed properly"),
        (with(72, &long(2)), "was not closed properly"),
        (with(72, &long(4)), "depends on another file"),
        (with(72, &long(16)), "subclusters"),
        (with(72, &long(32)), "unsupported features: 0x20"),
        (with(20, &[0, 0, 0, 8]), "clusters of 2^8"),
        (with(20, &[0, 0, 0, 22]), "clusters of 2^22"),
        (with(24, &long(1 << 40)), "a size of 1099511627776 bytes requires"),
        (with(24, &long(u64::MAX)), "not a multiple of 512"),
        (with(24, &long(!511)), "bytes requires"),
        (with(40, &long(4097)), "is not aligned to a cluster boundary"),
        (with(40, &long(0)), "is not aligned to a cluster boundary"),
        (with(40, &long(1 << 40)), "cannot be converted while it is streamed"),
        (with(40, &long(!4095)), "cannot be converted while it is streamed"),
        (with(4096, &long(8193)), "invalid table entry 0x2001"),
        (with(8192, &long(3 * 4096 + 512)), "invalid table entry 0x3200"),
        (with(8192, &long(4096)), "are not in disk order"),
        (with(8192, &long(1 << 62)), "overlaps the header"),
        (with(8192 + 40, &long(99 * 4096)), ""),
    ] {
        match checked(&image) {
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "{says}: {error}"),
            // The check cannot detect that the file is truncated, because the tables do not contain the length of the
            // file.
            Ok(()) => assert!(converted(&image).unwrap_err().to_string().contains("ends before its last cluster")),
        }
        assert_eq!(converted(&image).unwrap_err().kind(), io::ErrorKind::InvalidData, "{says}");
    }
    let (image, _) = small();
    // Only the first sector of the last cluster is within the disk.
    for length in (0..5 * 4096 + 512).step_by(97) {
        converted(&image[..length]).unwrap_err();
    }
    let (mut many, _) = small();
    many[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
    many[24..32].copy_from_slice(&(1_u64 << 52).to_be_bytes());
    let error = converted(&many).unwrap_err().to_string();
    assert!(error.contains("table exceeds the supported size"), "{error}");
}

#[test]
fn entries_of_compressed_clusters_are_parsed() {
    let (image, _) = small();
    let header = Qcow2Header::parse(&image[..HEADER_BYTES]).unwrap();
    // With clusters of 4 KiB, an entry has 58 bits for the offset, and four for the number of sectors after the first.
    assert_eq!(
        header.parse_entry((1 << 62) | (3 << 58) | 70_000).unwrap(),
        ClusterLocation::Packed { at: 70_000, bytes: 2048 - 70_000 % 512 }
    );
    assert_eq!(header.parse_entry((1 << 63) | 8192).unwrap(), ClusterLocation::At(8192));
    assert_eq!([0, 1, 8193].map(|entry| header.parse_entry(entry).unwrap()), [ClusterLocation::Zeros; 3]);
}

fn mutated(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut image = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..random.usize(1..6) {
        // Mutations concentrate on header and tables, because the rest is data.
        let at =
            [random.usize(..112), 4096 + random.usize(..16), 8192 + random.usize(..48), random.usize(..image.len())];
        let at = at[random.usize(..at.len())];
        match random.u8(..4) {
            0 => image[at] ^= 1 << random.u8(..8),
            1 => image[at] = random.u8(..),
            2 => image[at..(at + 8).min(24_576)].fill([0, 0xff][random.usize(..2)]),
            _ => {
                let to = random.usize(..40) * 8;
                let number = (random.u64(..8) * 4096).to_be_bytes();
                image[8192 + to..8200 + to].copy_from_slice(&number);
            }
        }
    }
    if random.u8(..8) == 0 {
        image.truncate(random.usize(1..image.len()));
    }
    image
}

/// Converts the image from a stream and from a file. If the check of the tables accepts the image, the stream must not
/// be rejected because of the order of its clusters. Returns whether the stream was converted.
fn check_input(image: &[u8], _: &mut Rng) -> bool {
    let mut collected = Collected { most: Some(64 << 20), ..Collected::default() };
    let result = convert_stream(source(image, 8192, Ok(())), &mut collected, &BufferPool::new(3, 1 << 20));
    if let (Ok(()), Err(error)) = (checked(image), &result) {
        let said = error.to_string();
        assert!(!said.contains("are not in disk order"), "{said}");
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(image).unwrap();
    let mut whole = Collected { most: Some(64 << 20), ..Collected::default() };
    let in_file = unpack_file(&file, &mut whole);
    if result.is_ok() {
        in_file.unwrap();
        assert_eq!(collected.end(), whole.end());
    }
    result.is_ok()
}

#[test]
fn fuzz_whatever_is_wrong_with_a_qcow2_is_an_error() {
    let (image, _) = small();
    let (few, hangs) = (3000, Duration::from_secs(60));
    Fuzz { folder: folder("qcow2"), few, hangs, corpus: vec![image], mutated, check_input }.run();
}
