//! Unpacks members to a root. Nothing outside of the root may change.

use super::super::files_hidden_by_mounts::MountsBelow;
use super::*;
use crate::testing::{Tar, reader};
use crate::tree::members_of;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tempfile::TempDir;

/// Root, with a neighboring directory that must not be changed.
struct Bench {
    directory: TempDir,
    root: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(directory.path().join("outside/deep")).unwrap();
        fs::write(directory.path().join("outside/secret"), "secret").unwrap();
        fs::create_dir(&root).unwrap();
        Bench { directory, root }
    }

    fn outside(&self) -> String {
        self.directory.path().join("outside").to_str().unwrap().to_owned()
    }

    fn untar(&self, tar: Tar) -> io::Result<UnpackResult> {
        let mut counter = HiddenFileCounter::new(MountsBelow::default());
        let (members, root) = (members_of(reader(&tar.end(), 700)), UnpackRoot::open(&self.root, Vec::new())?);
        untar(members, &root, &mut counter, false, &DownloadState::default(), &StageClocks::start())
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }

    fn assert_outside_untouched(&self) {
        let names = |path: PathBuf| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.directory.path().to_owned()), ["outside", "root"]);
        assert_eq!(names(self.outside().into()), ["deep", "secret"]);
        assert_eq!(names(self.directory.path().join("outside/deep")).len(), 0);
        let secret = self.directory.path().join("outside/secret");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(fs::metadata(secret).unwrap().nlink(), 1);
    }
}

#[test]
fn no_member_is_created_outside_of_the_root() {
    type Attack = fn(&str) -> Tar;
    let attacks: [(&str, Attack); 12] = [
        ("..", |_| Tar::new().file("../escaped", b"x")),
        ("..", |_| Tar::new().file("a/../../escaped", b"x")),
        ("..", |_| Tar::new().directory("..")),
        ("..", |_| Tar::new().hard_link("mine", "../outside/secret")),
        ("hard link", |outside| Tar::new().hard_link("mine", &format!("{outside}/secret"))),
        ("hard link", |outside| Tar::new().symlink("out", outside).hard_link("mine", "out/secret")),
        ("", |outside| Tar::new().file(&format!("{outside}/escaped"), b"x")),
        ("", |outside| Tar::new().symlink("out", &format!("{outside}/secret")).file("out", b"x")),
        ("", |outside| {
            let link = Tar::new().symlink("out", &format!("{outside}/secret"));
            link.raw("out", b'5', b"", |header| header.set_mode(0o777))
        }),
        ("File exists", |outside| Tar::new().symlink("out", outside).file("out/escaped", b"x")),
        ("File exists", |_| Tar::new().symlink("out", "../outside").file("out/escaped", b"x")),
        ("", |_| Tar::new().symlink("out", "../../../..").file("out/escaped", b"x")),
    ];
    for (number, (says, attack)) in attacks.into_iter().enumerate() {
        let bench = Bench::new();
        let result = bench.untar(attack(&bench.outside()));
        bench.assert_outside_untouched();
        match result {
            Ok(_) => assert_eq!(says, "", "attack {number}"),
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "attack {number}: {error}"),
        }
    }
}

#[test]
fn links_to_absolute_paths_are_resolved_within_the_root() {
    let bench = Bench::new();
    // Absolute targets are resolved as in the installed system, whose `/` is the root of the burn.
    let tar = Tar::new().directory("usr/lib").symlink("lib", "/usr/lib").symlink("up", "../../usr");
    bench.untar(tar.file("lib/one", b"1").file("up/lib/two", b"2").file("/abs", b"3")).unwrap();
    assert_eq!([bench.read("usr/lib/one"), bench.read("usr/lib/two"), bench.read("abs")], ["1", "2", "3"]);
    bench.assert_outside_untouched();
}

#[test]
fn later_members_replace_earlier_ones_and_existing_files() {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.join("lost+found")).unwrap();
    fs::write(bench.root.join("was-there"), "old").unwrap();
    std::os::unix::fs::symlink("was-there", bench.root.join("was-link")).unwrap();
    let tar = Tar::new()
        .file("was-there", b"new")
        .file("was-link", b"now a file")
        .file("./twice", b"first, and longer")
        .file("twice", b"second")
        .directory("empty")
        .file("empty", b"file over directory")
        .file("name", b"file")
        .directory("name")
        .symlink("link", "twice")
        .directory("link")
        .directory("kept")
        .file("kept/child", b"c")
        .raw("kept", b'5', b"", |header| header.set_mode(0o711));
    assert_eq!(bench.untar(tar).unwrap().entries, 13);
    assert_eq!(bench.read("was-there"), "new");
    assert_eq!(bench.read("was-link"), "now a file");
    assert_eq!(bench.read("twice"), "second");
    assert_eq!(bench.read("empty"), "file over directory");
    assert_eq!(bench.read("kept/child"), "c");
    let mode = |path| fs::symlink_metadata(bench.root.join(path)).unwrap().permissions().mode();
    assert_eq!([mode("name"), mode("link"), mode("kept")], [0o040755, 0o040755, 0o040711]);
}

#[test]
fn directory_with_content_is_not_replaced() {
    let tar = Tar::new().file("a/b", b"x").file("a", b"y");
    let error = Bench::new().untar(tar).unwrap_err().to_string();
    assert_eq!(error, "a: a non-empty directory exists at this path");
}

#[test]
fn hard_links_share_one_file() {
    let bench = Bench::new();
    let tar = Tar::new().file("a", b"content").hard_link("d/b", "./a").hard_link("a", "a").hard_link("d/b", "a");
    bench.untar(tar).unwrap();
    assert_eq!(bench.read("d/b"), "content");
    assert_eq!(fs::metadata(bench.root.join("a")).unwrap().nlink(), 2);
    let error = Bench::new().untar(Tar::new().hard_link("b", "missing")).unwrap_err().to_string();
    assert!(error.starts_with("b: hard link to missing: No such file"), "{error}");
}

#[test]
fn directories_get_mode_and_mtime_after_their_content() {
    let bench = Bench::new();
    let shut = |header: &mut tar::Header| header.set_mode(0o500);
    let tar = Tar::new().raw("./", b'5', b"", |header| header.set_mode(0o750)).raw("a/", b'5', b"", shut);
    bench.untar(tar.raw("a/b", b'5', b"", shut).file("a/b/c", b"x").file("new/parent/file", b"x")).unwrap();
    for (path, mode) in [("", 0o040750), ("a", 0o040500), ("a/b", 0o040500)] {
        let metadata = fs::metadata(bench.root.join(path)).unwrap();
        assert_eq!((metadata.mode(), metadata.mtime()), (mode, 1_000_000_000), "{path}");
    }
    assert_eq!(fs::metadata(bench.root.join("new/parent")).unwrap().mode(), 0o040755);
    // The owner of the temporary directory must be able to remove it.
    for path in ["a", "a/b"] {
        fs::set_permissions(bench.root.join(path), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn directory_attributes_are_limited_in_memory() {
    let attributes = || MemberAttributes { mode: 0o755, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };
    let long = Path::new("").join("d/".repeat(2000));
    let mut directories = DirectoryAttributes::default();
    // Adding the same directory again takes no additional memory.
    for _ in 0..20_000 {
        directories.add_directory(long.clone(), attributes()).unwrap();
    }
    let error =
        (0..).find_map(|number| directories.add_directory(long.join(number.to_string()), attributes()).err()).unwrap();
    let count = directories.by_path.len();
    assert!((8000..8400).contains(&count), "{count}");
    let expected = format!("the attributes of the first {count} directories require more than 32 MiB of memory");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn failed_member_is_named() {
    for (tar, says) in [
        (Tar::new(), "the tar archive does not contain any members"),
        (Tar::new().file("a", b"x").file("a/b", b"y"), "a/b: Not a directory"),
        (Tar::new().symlink("loop", "loop").file("loop/b", b"y"), "loop/b: Too many levels of symbolic links"),
        (Tar::new().file("./", b"x"), "./: the tar archive is malformed"),
        (Tar::new().file(".", b"x"), ".: the path is the root itself, which is always a directory"),
        (Tar::new().raw("", b'L', &[b'x'; 300], |_| ()).file("short", b"y"), "xxx: File name too long"),
    ] {
        let error = Bench::new().untar(tar).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}
