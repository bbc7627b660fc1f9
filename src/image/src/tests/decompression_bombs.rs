//! Small images that would require excessive work: each type of bomb in each compression format. Unpacking each bomb
//! must end after little work, with little memory, and with almost nothing left on the disk. Streams without output are
//! tested together with the decoders, and malicious documents together with the registries.

use super::*;
use crate::pipeline::{BufferPool, PipelineReader, create_pipe, decode};
use crate::testing::{compress_all, pax_record, peak_kib, source};
use std::process::Command;

/// Maximum number of header blocks of one bomb. In production, more are allowed, and their number increases with the
/// length of the image.
const BLOCKS: u64 = 500;

/// Maximum size of the files that one bomb may leave on the disk, in bytes.
const LEFT_BYTES: u64 = 1 << 20;

/// Maximum memory of all bombs of one compression format, in the process that runs only this test.
const PEAK_KIB: u64 = 128 << 10;

/// Environment variable of the process that unpacks the bombs. This process runs no other test, so that its memory use
/// can be measured.
const ALONE: &str = "DROPHAMMER_TEST_BOMBS";

struct Bomb {
    name: &'static str,
    tar: Vec<u8>,
    /// Number of zero bytes after the tar.
    zeros: usize,
    /// Number of layers of the image. Each layer is this bomb.
    parts: usize,
    layered: bool,
    /// Part of the expected error message; empty if the bomb is accepted and harmless.
    says: &'static str,
}

fn bomb(name: &'static str, tar: Tar, says: &'static str) -> Bomb {
    Bomb { name, tar: tar.0, zeros: 1024, parts: 1, layered: false, says }
}

fn endless(name: &'static str, tar: Tar, says: &'static str) -> Bomb {
    Bomb { zeros: 2 << 20, ..bomb(name, tar, says) }
}

fn many(count: usize, add: impl Fn(Tar, usize) -> Tar) -> Tar {
    (0..count).fold(Tar::new(), add)
}

fn claims(kind: u8, bytes: u64) -> Tar {
    Tar::new().raw("claims", kind, b"", move |header| header.set_size(bytes))
}

/// Returns a sparse file in PAX format 1.0, with this map before its data.
fn sparse(real_size: &str, map: &[u8]) -> Tar {
    let size = format!("GNU.sparse.realsize={real_size}");
    Tar::new().pax(b'x', &[b"GNU.sparse.major=1", b"GNU.sparse.minor=0", size.as_bytes()]).file("sparse", map)
}

/// Returns a sparse file whose map is a long chain of extension blocks.
fn chained() -> Tar {
    let mut extension = [b'0'; 512];
    extension[504] = 1;
    let tar = Tar::new().raw("chained", b'S', b"", |header| {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_is_extended(true);
        gnu.sparse.iter_mut().for_each(|piece| (piece.offset, piece.numbytes) = ([b'0'; 12], [b'0'; 12]));
    });
    Tar([tar.0, extension.repeat(1000)].concat())
}

/// Returns a PAX record of nearly the maximum length of an extended header.
fn comment() -> Vec<u8> {
    [&b"comment="[..], &[b'x'; 1_000_000]].concat()
}

fn bombs(codec: &str) -> Vec<Bomb> {
    const HEADERS: &str = "header blocks, too many for the length of the image";
    const LONG: &str = "at most 1 MiB is supported";
    let zeros = vec![0; 4 << 20];
    let packed = |bytes: &[u8]| Tar(compress(codec, bytes));
    let deep = |tar: Tar, number: usize| {
        let path = format!("path={number}/{}file", "d/".repeat(100));
        tar.pax(b'x', &[path.as_bytes()]).file("x", b"")
    };
    let large = pax_record(&[&b"comment="[..], &[b'x'; 60_000]].concat());
    let behind = |add: fn(Tar) -> Tar| {
        let tar = Tar::new().raw("pax", b'g', &large, |_| ());
        (0..600).fold(tar, |tar, _| add(tar))
    };
    let whiteouts = many(400, |tar, number| tar.file(&format!("d/{number}"), b""));
    let whiteouts = (0..400).fold(whiteouts, |tar, _| tar.file("d/.wh..wh..opq", b""));
    let layer = || many(50, |tar, number| tar.file(&number.to_string(), b""));
    let xattr = |number: usize| pax_record(format!("SCHILY.xattr.user.{number}=x").as_bytes());
    let xattrs: Vec<u8> = (0..2000).flat_map(xattr).collect();
    vec![
        endless("a file of an exbibyte", claims(b'0', 1 << 60), "its filesystem has only"),
        endless("a directory of an exbibyte", claims(b'5', 1 << 60), "the member is not a regular file, but has"),
        endless("zeros behind the end", Tar(Tar::new().file("a", b"a").end()), ""),
        endless("nothing but zeros", Tar::new(), "the tar archive does not contain any members"),
        bomb("packed twice", packed(&zeros), "the tar "),
        bomb("packed three times", packed(&compress(codec, &zeros)), "the tar "),
        endless("a long name", claims(b'L', 1 << 31), LONG),
        endless("a long link", claims(b'K', 1 << 31), LONG),
        endless("long records", claims(b'x', 1 << 30), LONG),
        endless("long global records", claims(b'g', 1 << 30), LONG),
        bomb("records as long as they may be", Tar::new().pax(b'x', &[&comment()]).file("a", b""), HEADERS),
        bomb("one global header as long as it may be", Tar::new().pax(b'g', &[&comment()]).file("a", b""), HEADERS),
        bomb("empty files", many(1000, |tar, number| tar.file(&number.to_string(), b"")), HEADERS),
        bomb("one file again and again", many(1000, |tar, _| tar.file("a", b"")), HEADERS),
        bomb("directories", many(1000, |tar, number| tar.directory(&number.to_string())), HEADERS),
        bomb("symlinks", many(1000, |tar, number| tar.symlink(&number.to_string(), "x")), HEADERS),
        bomb("FIFOs", many(1000, |tar, number| tar.raw(&number.to_string(), b'6', b"", |_| ())), HEADERS),
        bomb(
            "hard links",
            many(1000, |tar, number| if number == 0 { tar.file("0", b"") } else { tar.hard_link("1", "0") }),
            HEADERS,
        ),
        bomb("deep directories", many(20, deep), HEADERS),
        bomb("global headers", many(1000, |tar, _| tar.pax(b'g', &[b"comment=x"])), HEADERS),
        bomb("members behind a large global header", behind(|tar| tar.directory("d")), HEADERS),
        bomb("headers behind a large global header", behind(|tar| tar.pax(b'g', &[b"k=1"])), HEADERS),
        bomb("a map of headers", chained(), HEADERS),
        bomb(
            "a map of many pieces",
            sparse("9", b"1000000000\n"),
            "the sparse map does not end within the content of the member",
        ),
        bomb("a map of one number", sparse("9", &[b'1'; 4096]), "the sparse map contains a number that is too long"),
        bomb(
            "a sparse file of 8 EiB",
            sparse("9223372036854775808", &[&b"0\n"[..], &[0; 510]].concat()),
            "the file is too long for any filesystem",
        ),
        bomb(
            "many attributes",
            Tar::new().raw("pax", b'x', &xattrs, |_| ()).file("a", b""),
            "the member has more than 1000 extended attributes, which is not supported",
        ),
        Bomb { layered: true, ..bomb("whiteouts that look at much", whiteouts, HEADERS) },
        Bomb { layered: true, parts: 30, ..bomb("layers of a few files", layer(), HEADERS) },
    ]
}

/// Unpacks all layers to a root, and returns the error message.
fn goes_off(bomb: &Bomb, image: &[u8], root: &Path) -> String {
    let mut counter = HiddenFileCounter::new(MountsBelow::default());
    counter.work.add_part(counter.work.left(0) - BLOCKS, 0);
    let below = UnpackRoot::open(root, Vec::new()).unwrap();
    for _ in 0..bomb.parts {
        let (stages, pool) = (StageClocks::start(), BufferPool::new(4, 1 << 17));
        let (sender, receiver) = create_pipe(4);
        let unpacked = std::thread::scope(|scope| {
            scope
                .spawn(|| decode(source(image, 1 << 16, Ok(())), PayloadKind::Tar, |_| Ok(()), &pool, &stages, sender));
            let members = members_of(PipelineReader::new(receiver, Arc::default()));
            untar(members, &below, &mut counter, bomb.layered, &DownloadState::default(), &stages)
        });
        if let Err(error) = unpacked {
            return error.to_string();
        }
    }
    String::new()
}

/// Returns the number of bytes on the disk, and the number of names below the root.
fn left(root: &Path) -> (u64, usize) {
    let (mut todo, mut bytes, mut count) = (vec![root.to_owned()], 0, 0);
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        count += 1;
        if metadata.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            bytes += metadata.blocks() * 512;
        }
    }
    (bytes, count - 1)
}

fn all_go_off(codec: &str) {
    let (mut count, mut wrongs) = (0, Vec::new());
    for bomb in bombs(codec) {
        let name = format!("{}, {codec}", bomb.name);
        let (block, rest) = (vec![0; 1 << 16], bomb.zeros % (1 << 16));
        let mut pieces = vec![&bomb.tar[..]];
        pieces.extend(std::iter::repeat_n(&block[..], bomb.zeros >> 16));
        pieces.push(&block[..rest]);
        let image = compress_all(codec, &pieces);
        assert!(image.len() < 200 << 10, "{name}: {} bytes are no bomb", image.len());
        let root = tempfile::tempdir().unwrap();
        let said = goes_off(&bomb, &image, root.path());
        let is_clear = said.contains(bomb.says) && said.is_empty() == bomb.says.is_empty() && said.len() < 500;
        let (bytes, names) = left(root.path());
        if !is_clear || bytes > LEFT_BYTES || names as u64 > BLOCKS {
            wrongs.push(format!("{name}: {bytes} bytes and {names} names are left: {said:.500}"));
        }
        count += 1;
    }
    assert_eq!(wrongs, Vec::<String>::new(), "{}", wrongs.join("\n"));
    let peak = peak_kib();
    println!("{count} bombs, none of them out, {} MiB at their peak", peak >> 10);
    assert!(count > 25 && peak < PEAK_KIB, "{count} bombs took {peak} KiB");
}

/// Runs the test `name` again, in a separate process that unpacks all bombs of this compression format.
fn go_off_alone(codec: &str, name: &str) {
    if std::env::var_os(ALONE).is_some() {
        return all_go_off(codec);
    }
    let name = format!("tests::decompression_bombs::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains(" bombs, none of them out"), "{text}");
    println!("{text}");
}

#[test]
fn zstd_bombs_end_in_limited_memory_and_leave_little() {
    go_off_alone("zstd", "zstd_bombs_end_in_limited_memory_and_leave_little");
}

#[test]
fn lz4_bombs_end_in_limited_memory_and_leave_little() {
    go_off_alone("lz4", "lz4_bombs_end_in_limited_memory_and_leave_little");
}

#[test]
fn gzip_bombs_end_in_limited_memory_and_leave_little() {
    go_off_alone("gzip", "gzip_bombs_end_in_limited_memory_and_leave_little");
}

#[test]
fn xz_bombs_end_in_limited_memory_and_leave_little() {
    go_off_alone("xz", "xz_bombs_end_in_limited_memory_and_leave_little");
}
