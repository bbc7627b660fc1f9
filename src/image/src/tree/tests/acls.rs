//! ACLs in the image are restored, and files do not inherit ACLs that the image does not contain.

use super::random_trees::{acl_of, pack};
use super::*;
use linux::storage::test_loop_device::TestLoopDevice;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn record(name: &str, acl: &[u8]) -> Vec<u8> {
    [format!("SCHILY.xattr.{name}=").as_bytes(), acl].concat()
}

/// Returns the names of all ACLs below the root.
fn acls(root: &Path) -> Vec<String> {
    let acls = |(path, seen): (PathBuf, FileState)| {
        let names = seen.xattrs.into_keys().filter_map(|name| name.into_string().ok());
        let names: Vec<_> = names.filter_map(|name| Some(name.strip_prefix("system.posix_acl_")?.to_owned())).collect();
        (!names.is_empty()).then(|| format!("{}: {}", path.display(), names.join(" ")))
    };
    look(root, false).into_iter().filter_map(acls).collect()
}

fn mode(root: &Path, path: &str) -> u32 {
    fs::metadata(root.join(path)).unwrap().mode() & 0o7777
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_no_file_inherits_an_acl_absent_from_the_image() {
    let disks = ["/", "/kept"].map(|path| (TestLoopDevice::new(64 << 20, 512), path));
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut mounts = mounted(&root, &disks);
    fs::create_dir(root.join("kept/shared")).unwrap();
    xattr::set(root.join("kept/shared"), DEFAULT, &acl_of(7, 7)).unwrap();

    let (of_6, of_5) = (record(DEFAULT, &acl_of(6, 7)), record(ACCESS, &acl_of(5, 6)));
    let below = |tar: Tar, path: &str| {
        tar.file(&format!("{path}/file"), b"x")
            .raw(&format!("{path}/open"), b'0', b"x", |header| header.set_mode(0o666))
            .raw(&format!("{path}/pipe"), b'6', b"", |_| ())
            .symlink(&format!("{path}/link"), "file")
            .directory(&format!("{path}/directory"))
            .file(&format!("{path}/implied/file"), b"x")
            .pax(b'x', &[&of_5])
            .raw(&format!("{path}/own"), b'0', b"x", |header| header.set_mode(0o774))
    };
    let first = Tar::new().pax(b'x', &[&of_6]).directory("team");
    let first = below(below(first, "team"), "kept/shared").end();
    let second = below(Tar::new(), "team/later").end();

    let merged = ["/kept".to_owned()];
    for merged in [&[][..], &merged] {
        let below = UnpackRoot::open(&root, relative_paths(merged)).unwrap();
        for tar in [&first, &second] {
            let mut counter = HiddenFileCounter::new(MountsBelow::default());
            untar(
                members_of(reader(tar, 700)),
                &below,
                &mut counter,
                true,
                &DownloadState::default(),
                &StageClocks::start(),
            )
            .unwrap();
        }
        let mut seen = acls(&root);
        seen.retain(|line| merged.is_empty() || !line.starts_with("kept"));
        let preserved = ["kept/shared: default", "kept/shared/own: access"];
        let expected = ["team: default", "team/later/own: access", "team/own: access"];
        let preserved = if merged.is_empty() { &preserved[..] } else { &[] };
        assert_eq!(seen, [preserved, &expected].concat());
        assert_eq!(
            [mode(&root, "team/file"), mode(&root, "team/open"), mode(&root, "team/implied")],
            [0o644, 0o666, 0o755]
        );
        assert_eq!(xattr::get(root.join("team/own"), ACCESS).unwrap(), Some(acl_of(5, 6)));
        // Merged files inherit the ACLs that the owner of the directory has set; their mode comes from the image.
        if !merged.is_empty() {
            for (path, names) in [("file", "access"), ("directory", "access default"), ("implied", "access default")] {
                let line = format!("kept/shared/{path}: {names}");
                assert!(acls(&root).contains(&line), "{line} is not in {:?}", acls(&root));
            }
            assert_eq!(mode(&root, "kept/shared/open"), 0o666);
        }
        for path in ["team", "kept/shared/directory", "kept/shared/implied"] {
            fs::remove_dir_all(root.join(path)).unwrap();
        }
    }
    mounts.unmount_all().unwrap();
}

#[test]
#[ignore = "needs root"]
fn root_acls_packed_as_text_are_restored() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("team")).unwrap();
    fs::write(tree.path().join("team/file"), "x").unwrap();
    xattr::set(tree.path().join("team/file"), ACCESS, &acl_of(4711, 5)).unwrap();
    let (gnu, bsd) = (&["tar", "--acls", "--numeric-owner", "--format=posix"][..], &["bsdtar", "--format=pax"][..]);
    // User 1 has a name in every Debian. For this user, bsdtar writes name and number, but GNU tar writes only the
    // name.
    for (producer, user) in [(gnu, 4712), (bsd, 4712), (bsd, 1)] {
        xattr::set(tree.path().join("team"), DEFAULT, &acl_of(user, 6)).unwrap();
        let tar = pack(tree.path(), producer);
        assert!(!tar.windows(17).any(|bytes| bytes == b"SCHILY.xattr.syst"), "{producer:?} packs no text");
        let target = tempfile::tempdir().unwrap();
        unpack_into(target.path(), &tar, 700, false).unwrap();
        assert_eq!(acls(target.path()), ["team: default", "team/file: access"], "{producer:?}");
        assert_same(&look(tree.path(), false), &look(target.path(), false), &format!("{producer:?}"));
    }
    let target = tempfile::tempdir().unwrap();
    unpack_into(target.path(), &pack(tree.path(), gnu), 700, false).unwrap();
    assert_eq!(acls(target.path()), ["team/file: access"], "a name is no number");
}
