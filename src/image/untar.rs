//! From members to files below the root.

use super::attributes::{set_by_name, set_on_file};
use super::beneath::{Conflicts, Counter};
use super::copy::link_or_copy;
use super::members::{Attributes, Kind, Member, Members};
use super::place::{Root, inside};
use super::sparse::Map;
use nix::sys::stat::SFlag;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 256 * 1024;

/// What was unpacked.
#[derive(Debug, Default, PartialEq)]
pub struct Unpacked {
    pub entries: u64,
    pub tar_bytes: u64,
    pub conflicts: Conflicts,
}

/// Unpacks the stream to its end. Later members replace earlier ones, and what stood below the root before; only
/// directories of a kept filesystem stay as a conflict. Each member that is no directory is shown to `counter`.
///
/// # Errors
/// The stream's own; the archive is malformed, cut or empty; something cannot be written. The member is named.
pub fn untar(stream: impl Read, root: &Root, counter: &mut Counter) -> io::Result<Unpacked> {
    let mut unpacking = Unpacking {
        members: Members::new(stream),
        root,
        directories: BTreeMap::new(),
        buffer: vec![0; BUFFER_BYTES],
        entries: 0,
        counter,
        conflicts: Conflicts::default(),
    };
    unpacking.all()?;
    let Unpacking { members, entries, conflicts, .. } = unpacking;
    Ok(Unpacked { entries, tar_bytes: members.position(), conflicts })
}

struct Unpacking<'a, 'b, R> {
    members: Members<R>,
    root: &'a Root,
    /// Set at the end: a directory may forbid writing, and each file in it changes its mtime. Deepest last.
    directories: BTreeMap<PathBuf, Attributes>,
    buffer: Vec<u8>,
    entries: u64,
    counter: &'a mut Counter<'b>,
    conflicts: Conflicts,
}

impl<R: Read> Unpacking<'_, '_, R> {
    fn all(&mut self) -> io::Result<()> {
        while let Some(member) = self.members.next_member()? {
            let shown = String::from_utf8_lossy(&member.path).into_owned();
            self.one(member).map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))?;
            self.entries += 1;
        }
        if self.entries == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the tar has no members"));
        }
        self.finish_directories()
    }

    fn one(&mut self, member: Member) -> io::Result<()> {
        let Member { path, kind, attributes } = member;
        let path = inside(&path)?;
        if kind == Kind::Directory {
            if path != Path::new("") {
                self.root.place(&path)?.make_directory()?;
            }
            self.directories.insert(path, attributes);
            return Ok(());
        }
        let place = self.root.place(&path)?;
        if place.is_kept_directory()? {
            self.conflicts.add(&path);
            return Ok(());
        }
        self.counter.count(&path);
        self.directories.remove(&path);
        match kind {
            Kind::File { size } => {
                let file = place.make_file()?;
                self.copy(size, |bytes, _| (&file).write_all(bytes))?;
                set_on_file(&file, &attributes)
            }
            Kind::Sparse(map) => {
                let file = place.make_file()?;
                self.copy_pieces(&file, &map)?;
                set_on_file(&file, &attributes)
            }
            // Attributes are those of the file, which came before.
            Kind::HardLink(target) => {
                let named = |error: io::Error| {
                    let target = String::from_utf8_lossy(&target);
                    io::Error::new(error.kind(), format!("hard link to {target}: {error}"))
                };
                let source = inside(&target).and_then(|target| self.root.existing_place(&target)).map_err(named)?;
                // The file that it is another name of is a conflict already, and its content has gone by.
                if source.is_kept_directory().map_err(named)? {
                    self.conflicts.add(&path);
                    return Ok(());
                }
                link_or_copy(&source, &place).map_err(named)
            }
            Kind::Symlink(target) => {
                place.make_symlink(&target)?;
                set_by_name(&place, &attributes, true)
            }
            Kind::Fifo => {
                place.make_node(SFlag::S_IFIFO, 0, 0)?;
                set_by_name(&place, &attributes, false)
            }
            Kind::CharacterDevice { major, minor } => {
                place.make_node(SFlag::S_IFCHR, major, minor)?;
                set_by_name(&place, &attributes, false)
            }
            Kind::BlockDevice { major, minor } => {
                place.make_node(SFlag::S_IFBLK, major, minor)?;
                set_by_name(&place, &attributes, false)
            }
            Kind::Directory => Ok(()),
        }
    }

    /// Holes stay holes; a last one comes from the length.
    fn copy_pieces(&mut self, file: &File, map: &Map) -> io::Result<()> {
        for &(offset, length) in &map.segments {
            self.copy(length, |bytes, at| file.write_all_at(bytes, offset + at))?;
        }
        file.set_len(map.file_size).map_err(unwritten)
    }

    /// Hands over `size` bytes of the member's content in pieces, each with its distance from the first.
    fn copy(&mut self, size: u64, write: impl Fn(&[u8], u64) -> io::Result<()>) -> io::Result<()> {
        let mut done = 0;
        while done < size {
            let want = self.buffer.len().min(usize::try_from(size - done).unwrap_or(usize::MAX));
            let got = self.members.read(&mut self.buffer[..want])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            write(&self.buffer[..got], done).map_err(unwritten)?;
            done += got as u64;
        }
        Ok(())
    }

    fn finish_directories(&mut self) -> io::Result<()> {
        for (path, attributes) in self.directories.iter().rev() {
            let set = || {
                if path == Path::new("") {
                    return set_on_file(&self.root.itself()?, attributes);
                }
                match self.root.existing_place(path)?.open_directory()? {
                    Some(directory) => set_on_file(&directory, attributes),
                    // A later member replaced it under another name, through a symlinked parent.
                    None => Ok(()),
                }
            };
            set().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

fn unwritten(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("write: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::beneath::Beneath;
    use super::super::testing::Tar;
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use tempfile::TempDir;

    /// A root with a neighbour that must not be touched.
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

        fn untar(&self, tar: Tar) -> io::Result<Unpacked> {
            let mut counter = Counter::new(Beneath::default());
            untar(&tar.end()[..], &Root::open(&self.root, Vec::new())?, &mut counter)
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
    fn nothing_leads_outside() {
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
    fn a_link_to_what_is_outside_shows_only_what_is_inside() {
        let bench = Bench::new();
        // As the installed system will see it: `/` is the root.
        let tar = Tar::new().directory("usr/lib").symlink("lib", "/usr/lib").symlink("up", "../../usr");
        bench.untar(tar.file("lib/one", b"1").file("up/lib/two", b"2").file("/abs", b"3")).unwrap();
        assert_eq!([bench.read("usr/lib/one"), bench.read("usr/lib/two"), bench.read("abs")], ["1", "2", "3"]);
        bench.assert_outside_untouched();
    }

    #[test]
    fn later_members_replace_earlier_ones_and_what_was_there() {
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
    fn a_directory_with_content_is_not_replaced() {
        let tar = Tar::new().file("a/b", b"x").file("a", b"y");
        let error = Bench::new().untar(tar).unwrap_err().to_string();
        assert_eq!(error, "a: a directory with content is there already");
    }

    #[test]
    fn hard_links_share_one_file_and_one_to_itself_keeps_it() {
        let bench = Bench::new();
        let tar = Tar::new().file("a", b"content").hard_link("d/b", "./a").hard_link("a", "a").hard_link("d/b", "a");
        bench.untar(tar).unwrap();
        assert_eq!(bench.read("d/b"), "content");
        assert_eq!(fs::metadata(bench.root.join("a")).unwrap().nlink(), 2);
        let error = Bench::new().untar(Tar::new().hard_link("b", "missing")).unwrap_err().to_string();
        assert!(error.starts_with("b: hard link to missing: No such file"), "{error}");
    }

    #[test]
    fn directories_get_their_mode_and_mtime_when_all_is_in_them() {
        let bench = Bench::new();
        let shut = |header: &mut tar::Header| header.set_mode(0o500);
        let tar = Tar::new().raw("./", b'5', b"", |header| header.set_mode(0o750)).raw("a/", b'5', b"", shut);
        bench.untar(tar.raw("a/b", b'5', b"", shut).file("a/b/c", b"x").file("new/parent/file", b"x")).unwrap();
        for (path, mode) in [("", 0o040750), ("a", 0o040500), ("a/b", 0o040500)] {
            let metadata = fs::metadata(bench.root.join(path)).unwrap();
            assert_eq!((metadata.mode(), metadata.mtime()), (mode, 1_000_000_000), "{path}");
        }
        assert_eq!(fs::metadata(bench.root.join("new/parent")).unwrap().mode(), 0o040755);
        // So that the temporary directory can be removed by its owner.
        for path in ["a", "a/b"] {
            fs::set_permissions(bench.root.join(path), fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    #[test]
    fn the_member_that_fails_is_named() {
        for (tar, says) in [
            (Tar::new(), "the tar has no members"),
            (Tar::new().file("a", b"x").file("a/b", b"y"), "a/b: Not a directory"),
            (Tar::new().symlink("loop", "loop").file("loop/b", b"y"), "loop/b: Too many levels of symbolic links"),
            (Tar::new().file("./", b"x"), "./: the tar is malformed"),
            (Tar::new().file(".", b"x"), ".: only a directory can be the root itself"),
            (Tar::new().raw("", b'L', &[b'x'; 300], |_| ()).file("short", b"y"), "xxx: File name too long"),
        ] {
            let error = Bench::new().untar(tar).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}
