//! Archives for which tar readers disagree on the name or the extent of a member, and archives that all tar readers
//! read in the same way.

use super::reference_readers::{Judges, assert_agreement, disagree, read_ours};
use super::*;

const HIDDEN: [u8; 512] = [b'h'; 512];

/// Returns a member with one block of content. The size of the member is `in_header` according to the header, and
/// `in_record` according to the PAX record.
fn sized(in_header: u64, in_record: &str) -> Tar {
    let record = format!("size={in_record}");
    Tar::new().pax(b'x', &[record.as_bytes()]).raw("a", b'0', &HIDDEN, |header| header.set_size(in_header))
}

/// Returns a member with two sizes, like [`sized`]. The content of the member is one block: the header of another
/// member.
fn smuggled(in_header: u64, in_record: &str) -> Tar {
    let record = format!("size={in_record}");
    let inner = Tar::new().file("inner", b"").0;
    let outer = Tar::new().pax(b'x', &[record.as_bytes()]);
    outer.raw("a", b'0', &inner, |header| header.set_size(in_header)).file("b", b"")
}

fn gnu(header: &mut tar::Header) {
    header.as_mut_bytes()[257..265].copy_from_slice(b"ustar  \0");
}

fn prefix(header: &mut tar::Header) {
    header.as_mut_bytes()[345..348].copy_from_slice(b"pre");
}

/// Data of all sparse files in these tests: one block and four bytes.
const DATA: [u8; 516] = [b'd'; 516];

const SPARSE_1: [&[u8]; 3] = [b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=8196"];

fn sparse_map() -> Vec<u8> {
    [&b"2\n0\n512\n8192\n4\n"[..], &[0; 497], &DATA].concat()
}

fn sparse_1(records: &[&[u8]]) -> Tar {
    Tar::new().pax(b'x', &[&SPARSE_1[..], records].concat()).file("s", &sparse_map())
}

fn sparse_0(records: &[&[u8]]) -> Tar {
    Tar::new().pax(b'x', &[&[&b"GNU.sparse.size=8196"[..]][..], records].concat()).file("s", &DATA)
}

/// Returns a sparse file in the old GNU format with these segments. `extended` declares that an extension block
/// follows.
fn old_sparse(pieces: &'static [(&'static [u8; 12], &'static [u8; 12])], extended: bool) -> Tar {
    Tar::new().raw("old", b'S', &DATA, move |header| {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.realsize = *b"00000020004\0";
        gnu.isextended = [u8::from(extended)];
        for (slot, (offset, length)) in gnu.sparse.iter_mut().zip(pieces) {
            (slot.offset, slot.numbytes) = (**offset, **length);
        }
    })
}

const ZERO: &[u8; 12] = b"00000000000\0";
const FOUR: &[u8; 12] = b"00000000004\0";
const BLOCK_SIZE_FIELD: &[u8; 12] = b"00000001000\0";
const FAR: &[u8; 12] = b"00000020000\0";
const NONE: &[u8; 12] = &[0; 12];
const SIGN: &[u8; 12] = b"+\0\0\0\0\0\0\0\0\0\0\0";

/// Returns archives that must be rejected.
fn contradictions() -> Vec<(&'static str, Tar)> {
    let with_size = |size: [u8; 12]| Tar::new().raw("a", b'0', &HIDDEN, move |header| header.as_old_mut().size = size);
    let with_field = |at: usize, field: &'static [u8]| {
        let set = move |header: &mut tar::Header| header.as_mut_bytes()[at..at + field.len()].copy_from_slice(field);
        Tar::new().file("a", b"x").raw("b", b'0', b"y", set).file("c", b"z")
    };
    let plain = || Tar::new().file("a", b"x");
    vec![
        ("a record of no size over a header", smuggled(512, "0").file("c", b"")),
        ("a record over an empty header", smuggled(0, "512")),
        ("a record beyond the header", sized(10, "512")),
        ("a record below the header", sized(512, "10")),
        ("an empty size", sized(512, "")),
        (
            "a size with a record of nothing",
            Tar::new().pax(b'x', &[b"size=0"]).raw("d", b'5', b"", |h| h.set_size(512)),
        ),
        ("a link with a size", Tar::new().pax(b'x', &[b"size=0"]).raw("l", b'1', b"", |h| h.set_size(512))),
        ("a symlink with a size", Tar::new().raw("l", b'2', b"", |h| h.set_size(512))),
        ("a file with a slash after its name", Tar::new().file("d/", b"")),
        ("two sizes", Tar::new().pax(b'x', &[b"size=1", b"size=2"]).file("a", b"x")),
        ("the same size twice", Tar::new().pax(b'x', &[b"size=1", b"size=1"]).file("a", b"x")),
        ("two paths", Tar::new().pax(b'x', &[b"path=b", b"path=c"]).file("a", b"x")),
        ("an empty path", Tar::new().pax(b'x', &[b"path="]).file("a", b"x")),
        ("two link targets", Tar::new().pax(b'x', &[b"linkpath=b", b"linkpath=c"]).symlink("a", "d")),
        ("a global size", Tar::new().pax(b'g', &[b"size=512"]).file("a", b"x")),
        ("a global path", Tar::new().pax(b'g', &[b"path=b"]).file("a", b"x")),
        ("a global link target", Tar::new().pax(b'g', &[b"linkpath=b"]).symlink("a", "d")),
        ("a global sparse map", Tar::new().pax(b'g', &[b"GNU.sparse.realsize=9"]).file("a", b"x")),
        ("a long name before a path", Tar::new().raw("", b'L', b"b\0", |_| ()).pax(b'x', &[b"path=c"]).file("a", b"x")),
        ("a path before a long name", Tar::new().pax(b'x', &[b"path=c"]).raw("", b'L', b"b\0", |_| ()).file("a", b"x")),
        (
            "two long link targets",
            Tar::new().raw("", b'K', b"b\0", |_| ()).pax(b'x', &[b"linkpath=c"]).symlink("a", "d"),
        ),
        ("a zero byte in a long name", Tar::new().raw("", b'L', b"b\0c\0", |_| ()).file("a", b"x")),
        ("a zero byte in a path", Tar::new().pax(b'x', &[b"path=b\0c"]).file("a", b"x")),
        (
            "a prefix of GNU",
            Tar::new().raw("a", b'0', b"x", |header| {
                gnu(header);
                prefix(header);
            }),
        ),
        (
            "a prefix of no format",
            Tar::new().raw("a", b'0', b"x", |header| {
                header.as_mut_bytes()[257..265].fill(0);
                prefix(header);
            }),
        ),
        (
            "a prefix of another version",
            Tar::new().raw("a", b'0', b"x", |header| {
                header.as_mut_bytes()[257..265].copy_from_slice(b"ustar\x0099");
                prefix(header);
            }),
        ),
        ("a size with a sign", with_size(*b"+0000001000\0")),
        ("a negative size", with_size(*b"-0000001000\0")),
        ("a blank size", with_size(*b"           \0")),
        ("a size after a zero byte", with_size(*b"\x000000001000\0")),
        ("a size with trailing bytes", with_size(*b"1000\x007777777")),
        ("a size with a stop", with_size(*b"00001000.00\0")),
        ("a size with an underscore", with_size(*b"0000_001000\0")),
        ("a mode with a sign", with_field(100, b"+000644\0")),
        ("a uid with a sign", with_field(108, b"+000017\0")),
        ("a gid with a dot", with_field(116, b"00017.0\0")),
        ("a time with a sign", with_field(136, b"+7346545000\0")),
        ("a time in a wider base", with_field(136, &[0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("a uid in a wider base", with_field(108, &[0x81, 0, 0, 0, 0, 0, 0, 1])),
        ("a device of a file with a sign", with_field(329, b"+000000\0")),
        (
            "a sign in an empty segment of a sparse map",
            old_sparse(&[(ZERO, BLOCK_SIZE_FIELD), (FAR, FOUR), (SIGN, NONE)], false),
        ),
        ("a size in decimal", with_size(*b"00000000999\0")),
        ("a path after the name of a sparse file", sparse_1(&[b"GNU.sparse.name=n", b"path=p"])),
        (
            "a placeholder of another directory after the name of a sparse file",
            sparse_1(&[b"GNU.sparse.name=./n", b"path=./a/GNUSparseFile.7/n"]),
        ),
        (
            "a placeholder of another file after the name of a sparse file",
            sparse_1(&[b"GNU.sparse.name=./n", b"path=./GNUSparseFile.7/p"]),
        ),
        (
            "a placeholder without a process after the name of a sparse file",
            sparse_1(&[b"GNU.sparse.name=./n", b"path=./GNUSparseFile./n"]),
        ),
        ("a sparse file with a size", sparse_1(&[b"size=1028"])),
        ("a sparse map without a length", Tar::new().pax(b'x', &[b"GNU.sparse.map=0,1"]).file("a", b"x")),
        ("two sparse lengths", sparse_1(&[b"GNU.sparse.size=8192"])),
        ("the length of version 0 with a map before the data", sparse_1(&[b"GNU.sparse.size=8196"])),
        (
            "the length of version 1 with a map of version 0",
            Tar::new().pax(b'x', &[b"GNU.sparse.realsize=8196", b"GNU.sparse.map=0,512,8192,4"]).file("s", &DATA),
        ),
        (
            "two sparse maps",
            sparse_0(&[b"GNU.sparse.map=0,512,8192,4", b"GNU.sparse.offset=0", b"GNU.sparse.numbytes=516"]),
        ),
        (
            "a sparse map of version 0.1 with a record of it",
            sparse_0(&[b"GNU.sparse.major=0", b"GNU.sparse.minor=1", b"GNU.sparse.map=0,512,8192,4"]),
        ),
        ("a sparse map with signs", sparse_0(&[b"GNU.sparse.map=+0,512,8192,4"])),
        (
            "a map before the data with signs",
            Tar::new().pax(b'x', &SPARSE_1).file("s", &[&b"2\n+0\n512\n8192\n4\n"[..], &[0; 496], &DATA].concat()),
        ),
        (
            "a sparse map of a directory",
            Tar::new().pax(b'x', &[b"GNU.sparse.realsize=9", b"GNU.sparse.name=n"]).directory("d"),
        ),
        ("a sparse map of an old sparse file", Tar::new().pax(b'x', &SPARSE_1).raw("s", b'S', &DATA, |_| ())),
        ("a length of star", Tar::new().pax(b'x', &[b"SCHILY.realsize=8196"]).file("a", b"x")),
        ("a map of Solaris", Tar::new().pax(b'x', &[b"SUN.holesdata= 0 1 2"]).file("a", b"x")),
        (
            "a map that ends before its file",
            Tar::new().pax(b'x', &[b"GNU.sparse.size=9000", b"GNU.sparse.map=0,512,8192,4"]).file("s", &DATA),
        ),
        (
            "a sparse map behind a header of GNU",
            Tar::new().pax(b'x', &[b"GNU.sparse.size=8196", b"GNU.sparse.map=0,512,8192,4"]).raw("s", b'0', &DATA, gnu),
        ),
        ("a piece that ends within a block", sparse_0(&[b"GNU.sparse.map=0,4,8192,512"])),
        ("a piece after an empty one", old_sparse(&[(ZERO, BLOCK_SIZE_FIELD), (NONE, NONE), (FAR, FOUR)], false)),
        ("an extension after an empty piece", old_sparse(&[(ZERO, BLOCK_SIZE_FIELD), (FAR, FOUR)], true)),
        ("a piece with a sign", old_sparse(&[(b"+0000000000\0", BLOCK_SIZE_FIELD), (FAR, FOUR)], false)),
        ("a symlink with a size of zero", plain().pax(b'x', &[b"size=0"]).raw("l", b'2', b"", |h| h.set_size(512))),
    ]
}

/// Returns archives that all tar readers read in the same way.
fn agreements() -> Vec<(&'static str, Tar)> {
    let long = "d/".repeat(70) + "f";
    let path = format!("path={long}");
    let long_name = [long.as_bytes(), b"\0"].concat();
    vec![
        ("plain members", Tar::new().directory("d").file("d/a", b"x").symlink("l", "d/a").hard_link("h", "d/a")),
        ("a record that repeats the header", Tar::new().pax(b'x', &[b"size=1"]).file("a", b"x").file("b", b"y")),
        ("a long name", Tar::new().raw("", b'L', &long_name, |_| ()).file("a", b"x")),
        ("a path", Tar::new().pax(b'x', &[path.as_bytes()]).file("a", b"x")),
        ("the same name twice", Tar::new().raw("", b'L', b"b\0", |_| ()).pax(b'x', &[b"path=b"]).file("a", b"x")),
        ("global attributes", Tar::new().pax(b'g', &[b"comment=x", b"mtime=5"]).file("a", b"x")),
        (
            "a prefix of POSIX",
            Tar::new().raw("a", b'0', b"x", |header| {
                prefix(header);
            }),
        ),
        (
            "a size in base 256",
            Tar::new().raw("a", b'0', b"x", |h| h.as_old_mut().size = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ),
        ("a size with blanks", Tar::new().raw("a", b'0', b"x", |h| h.as_old_mut().size = *b"         1 \0")),
        (
            "empty numbers",
            Tar::new().raw("a", b'0', b"", |h| {
                let fields = h.as_old_mut();
                (fields.uid, fields.gid, fields.size, fields.mtime) = ([0; 8], [0; 8], [0; 12], [0; 12]);
            }),
        ),
        ("a size without an end", Tar::new().raw("a", b'0', b"x", |h| h.as_old_mut().size = *b"000000000001")),
        ("sparse 1.0", sparse_1(&[b"GNU.sparse.name=n"]).file("b", b"y")),
        (
            "sparse 1.0 with a long path",
            Tar::new()
                .pax(b'x', &[&[&b"path=GNUSparseFile.7/n"[..]][..], &SPARSE_1, &[b"GNU.sparse.name=n"]].concat())
                .file("s", &sparse_map()),
        ),
        ("sparse 0.1", sparse_0(&[b"GNU.sparse.numblocks=2", b"GNU.sparse.map=0,512,8192,4"])),
        ("old sparse", old_sparse(&[(ZERO, BLOCK_SIZE_FIELD), (FAR, FOUR)], false).file("b", b"y")),
        (
            "the oldest format",
            Tar::new().raw("a", 0, b"x", |h| h.as_mut_bytes()[257..265].fill(0)).raw("d/", 0, b"", |h| {
                h.as_mut_bytes()[156] = 0;
                h.as_mut_bytes()[257..265].fill(0);
            }),
        ),
    ]
}

#[test]
fn refuses_contradictory_archives() {
    let accepted: Vec<&str> = contradictions()
        .into_iter()
        .filter(|(_, tar)| read_ours(&Tar(tar.0.clone()).end()).is_ok())
        .map(|(what, _)| what)
        .collect();
    assert_eq!(accepted, Vec::<&str>::new());
}

/// For most contradictions, two of the tested readers return different members, or at least one of them rejects the
/// archive.
#[test]
fn other_readers_disagree_about_contradictions() {
    let mut judges = Judges::start();
    let mut unanimous = Vec::new();
    for (what, tar) in contradictions() {
        let verdicts = judges.read(&tar.end());
        let refused = verdicts.iter().filter(|(_, verdict)| verdict.is_err()).count();
        println!(
            "{what}: {}, {refused} of 3 refuse",
            if disagree(&verdicts) { "different readings" } else { "one reading" }
        );
        if !disagree(&verdicts) && refused == 0 {
            unanimous.push(what);
        }
    }
    // These members are rejected nevertheless, because other readers than the three tested may disagree.
    println!("all three read alike: {unanimous:?}");
    assert!(unanimous.len() * 2 < contradictions().len(), "{unanimous:?}");
}

#[test]
fn accepts_archives_on_which_all_readers_agree() {
    let mut judges = Judges::start();
    for (what, tar) in agreements() {
        let tar = tar.end();
        let ours = read_ours(&tar).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_agreement(&mut judges, &tar, &ours, what);
    }
}

/// If the name of a sparse file does not fit into the header, GNU tar writes a placeholder as `path` after the name.
/// Python uses the placeholder as the name.
#[test]
fn accepts_sparse_files_with_names_longer_than_a_header() {
    use std::os::unix::ffi::OsStrExt;
    let (long, both, longer) = ("l".repeat(120), "\u{f6}".repeat(60), "d".repeat(90));
    for name in [&b"plain"[..], "gr\u{f6}\u{df}e=1".as_bytes(), b"latin\xff", long.as_bytes(), both.as_bytes()] {
        for directory in ["", "a", &format!("{longer}/{longer}/{longer}")] {
            let source = tempfile::tempdir().unwrap();
            let directory = Path::new(directory);
            std::fs::create_dir_all(source.path().join(directory)).unwrap();
            let path = directory.join(std::ffi::OsStr::from_bytes(name));
            std::fs::File::create(source.path().join(&path)).unwrap().set_len(1 << 19).unwrap();
            let producer = ["tar", "--format=posix", "--sparse", "--sparse-version=1.0"];
            let tar = super::random_trees::pack(source.path(), &producer);
            let ours = read_ours(&tar).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let file = ours.members.last().unwrap();
            assert_eq!((file.1, file.2), ('-', 1 << 19), "{path:?}");
            if let Some(plain) = path.to_str().filter(|path| path.is_ascii()) {
                assert_eq!(file.0, plain);
                for (check_input, verdict) in &Judges::start().read(&tar)[..2] {
                    assert_eq!(verdict.as_ref().unwrap().members, ours.members, "{check_input}: {path:?}");
                }
            }
        }
    }
}

/// If a size does not fit into the header, the PAX record contains the size, and the header contains a value that
/// depends on the program that wrote the archive.
#[test]
fn pax_record_contains_the_size_of_huge_files() {
    for (in_header, is_accepted) in [(0, true), (0o777_7777_7777, true), (1 << 33, true), (512, false)] {
        let tar = sized(in_header, &(1_u64 << 33).to_string()).end();
        let mut members = crate::tree::tar_parser::TarParser::new(reader(&tar, 700));
        let first = members.next_member();
        assert_eq!(first.is_ok(), is_accepted, "{in_header}: {first:?}");
    }
}
