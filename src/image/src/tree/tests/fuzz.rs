//! Fuzzes unpacking with mutations of archives that contain all types of members. Nothing outside of the root may
//! change, and unpacking must terminate without a panic.

use super::*;
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

#[test]
fn fuzz_untar() {
    let fuzz = Fuzz {
        folder: folder("untar"),
        few: 400,
        hangs: Duration::from_secs(60),
        corpus: corpus(),
        mutated: |corpus, random| mutated(random, corpus),
        check_input: |input, random| check_input(input, random.usize(1..3000), random.bool()),
    };
    fuzz.run();
}

/// Unpacks the input, and returns whether it was unpacked completely. Fails if anything outside of the root has
/// changed.
fn check_input(input: &[u8], cut: usize, layered: bool) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("kept/sub")).unwrap();
    fs::write(root.join("kept/file"), "kept").unwrap();
    fs::create_dir_all(directory.path().join("outside/deep")).unwrap();
    fs::write(directory.path().join("outside/secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../../outside", root.join("kept/out")).unwrap();
    let before = outside(directory.path());
    let below = UnpackRoot::open(&root, Vec::new()).unwrap();
    let fresh = below.record_snapshots(&[]).unwrap();
    let unpacked = fuzz_untar_bytes(input, &root, cut, layered);
    assert!(before == outside(directory.path()), "something outside was touched");
    if let Err(error) = &unpacked {
        assert!(!error.to_string().is_empty(), "refused without a reason");
    }
    // The temporary directory can be removed only if the modes of its directories are restored.
    let _ = below.restore_snapshots(&fresh);
    unpacked.is_ok()
}

/// Unpacks any bytes, for some inputs with a preserved filesystem at `/kept`.
fn fuzz_untar_bytes(bytes: &[u8], root: &Path, cut: usize, layered: bool) -> std::io::Result<UnpackResult> {
    let merged = if bytes.len().is_multiple_of(2) { vec![PathBuf::from("kept")] } else { Vec::new() };
    let mut counter = HiddenFileCounter::new(MountsBelow::default());
    untar(
        members_of(reader(bytes, cut)),
        &UnpackRoot::open(root, merged)?,
        &mut counter,
        layered,
        &DownloadState::default(),
        &StageClocks::start(),
    )
}

/// Returns the state of all files outside of the root. The state includes the ctime, which changes even if the owner of
/// a file is set to its current owner.
pub(super) fn outside(directory: &Path) -> Vec<String> {
    let seen = ["", "outside", "outside/deep", "outside/secret"].map(|path| {
        let path = directory.join(path);
        let has = fs::symlink_metadata(&path).unwrap();
        let names = fs::read_dir(&path).map_or(0, Iterator::count);
        // Changes below the root do not change the ctime of its parent.
        format!(
            "{names} {:o} {} {} {:?} {}.{}",
            has.mode(),
            has.nlink(),
            has.size(),
            xattr::list(&path).unwrap().count(),
            has.ctime(),
            has.ctime_nsec()
        )
    });
    seen.to_vec()
}

/// Returns archives with all types of members, without their end blocks.
fn corpus() -> Vec<Vec<u8>> {
    let device = |header: &mut tar::Header| {
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
    };
    let map = [&b"2\n0\n512\n8192\n4\n"[..], &[0; 497], &[b'd'; 516]].concat();
    let sparse_1: [&[u8]; 4] =
        [b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.name=sparse1", b"GNU.sparse.realsize=8196"];
    let sparse_0: [&[u8]; 4] = [
        b"GNU.sparse.size=8196",
        b"GNU.sparse.numblocks=2",
        b"GNU.sparse.name=sparse0",
        b"GNU.sparse.map=0,512,8192,4",
    ];
    let old_sparse = |header: &mut tar::Header| {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.realsize = *b"00000000010\0";
        gnu.sparse[0].offset = *b"00000000000\0";
        gnu.sparse[0].numbytes = *b"00000000010\0";
    };
    vec![
        Tar::new().directory("a").file("a/b", b"content").file("a/c", &noise(3000)).directory("a").0,
        Tar::new().file("kept/file", b"new").directory("kept/sub").file("kept/out/x", b"x").file("kept", b"x").0,
        Tar::new().directory("usr/lib").symlink("lib", "usr/lib").file("lib/x", b"x").symlink("up", "../..").0,
        Tar::new().symlink("out", "/../outside").file("out/secret", b"x").hard_link("l", "out/secret").0,
        Tar::new()
            .file("f", b"f")
            .hard_link("g", "f")
            .hard_link("g", "kept/file")
            .symlink("f", "kept")
            .file("f/z", b"")
            .0,
        Tar::new().raw("null", b'3', b"", device).raw("disk", b'4', b"", device).raw("fifo", b'6', b"", |_| ()).0,
        Tar::new()
            .pax(b'g', &[b"comment=x"])
            .pax(b'x', &[b"path=p", b"uid=70000", b"mtime=1.5", b"SCHILY.xattr.user.a=1"])
            .file("q", b"1")
            .0,
        Tar::new().raw("", b'L', &[b'n'; 150], |_| ()).raw("", b'K', &[b'k'; 150], |_| ()).symlink("s", "t").0,
        Tar::new().pax(b'x', &sparse_1).file("s", &map).pax(b'x', &sparse_0).file("s", &[b'd'; 516]).0,
        Tar::new().raw("old", b'S', b"datadata", old_sparse).file("after", b"").0,
        Tar::new().file("kept/.wh.file", b"").file(".wh..wh..opq", b"").file("a/.wh.b", b"").file(".wh.kept", b"").0,
    ]
}

const NAMES: [&[u8]; 20] = [
    b"..",
    b"../outside/secret",
    b"a/../../outside",
    b"/",
    b".",
    b"",
    b"/etc",
    b"kept",
    b"kept/out",
    b"kept/out/secret",
    b"../../outside",
    b"/../outside",
    b"out",
    b"lib/../x",
    b".wh..wh..opq",
    b".wh...",
    b"kept/.wh..wh..opq",
    b"a//b/./c",
    b"up/x",
    b"\xff\n\x01",
];
const NUMBERS: [&[u8]; 9] = [
    b"00000000000\0",
    b"00000000001\0",
    b"00000001000\0",
    b"77777777777\0",
    b"00000007777\0",
    b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"            ",
    b"99999999999\0",
];

/// Returns several concatenated archives of the corpus with some mutations, usually followed by end blocks.
fn mutated(random: &mut fastrand::Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut blocks: Vec<[u8; 512]> = Vec::new();
    for _ in 0..random.usize(1..4) {
        blocks.extend(corpus[random.usize(..corpus.len())].as_chunks::<512>().0);
    }
    for _ in 0..random.usize(0..6) {
        change(random, &mut blocks);
    }
    let mut bytes = blocks.concat();
    if random.u8(..10) > 0 {
        bytes.resize(bytes.len() + 1024 + random.usize(0..2), 0);
    }
    if random.u8(..20) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
    }
    if random.u8(..20) == 0 && !bytes.is_empty() {
        let at = random.usize(..bytes.len());
        bytes[at] ^= 1 << random.u8(..8);
    }
    bytes
}

fn change(random: &mut fastrand::Rng, blocks: &mut Vec<[u8; 512]>) {
    let (at, other) = (random.usize(..blocks.len()), random.usize(..blocks.len()));
    match random.u8(..12) {
        0 if blocks.len() > 1 => drop(blocks.remove(at)),
        1 => blocks.insert(at, blocks[other]),
        2 => blocks.swap(at, other),
        // Bytes of blocks that are not headers: content, records, maps.
        3 => {
            let byte = random.usize(..40);
            blocks[at][byte] = *random.choice(b"0123456789,=\n \0/.x").unwrap();
        }
        _ => {
            let field =
                |random: &mut fastrand::Rng, block: &mut [u8; 512], start: usize, width: usize, all: &[&[u8]]| {
                    let value = all[random.usize(..all.len())];
                    block[start..start + width].fill(0);
                    let width = width.min(value.len());
                    block[start..start + width].copy_from_slice(&value[..width]);
                };
            let block = &mut blocks[at];
            match random.u8(..8) {
                0 | 1 => field(random, block, 0, 100, &NAMES),
                2 => field(random, block, 157, 100, &NAMES),
                3 => field(random, block, 124, 12, &NUMBERS),
                // Offset and width of mode, uid, gid, mtime, and device numbers.
                4 => {
                    let (start, width) =
                        *random.choice(&[(100, 8), (108, 8), (116, 8), (136, 12), (329, 8), (337, 8)]).unwrap();
                    field(random, block, start, width, &NUMBERS);
                }
                5 => field(random, block, 386 + 12 * (other % 10), 12, &NUMBERS),
                _ => block[156] = *random.choice(b"\x000123456LKSxgVM7").unwrap(),
            }
            with_checksum(block);
        }
    }
}

fn with_checksum(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
