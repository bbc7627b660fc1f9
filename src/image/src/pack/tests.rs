//! Packs trees and disks with all types of contents, and unpacks them with other tools and with this crate.

use super::*;
use crate::testing::noise;
use crate::tests::{assert_same, create_all_file_types, look};
use crate::{IncomingImage, MountsBelow, SignatureKeys};
use linux::http;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process;
use tempfile::TempDir;
use testing::http::{ResponseBehavior, Server};

mod arbitrary_trees;
mod signed_images;
mod tool_interoperability;

const TRUSTED_KEYS_DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/trust");

fn options(source: &Path, output: &Path) -> PackOptions {
    PackOptions {
        source: source.to_owned(),
        output: output.to_owned(),
        key: None,
        id: None,
        level: 1,
        force: true,
        json: false,
    }
}

fn with_key(options: PackOptions, key: &str) -> PackOptions {
    PackOptions { key: Some(Path::new(TRUSTED_KEYS_DIRECTORY).join(key)), ..options }
}

fn with_id(options: PackOptions, id: &str) -> PackOptions {
    PackOptions { id: Some(id.to_owned()), ..options }
}

/// Returns a tree that can be created without root privileges. The files are created in the order of `names`.
fn small_tree(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in names {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, noise(name.len() * 1000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    symlink("etc/hosts", root.path().join("link")).unwrap();
    fs::hard_link(root.path().join(NAMES[0]), root.path().join("zz-hard-link")).unwrap();
    root
}

const NAMES: [&str; 5] = ["etc/hosts", "etc-first", "etc/a/b", "usr/share/doc", "var/big"];

fn set_times(root: &Path) {
    use nix::sys::stat::{UtimensatFlags, utimensat};
    use nix::sys::time::TimeSpec;
    for path in look(root, true).keys().rev() {
        let (time, at) = (TimeSpec::new(1_500_000_000, 7), root.join(path));
        utimensat(nix::fcntl::AT_FDCWD, &at, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
}

#[test]
fn same_tree_yields_the_same_bytes() {
    let reversed: Vec<&str> = NAMES.into_iter().rev().collect();
    let made: Vec<_> = [&NAMES[..], &reversed]
        .into_iter()
        .map(|names| {
            let (tree, out) = (small_tree(names), tempfile::tempdir().unwrap());
            set_times(tree.path());
            let image = out.path().join("image.tar.zst");
            let made = pack_image(&options(tree.path(), &image)).unwrap();
            assert_eq!(
                (made.files, made.beside),
                (Some(13), vec!["image.tar.zst.manifest".into(), "image.tar.zst.sha256".into()])
            );
            let names: Vec<_> = look(out.path(), false).into_keys().collect();
            assert_eq!(names.len(), 4, "{names:?}");
            ["", ".manifest", ".sha256"].map(|suffix| fs::read(with_suffix(&image, suffix)).unwrap())
        })
        .collect();
    assert!(made[0] == made[1]);
}

#[test]
fn manifest_of_a_tree_lists_its_boot_contents() {
    let (tree, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["boot/vmlinuz-6.1", "usr/lib/systemd/systemd", "usr/bin/cloud-init", "install.sh"] {
        fs::create_dir_all(tree.path().join(name).parent().unwrap()).unwrap();
        fs::write(tree.path().join(name), "").unwrap();
    }
    let image = out.path().join("image.tar.zst");
    let manifest = || {
        let made = pack_image(&options(tree.path(), &image)).unwrap();
        let text = fs::read(with_suffix(&image, ".manifest")).unwrap();
        let contents = model::image_boot_contents::read_manifest_contents(&text, &made.digest).unwrap();
        assert_eq!(ImageManifest::parse(&text).unwrap().contents, contents);
        serde_json::to_value(contents).unwrap()
    };
    let expected = serde_json::json!({
        "kernels": ["/boot/vmlinuz-6.1"], "init": "/usr/lib/systemd/systemd", "installer": "/install.sh",
        "user_data": ["/usr/bin/cloud-init"], "cryptsetup": [],
    });
    assert_eq!(manifest(), expected);
    fs::remove_dir_all(tree.path().join("boot")).unwrap();
    assert_eq!(manifest()["kernels"], serde_json::json!([]));
    // SUSE's wicked is reported only if the image does not contain cloud-init.
    fs::create_dir_all(tree.path().join("usr/sbin")).unwrap();
    for name in ["wicked", "ifup"] {
        fs::write(tree.path().join("usr/sbin").join(name), "").unwrap();
    }
    assert_eq!(manifest().get("unsupported_network"), None);
    fs::remove_file(tree.path().join("usr/bin/cloud-init")).unwrap();
    assert_eq!(manifest()["unsupported_network"], "wicked");
    // A disk image with contents that cannot boot does not trigger a warning.
    let (disk, image) = (out.path().join("disk.raw"), out.path().join("disk.raw.zst"));
    fs::write(&disk, noise(4096)).unwrap();
    pack_image(&options(&disk, &image)).unwrap();
    assert!(!fs::read_to_string(with_suffix(&image, ".manifest")).unwrap().contains("contents"));
}

/// Returns the compressed and decompressed length of each frame, from the seek table.
fn seek_table(image: &[u8]) -> Vec<(usize, usize)> {
    let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(&image[image.len() - 5..], [0, 0xb1, 0xea, 0x92, 0x8f]);
    let frames = number(image.len() - 9);
    let entries = image.len() - 9 - 8 * frames;
    assert_eq!((number(entries - 8), number(entries - 4)), (0x184d_2a5e, 8 * frames + 9));
    let table: Vec<_> =
        (0..frames).map(|frame| (number(entries + 8 * frame), number(entries + 8 * frame + 4))).collect();
    assert_eq!(table.iter().map(|(compressed, _)| compressed).sum::<usize>(), entries - 8);
    table
}

#[test]
fn each_frame_can_be_located_and_decoded_separately() {
    let directory = tempfile::tempdir().unwrap();
    let disk = noise(2 * seekable_zstd::FRAME_BYTES + 12345);
    let (source, image) = (directory.path().join("disk.raw"), directory.path().join("disk.raw.zst"));
    fs::write(&source, &disk).unwrap();
    let made = pack_image(&options(&source, &image)).unwrap();
    assert_eq!((made.files, made.bytes_in), (None, disk.len() as u64));
    let image = fs::read(image).unwrap();
    assert_eq!(made.bytes_out, image.len() as u64);
    let (mut compressed_at, mut at) = (0, 0);
    let table = seek_table(&image);
    assert_eq!(table.len(), 3);
    for (compressed, length) in table {
        let frame = &image[compressed_at..compressed_at + compressed];
        assert_eq!(zstd::zstd_safe::get_frame_content_size(frame).unwrap(), Some(length as u64));
        // The flag bit of a frame that indicates a checksum.
        assert_eq!(frame[4] & 4, 4);
        assert!(zstd::bulk::decompress(frame, length).unwrap() == disk[at..at + length]);
        (compressed_at, at) = (compressed_at + compressed, at + length);
    }
    assert_eq!(at, disk.len());
}

#[test]
fn refusals_and_failures_have_different_outcomes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("disk.raw"), noise(5000)).unwrap();
    fs::write(at("disk.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    fs::write(at("disk.bz2"), b"BZh9").unwrap();
    fs::write(at("empty"), b"").unwrap();
    let refused = [
        (at("disk.raw"), at("disk.raw")),
        (at("disk.raw"), at(".")),
        (at("disk.gz"), at("image")),
        (at("disk.bz2"), at("image")),
        (at("empty"), at("image")),
        (at("."), at("image")),
        ("/dev/null".into(), at("image")),
        (at("nothing"), directory.path().with_extension("image")),
        (at("disk.raw"), at("image.tar.gz")),
        (at("disk.raw"), at("IMAGE.XZ")),
    ];
    fs::create_dir(at("nothing")).unwrap();
    for (source, output) in refused {
        assert_eq!(run_pack(&options(&source, &output)).unwrap(), CommandOutcome::Refused, "{source:?} {output:?}");
    }
    run_pack(&options(&at("missing"), &at("image"))).unwrap_err();
    run_pack(&options(&at("disk.raw"), &at("missing/image"))).unwrap_err();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
    assert_eq!(run_pack(&options(&at("disk.raw"), &at("image"))).unwrap(), CommandOutcome::Good);
    let again = pack_image(&options(&at("disk.raw"), &at("image"))).unwrap();
    assert!(again.format_line().ends_with("; replaced the existing image\n"), "{}", again.format_line());
}

#[test]
fn existing_image_is_replaced_only_with_force() {
    let (tree, out) = (small_tree(&NAMES), tempfile::tempdir().unwrap());
    let image = out.path().join("image.tar.zst");
    let options = PackOptions { force: false, ..options(tree.path(), &image) };
    pack_image(&options).unwrap();
    let before = fs::read(&image).unwrap();
    fs::write(tree.path().join("new"), "new").unwrap();
    let error = pack_image(&options).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("already exists; specify another output"), "{error}");
    assert!(fs::read(&image).unwrap() == before);
    assert!(pack_image(&PackOptions { force: true, ..options }).unwrap().replaced);
    assert!(fs::read(&image).unwrap() != before);
}

#[test]
fn warns_about_unbootable_trees_and_misleading_extensions() {
    let (tree, out) = (small_tree(&NAMES), tempfile::tempdir().unwrap());
    let disk = out.path().join("disk");
    fs::write(&disk, noise(5000)).unwrap();
    for (source, name, says) in [
        (tree.path(), "image.tar.zst", ""),
        (tree.path(), "image.zst", ""),
        (
            tree.path(),
            "image.tar",
            "image.tar is a tar archive compressed with zstd, but its extension differs; use .tar.zst",
        ),
        (tree.path(), "image.raw.zst", "image.raw.zst is a tar"),
        (tree.path(), "debian-12.0.20261101", "but its extension differs"),
        (&disk, "image.raw.zst", ""),
        (&disk, "image.img.ZST", ""),
        (&disk, "image.qcow2.zst", "is a raw disk image compressed with zstd"),
        (&disk, "image.tar.zst", "use .raw.zst"),
    ] {
        let warnings = pack_image(&options(source, &out.path().join(name))).unwrap().warnings;
        let (mut names, others): (Vec<_>, Vec<_>) =
            warnings.into_iter().partition(|text| text.contains("its extension differs"));
        let named = names.pop().unwrap_or_default();
        assert!(named.contains(says) && named.is_empty() == says.is_empty(), "{name}: {named}");
        let of_tree = others.iter().any(|text| text.contains("contains neither a kernel nor an init"));
        assert_eq!((of_tree, others.len()), (source == tree.path(), usize::from(source == tree.path())), "{others:?}");
    }
}

#[test]
fn refuses_source_that_would_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.raw");
    let at = |name: &str| directory.path().join(name);
    let names = [
        "disk.raw",
        "disk.raw.new",
        "disk.raw.manifest",
        "disk.raw.manifest.new",
        "disk.raw.sha256",
        "disk.raw.sha256.new",
        "disk.raw.manifest.minisig",
        "disk.raw.manifest.minisig.new",
        "disk.raw.sha256.minisig",
        "disk.raw.sha256.minisig.new",
    ];
    for name in names {
        fs::write(at(name), noise(5000)).unwrap();
        fs::hard_link(at(name), at("hard-link")).unwrap();
        symlink(name, at("symlink")).unwrap();
        for source in [name, "hard-link", "symlink"] {
            let error = pack_image(&options(&at(source), &image)).unwrap_err().to_string();
            let says =
                format!("{} is the same file as {}, which would be replaced", at(source).display(), at(name).display());
            assert!(error.contains(&says), "{error}");
            assert!(fs::read(at(name)).unwrap() == noise(5000));
        }
        // Now the output is a symlink to the source.
        symlink(at(name), at("output")).unwrap();
        let error = pack_image(&options(&at(name), &at("output"))).unwrap_err().to_string();
        assert!(error.contains("is the same file as"), "{error}");
        for name in [name, "hard-link", "symlink", "output"] {
            fs::remove_file(at(name)).unwrap();
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    fs::write(at("other.raw"), noise(5000)).unwrap();
    for _ in 0..2 {
        pack_image(&options(&at("other.raw"), &image)).unwrap();
    }
}

#[test]
fn frames_do_not_depend_on_write_sizes() {
    let stream = noise(seekable_zstd::FRAME_BYTES + 5);
    let made = |piece: usize| {
        let mut frames = FrameWriter::new(Vec::new(), 3);
        stream.chunks(piece).for_each(|bytes| std::io::Write::write_all(&mut frames, bytes).unwrap());
        frames.finish().unwrap()
    };
    assert!(made(1000) == made(stream.len()));
    let (length, nothing) = FrameWriter::new(Vec::new(), 3).finish().unwrap();
    assert_eq!((length, seek_table(&nothing).len()), (0, 1));
    assert_eq!(zstd::decode_all(&nothing[..]).unwrap(), b"");
}

#[test]
fn source_date_epoch_limits_member_times() {
    assert_eq!(parse_epoch(None).unwrap(), None);
    assert_eq!(parse_epoch(Some("1600000000")).unwrap(), Some(1_600_000_000));
    for bad in ["", "yesterday", "-1", "1.5"] {
        assert!(parse_epoch(Some(bad)).unwrap_err().to_string().contains("SOURCE_DATE_EPOCH="), "{bad}");
    }
    let tree = small_tree(&NAMES);
    let mut times = Vec::new();
    for epoch in [Some(1_600_000_000), None] {
        let (_, frames) = tree::pack_tree(tree.path(), FrameWriter::new(Vec::new(), 1), epoch).unwrap();
        let tar = zstd::decode_all(&frames.finish().unwrap().1[..]).unwrap();
        let mut archive = tar::Archive::new(&tar[..]);
        times
            .push(archive.entries().unwrap().map(|entry| entry.unwrap().header().mtime().unwrap()).collect::<Vec<_>>());
    }
    assert!(times[0].iter().all(|time| *time == 1_600_000_000));
    assert!(times[1].iter().all(|time| *time > 1_600_000_000));
}

#[test]
fn unpackable_source_is_named_and_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("packed.zst"), zstd::encode_all(&b"x"[..], 1).unwrap()).unwrap();
    fs::write(at("packed.gz"), [0x1f, 0x8b, 8]).unwrap();
    fs::write(at("disk"), "disk").unwrap();
    let qcow2 = |backing: u8, features: u8| {
        let mut head = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 96]].concat();
        (head[15], head[79]) = (backing, features);
        head
    };
    fs::write(at("backed.qcow2"), qcow2(1, 0)).unwrap();
    fs::write(at("elsewhere.qcow2"), qcow2(0, 4)).unwrap();
    let out = at("out");
    fs::create_dir(&out).unwrap();
    let image = out.join("image");
    let plain = |source: &str| options(&at(source), &image);
    for (options, says) in [
        (plain("none"), "none: No such file"),
        (plain("empty"), "the file is empty"),
        (plain("packed.zst"), "is already compressed with zstd; decompress it first"),
        (plain("packed.gz"), "already compressed with gzip"),
        (plain("backed.qcow2"), "(backing file or data file); convert the qcow2 to a single file"),
        (plain("elsewhere.qcow2"), "depends on another file"),
        (options(Path::new("/dev/null"), &image), "neither a directory nor the file of a disk image"),
        (options(&at("tree"), &at("tree/image")), "is inside the directory to pack"),
        (options(&at("tree"), &out), "out is a directory; specify the file name of the image"),
        (options(&at("tree"), &at("no/such/image")), "stat"),
        (options(&at("disk"), &at("no/such/image")), "create"),
        (with_id(plain("disk"), "debian"), "--id debian: invalid format for os image"),
        (with_id(plain("disk"), "debian-twelve"), "invalid semantic version"),
        (with_id(plain("disk"), "de\tbian-12"), "use only ASCII letters, digits and punctuation"),
        (with_key(plain("disk"), "none.key"), "read the secret key"),
        (with_key(plain("disk"), "one.pub"), "one.pub"),
        (with_key(plain("disk"), "img.tar.zst.sha256"), "img.tar.zst.sha256 is not a minisign secret key"),
    ] {
        let error = pack_image(&options).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{says}");
    }
}

#[test]
fn old_image_is_replaced_with_all_its_sidecar_files() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, image) = (directory.path().join("disk"), directory.path().join("image"));
    fs::write(&disk, "one").unwrap();
    let signed = pack_image(&with_key(options(&disk, &image), "one.key")).unwrap();
    assert_eq!((signed.beside.len(), signed.signed_by.as_deref()), (4, Some("6C22FE75B6915BAB")));
    let line = signed.format_line();
    assert!(line.contains("image.sha256.minisig (signed by 6C22FE75B6915BAB, without an image id; "), "{line}");
    assert!(with_suffix(&image, ".manifest.minisig").exists());
    fs::write(&disk, "two").unwrap();
    let unsigned = pack_image(&options(&disk, &image)).unwrap();
    assert_ne!(unsigned.digest, signed.digest);
    let names: Vec<_> = look(directory.path(), false).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "disk", "image", "image.manifest", "image.sha256"]);
}

/// Returns a server for the files in a directory.
fn serve(directory: &Path) -> Server {
    let directory = directory.to_owned();
    Server::start(Vec::new(), move |request| match fs::read(directory.join(&request.path[1..])) {
        Ok(body) => ResponseBehavior { body: Some(body), ..ResponseBehavior::default() },
        Err(_) => ResponseBehavior::status(404),
    })
}

fn burn(server: &Server, keys: &str, root: &Path) -> Result<Option<String>> {
    let key =
        fs::read_to_string(Path::new(TRUSTED_KEYS_DIRECTORY).join(keys)).unwrap().lines().nth(1).unwrap().to_owned();
    let keys = SignatureKeys::read(&[key], Path::new("/no/such/directory"))?;
    let reached = crate::resolve_image(&crate::ImageSource {
        url: server.url("image.tar.zst"),
        keys,
        ..crate::ImageSource::default()
    })?;
    assert!(reached.parts[0].manifest.is_some());
    let signed_by = reached.signed_by.clone();
    IncomingImage::start(reached, crate::PayloadKind::Tar)?.burn_to_root(root, &MountsBelow::default(), &|_| ())?;
    Ok(signed_by)
}
