//! Random trees are packed with several tar programs and burned. All data and attributes from stat(2) and getxattr(2)
//! must be unchanged.

use super::*;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use nix::sys::time::TimeSpec;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::process::{Command, Stdio};

#[derive(Debug, Clone)]
enum EntryContent {
    File(Vec<u8>),
    /// Numbers of the pages that contain data, and the number of all pages. The other pages are holes.
    Sparse(Vec<u64>, u64),
    Directory,
    Symlink(Vec<u8>),
    /// Index of the linked file among the earlier files.
    HardLink(usize),
    Fifo,
}

/// Entry of a random tree.
#[derive(Debug, Clone)]
struct Entry {
    /// Index of the parent directory among the earlier directories.
    within: usize,
    name: Vec<u8>,
    thing: EntryContent,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattrs: Vec<(String, Vec<u8>)>,
    /// Access ACL and default ACL: id and permissions of a user.
    acls: [Option<(u32, u16)>; 2],
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    use proptest::collection::{btree_set, vec};
    let byte = prop_oneof![8 => b'a'..=b'z', 1 => any::<u8>(), 1 => prop::sample::select(&b"\n\\%= *\"\t"[..])];
    let fit = |byte: u8| if byte == 0 || byte == b'/' { b'_' } else { byte };
    let bytes = move |most: usize| {
        vec(byte.clone(), 1..most).prop_map(move |name| name.into_iter().map(fit).collect::<Vec<u8>>())
    };
    let name = prop_oneof![6 => bytes(12), 1 => bytes(120), 1 => bytes(255)];
    let thing = prop_oneof![
        3 => vec(any::<u8>(), 0..2000).prop_map(EntryContent::File),
        1 => (1_usize..70_000).prop_map(|length| EntryContent::File(noise(length))),
        1 => (btree_set(0..200_u64, 0..8), 0..200_u64).prop_map(|(pages, more)| {
            let last = pages.iter().max().map_or(0, |page| page + 1);
            EntryContent::Sparse(pages.into_iter().collect(), last + more)
        }),
        3 => Just(EntryContent::Directory),
        1 => bytes(300).prop_map(EntryContent::Symlink),
        1 => any::<usize>().prop_map(EntryContent::HardLink),
        1 => Just(EntryContent::Fifo),
    ];
    let xattr = ("(user|trusted)\\.[a-z%=]{1,20}", vec(any::<u8>(), 0..80));
    let mode = prop_oneof![3 => Just(0o644), 2 => Just(0o755), 2 => 0..0o10000_u32];
    let owner = prop_oneof![2 => Just((0, 0)), 1 => (0..70_000_u32, 0..70_000_u32)];
    let mtime = (0..4_000_000_000_i64, 0..1_000_000_000_i64);
    let xattrs = prop_oneof![3 => Just(Vec::new()), 1 => vec(xattr, 1..4)];
    // These ids do not belong to any user. For the id of an existing user, GNU tar would write the user's name instead.
    let acl = prop_oneof![3 => Just(None), 1 => (100_000..4_000_000_000_u32, 0..8_u16).prop_map(Some)];
    let acls = [acl.clone(), acl];
    let entry = (any::<usize>(), name, thing, mode, owner, mtime, xattrs, acls);
    let entry = entry.prop_map(|(within, name, thing, mode, owner, mtime, xattrs, acls)| Entry {
        within,
        name,
        thing,
        mode,
        owner,
        mtime,
        xattrs,
        acls,
    });
    vec(entry, 1..30)
}

/// Attributes that a tar program can store in an archive of a given format.
#[derive(Clone, Copy)]
struct ArchiveCapabilities {
    nanoseconds: bool,
    xattrs: bool,
    /// ACLs, as xattrs or as text in separate records.
    acls: bool,
    /// Names that are longer than 100 bytes or not ASCII.
    names: bool,
}

const ALL: ArchiveCapabilities = ArchiveCapabilities { nanoseconds: true, xattrs: true, acls: true, names: true };

/// Creates the tree, without names and attributes that cannot be packed.
fn make(root: &Path, entries: &[Entry], tells: ArchiveCapabilities) {
    let (mut directories, mut files) = (vec![PathBuf::new()], Vec::new());
    let mut made: Vec<(PathBuf, &Entry)> = Vec::new();
    for entry in entries {
        let within = &directories[entry.within % directories.len()];
        let path = within.join(std::ffi::OsString::from_vec(entry.name.clone()));
        let full = root.join(&path);
        let long = path.as_os_str().len() > 90 || !path.as_os_str().as_encoded_bytes().is_ascii();
        let fits = tells.names || !long;
        if !fits
            || full.as_os_str().len() > 3000
            || [".", ".."].map(str::as_bytes).contains(&&entry.name[..])
            || full.symlink_metadata().is_ok()
        {
            continue;
        }
        match &entry.thing {
            EntryContent::File(content) => fs::write(&full, content).unwrap(),
            EntryContent::Sparse(pages, length) => {
                let file = fs::File::create(&full).unwrap();
                pages.iter().for_each(|page| file.write_all_at(&noise(4096), page * 4096).unwrap());
                file.set_len(length * 4096).unwrap();
            }
            EntryContent::Directory => fs::create_dir(&full).unwrap(),
            EntryContent::Symlink(target) if !tells.names && (target.len() > 90 || !target.is_ascii()) => continue,
            EntryContent::Symlink(target) => symlink(std::ffi::OsString::from_vec(target.clone()), &full).unwrap(),
            EntryContent::HardLink(_) if files.is_empty() => continue,
            EntryContent::HardLink(of) => {
                fs::hard_link(root.join(&files[of % files.len()]), &full).unwrap();
                continue;
            }
            EntryContent::Fifo => mknod(&full, SFlag::S_IFIFO, Mode::S_IRUSR, 0).unwrap(),
        }
        match &entry.thing {
            EntryContent::Directory => directories.push(path.clone()),
            // FIFOs are not linked, because GNU tar packs the second name of a FIFO as another FIFO.
            EntryContent::Fifo => {}
            _ => files.push(path.clone()),
        }
        made.push((path, entry));
    }
    // The attributes of a directory are set after its entries were created.
    for (path, entry) in made.iter().rev() {
        let full = root.join(path);
        lchown(&full, Some(entry.owner.0), Some(entry.owner.1)).unwrap();
        let is_symlink = matches!(entry.thing, EntryContent::Symlink(_));
        let with = tells.xattrs
            && matches!(entry.thing, EntryContent::File(_) | EntryContent::Sparse(..) | EntryContent::Directory);
        for (name, value) in entry.xattrs.iter().filter(|_| with) {
            xattr::set(&full, name, value).unwrap();
        }
        let is_directory = matches!(entry.thing, EntryContent::Directory);
        for (name, acl) in ["access", "default"].into_iter().zip(entry.acls) {
            let may = with && tells.acls && (name == "access" || is_directory);
            if let Some((user, permissions)) = acl.filter(|_| may) {
                xattr::set(&full, format!("system.posix_acl_{name}"), &acl_of(user, permissions)).unwrap();
            }
        }
        if !is_symlink {
            fs::set_permissions(&full, fs::Permissions::from_mode(entry.mode)).unwrap();
        }
        let time = TimeSpec::new(entry.mtime.0, if tells.nanoseconds { entry.mtime.1 } else { 0 });
        utimensat(nix::fcntl::AT_FDCWD, &full, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
}

/// Returns an ACL in the kernel's format: version, then tag, permissions and id of each entry. The ACL grants all
/// permissions to the owner, `permissions` to a user, and read permission to group and others; the mask allows
/// everything.
pub(super) fn acl_of(user: u32, permissions: u16) -> Vec<u8> {
    let entries = [(1, 7, u32::MAX), (2, permissions, user), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let entry =
        |(tag, may, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat();
    [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
}

pub(super) fn pack(root: &Path, producer: &[&str]) -> Vec<u8> {
    let mut command = Command::new(producer[0]);
    command.args(&producer[1..]).args(["-cf", "-", "-C"]).arg(root).arg(".").env("LC_ALL", "C.UTF-8");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{producer:?}: {said}");
    output.stdout
}

/// Packs the tree with `drophammer image pack`.
fn pack_ourselves(root: &Path) -> Vec<u8> {
    let beside = tempfile::tempdir().unwrap();
    let output = beside.path().join("image");
    let options = crate::pack::PackOptions {
        source: root.to_owned(),
        output,
        key: None,
        id: None,
        level: 1,
        force: false,
        json: false,
    };
    crate::pack::run_pack(&options).unwrap();
    zstd::decode_all(fs::File::open(&options.output).unwrap()).unwrap()
}

/// Packs the tree with the tar crate.
fn pack_with_the_crate(root: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    builder.append_dir_all(".", root).unwrap();
    builder.into_inner().unwrap()
}

/// Returns whether the tar program restores the tree from its own archive. In rare cases it does not: bsdtar truncates
/// the long path of a sparse file if the path is not UTF-8.
fn gives_back(tool: &str, root: &Path, tar: &[u8], tells: ArchiveCapabilities) -> bool {
    let target = tempfile::tempdir().unwrap();
    let mut command = Command::new(tool);
    command.args(["--numeric-owner", "--xattrs", "-xpf", "-", "-C"]).arg(target.path()).env("LC_ALL", "C.UTF-8");
    if tool == "tar" {
        command.args(["--acls", "--xattrs-include=*"]);
    }
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // A reader that fails early does not read the whole tar, so write errors are ignored.
    let _ = child.stdin.take().unwrap().write_all(tar);
    child.wait().unwrap().success() && look(root, tells.nanoseconds) == look(target.path(), tells.nanoseconds)
}

fn assert_arrives(root: &Path, tar: &[u8], cut: usize, tells: ArchiveCapabilities, what: &str) {
    let target = tempfile::tempdir().unwrap();
    unpack_into(target.path(), tar, cut, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_same(&look(root, tells.nanoseconds), &look(target.path(), tells.nanoseconds), what);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    #[ignore = "needs root"]
    fn root_random_trees_are_unpacked_unchanged(entries in entries(), cut in 1..6000_usize) {
        let gnu = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner"];
        let posix = |sparse: &'static [&'static str]| [&gnu[..], &["--format=posix"], sparse].concat();
        let few = ArchiveCapabilities { nanoseconds: false, xattrs: false, ..ALL };
        let ustar = ArchiveCapabilities { names: false, ..few };
        let text = ["tar", "--acls", "--xattrs", "--xattrs-include=user.*", "--xattrs-include=trusted.*", "--numeric-owner"];
        let producers: [(Vec<&str>, ArchiveCapabilities); 10] = [
            ([&text[..], &["--format=posix"]].concat(), ALL),
            (posix(&[]), ALL),
            (posix(&["--sparse", "--sparse-version=1.0"]), ALL),
            (posix(&["--sparse", "--sparse-version=0.1"]), ALL),
            (posix(&["--sparse", "--sparse-version=0.0"]), ALL),
            (vec!["tar", "--format=gnu", "--sparse", "--numeric-owner"], few),
            (vec!["tar", "--format=ustar", "--numeric-owner"], ustar),
            (vec!["bsdtar", "--format=pax", "--xattrs", "--numeric-owner"], ALL),
            (vec!["bsdtar", "--format=gnutar", "--numeric-owner"], few),
            (vec!["bsdtar", "--format=ustar", "--numeric-owner"], ustar),
        ];
        let mut arrived = 0;
        for (producer, tells) in producers {
            let tree = tempfile::tempdir().unwrap();
            make(tree.path(), &entries, tells);
            let tar = pack(tree.path(), &producer);
            if gives_back(producer[0], tree.path(), &tar, tells) {
                assert_arrives(tree.path(), &tar, cut, tells, &format!("{producer:?}"));
                arrived += 1;
            }
        }
        prop_assert!(arrived >= 3, "only {arrived} of 10 packers reproduce their input");
        let tree = tempfile::tempdir().unwrap();
        make(tree.path(), &entries, ALL);
        // `image pack` refuses an empty directory.
        if fs::read_dir(tree.path()).unwrap().next().is_some() {
            assert_arrives(tree.path(), &pack_ourselves(tree.path()), cut, ALL, "our own");
        }
        // The tar crate packs the second name of a file as another file.
        let single: Vec<_> = entries.into_iter().filter(|entry| !matches!(entry.thing, EntryContent::HardLink(_))).collect();
        let tree = tempfile::tempdir().unwrap();
        make(tree.path(), &single, few);
        assert_arrives(tree.path(), &pack_with_the_crate(tree.path()), cut, few, "the tar crate");
    }
}
