//! Unpacking members to files below the root.

use super::acl::has_default_acl;
use super::attributes::{creation_mode, set_by_name, set_xattrs};
use super::dirfd::RootEntry;
use super::hard_link::{copy_source, try_hard_link};
use super::member::{MemberAttributes, MemberKind, TarMember};
use super::mounts::{FileConflicts, HiddenFileCounter};
use super::root::{UnpackRoot, relative_inside};
use super::sparse::SparseMap;
use super::tar_client::MemberReceiver;
use super::whiteout::{LayerNames, Whiteout};
use super::writers::{OpenedFile, WriterPool, with_path};
use crate::pipeline::{DownloadState, StageClocks, insufficient_space};
use model::install_marker;
use nix::sys::stat::SFlag;
use nix::sys::statfs::fstatfs;
use nix::sys::statvfs::FsFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum memory for directories, in bytes: enough for 180,000 with paths of 60 bytes.
const DIRECTORIES_BYTES: usize = 32 << 20;

/// Results of unpacking one part.
#[derive(Debug, Default, PartialEq)]
pub struct UnpackResult {
    pub entries: u64,
    pub tar_bytes: u64,
    pub conflicts: FileConflicts,
}

/// Unpacks all members. Later members replace earlier ones and existing files; only a directory of a preserved
/// filesystem is not replaced and counts as a conflict. Each member that is not a directory is passed to `counter`. In
/// a layer of an OCI image (`layered`), whiteouts remove files of earlier layers. `told` is the state of the download.
///
/// # Errors
/// Returns the error of the member receiver, or an error if the archive is malformed, truncated or empty, or a file
/// cannot be written. The error names the member.
pub fn untar(
    members: MemberReceiver,
    root: &UnpackRoot,
    counter: &mut HiddenFileCounter,
    layered: bool,
    told: &DownloadState,
    stages: &StageClocks,
) -> io::Result<UnpackResult> {
    let writers = WriterPool::start(members.clock(), stages);
    let mut unpacking = Unpacker {
        members,
        root,
        writers,
        directories: DirectoryAttributes::default(),
        layer: layered.then(LayerNames::default),
        entries: 0,
        copied: 0,
        counter,
        told,
        conflicts: FileConflicts::default(),
    };
    let parsed = unpacking.unpack_all();
    let Unpacker { members, writers, entries, conflicts, counter, .. } = unpacking;
    writers.join_writers(parsed)?;
    counter.work.add_part(members.header_blocks(), told.bytes());
    Ok(UnpackResult { entries, tar_bytes: members.position(), conflicts })
}

struct Unpacker<'a, 'b> {
    members: MemberReceiver,
    root: &'a UnpackRoot,
    writers: WriterPool,
    directories: DirectoryAttributes,
    layer: Option<LayerNames>,
    entries: u64,
    /// Bytes of hard links that became copies.
    copied: u64,
    counter: &'a mut HiddenFileCounter<'b>,
    told: &'a DownloadState,
    conflicts: FileConflicts,
}

/// Attributes of directories, which are set at the end: a directory may deny writing, and each file created in it
/// changes its mtime.
#[derive(Default)]
struct DirectoryAttributes {
    /// Attributes by path, the deepest last.
    by_path: BTreeMap<PathBuf, MemberAttributes>,
    /// Approximate memory use, in bytes.
    bytes: usize,
}

impl DirectoryAttributes {
    fn add_directory(&mut self, path: PathBuf, attributes: MemberAttributes) -> io::Result<()> {
        let bytes = path.as_os_str().len() + attributes.memory_bytes() + 128;
        if self.by_path.insert(path, attributes).is_none() {
            self.bytes += bytes;
        }
        if self.bytes <= DIRECTORIES_BYTES {
            return Ok(());
        }
        let (count, limit) = (self.by_path.len(), DIRECTORIES_BYTES >> 20);
        let text = format!("the attributes of the {count} directories so far take more than {limit} MiB of memory");
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

impl Unpacker<'_, '_> {
    fn unpack_all(&mut self) -> io::Result<()> {
        self.members.set_limit(self.root.longest_tar());
        while let Some(mut member) = self.next_member()? {
            let path = std::mem::take(&mut member.path);
            self.unpack_member(&path, member).map_err(|error| {
                let shown = String::from_utf8_lossy(&path);
                io::Error::new(error.kind(), format!("{shown}: {error}"))
            })?;
            self.entries += 1;
        }
        // Layers without members are common.
        if self.entries == 0 && self.layer.is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the tar contains no members"));
        }
        self.finish_directories()
    }

    fn next_member(&mut self) -> io::Result<Option<TarMember>> {
        let (work, told, root) = (&self.counter.work, self.told, self.root);
        self.members.next_member(&|| work.left(told.bytes()).saturating_sub(root.worked()))
    }

    fn unpack_member(&mut self, path: &[u8], member: TarMember) -> io::Result<()> {
        let path = relative_inside(path)?;
        if self.layer.is_some()
            && let Some(whiteout) = Whiteout::parse(&path)?
        {
            return self.apply_whiteout(&path, &whiteout);
        }
        // The install marker of the machine that the image was made of: until it was removed, it would be taken for an
        // installation.
        if path == Path::new(install_marker::PATH.trim_start_matches('/')) && member.kind != MemberKind::Directory {
            return Ok(());
        }
        if member.kind == MemberKind::Directory && path == Path::new("") {
            return self.make_directory(path, None, member.attributes);
        }
        let root = self.root;
        let place = root.resolve_entry(&path)?;
        self.members.set_limit(root.longest_tar());
        self.check_copied_bytes(0)?;
        if let Some(layer) = &mut self.layer {
            layer.record_name(&place)?;
            place.record_created(member.kind == MemberKind::Directory)?;
        }
        if member.kind == MemberKind::Directory {
            return self.make_directory(path, Some(place), member.attributes);
        }
        if place.is_kept_directory()? {
            self.conflicts.add_conflict(&path);
            return Ok(());
        }
        if let Some(layer) = &self.layer {
            layer.remove_directory_at(&place)?;
        }
        self.counter.count_file(&path);
        self.make_member(path, &place, member)
    }

    fn make_directory(
        &mut self,
        path: PathBuf,
        place: Option<RootEntry>,
        mut attributes: MemberAttributes,
    ) -> io::Result<()> {
        if let Some(place) = place {
            place.make_directory(creation_mode(&attributes))?;
        }
        // Set xattrs now: nothing undoes them, and keeping them would take much memory.
        if !attributes.xattrs.is_empty()
            && let Some(directory) = self.root.open_directory(&path)?
        {
            set_xattrs(&directory, &attributes)?;
            if has_default_acl(&attributes) {
                self.root.clear_cache();
            }
            attributes.xattrs = Vec::new();
        }
        self.directories.add_directory(path, attributes)
    }

    /// Creates a member that is not a directory.
    fn make_member(&mut self, path: PathBuf, place: &RootEntry, member: TarMember) -> io::Result<()> {
        let TarMember { kind, attributes, .. } = member;
        match kind {
            MemberKind::File { size } => self.write_file(path, place, &[(0, size)], attributes, None),
            MemberKind::Sparse(SparseMap { segments, file_size }) => {
                self.write_file(path, place, &segments, attributes, Some(file_size))
            }
            // The attributes are those of the file, which came before.
            MemberKind::HardLink(target) => self.make_hard_link(&path, place, &target).map_err(|error| {
                let target = String::from_utf8_lossy(&target);
                io::Error::new(error.kind(), format!("hard link to {target}: {error}"))
            }),
            MemberKind::Symlink(target) => {
                place.make_symlink(&target)?;
                set_by_name(place, &attributes, true)
            }
            MemberKind::Fifo => {
                place.make_node(SFlag::S_IFIFO, 0, 0)?;
                set_by_name(place, &attributes, false)
            }
            MemberKind::CharacterDevice { major, minor } => {
                make_device(place, SFlag::S_IFCHR, (major, minor), &attributes)
            }
            MemberKind::BlockDevice { major, minor } => make_device(place, SFlag::S_IFBLK, (major, minor), &attributes),
            MemberKind::Directory => Ok(()),
        }
    }

    /// Creates a file from these pieces (offset and length). Holes remain holes; a hole at the end results from the
    /// length.
    fn write_file(
        &mut self,
        path: PathBuf,
        place: &RootEntry,
        pieces: &[(u64, u64)],
        attributes: MemberAttributes,
        length: Option<u64>,
    ) -> io::Result<()> {
        let made = Arc::new(OpenedFile { file: place.make_file(creation_mode(&attributes))?, path });
        self.check_free_space(&made.file, pieces.iter().map(|(_, bytes)| bytes).sum())?;
        for &(offset, bytes) in pieces {
            let mut done = 0;
            while done < bytes {
                let chunk = self.members.next_chunk(bytes - done)?;
                let at = offset + done;
                done += chunk.len() as u64;
                self.writers.write_chunk(&made, at, chunk)?;
            }
        }
        self.writers.finish_file(made, attributes, length)
    }

    fn check_free_space(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        if insufficient_space(file, bytes)?.is_none() {
            return Ok(());
        }
        // Replaced files occupy their space as long as a writer has them open.
        self.writers.wait_written()?;
        match insufficient_space(file, bytes)? {
            None => Ok(()),
            Some(free) => {
                let text = format!("it has {bytes} bytes, but its filesystem has only {free} bytes free");
                Err(io::Error::new(io::ErrorKind::StorageFull, text))
            }
        }
    }

    fn make_hard_link(&mut self, path: &Path, place: &RootEntry, target: &[u8]) -> io::Result<()> {
        let source = self.root.resolve_existing(&relative_inside(target)?)?;
        // The file that it links to is a conflict already, and its content has passed.
        if source.is_kept_directory()? {
            self.conflicts.add_conflict(path);
            return Ok(());
        }
        if try_hard_link(&source, place)? {
            return Ok(());
        }
        // The source of a copy must be complete.
        self.writers.wait_written()?;
        copy_source(&source, place, |file, bytes| {
            self.check_copied_bytes(bytes)?;
            self.copied += bytes;
            self.check_free_space(file, bytes)
        })
    }

    /// Checks the total of tar and copies: a small member that copies a large file again and again is as much a bomb as
    /// a long tar.
    fn check_copied_bytes(&self, more: u64) -> io::Result<()> {
        let (longest, copied) = (self.root.longest_tar(), self.copied.saturating_add(more));
        if copied == 0 || self.members.position().saturating_add(copied) <= longest {
            return Ok(());
        }
        let text = "the tar, with copies of files in place of hard links between filesystems, is longer than";
        let text = format!("{text} {longest} bytes, twice the size of the target filesystems");
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    fn apply_whiteout(&mut self, path: &Path, whiteout: &Whiteout) -> io::Result<()> {
        if let Some(layer) = &self.layer
            && !layer.apply(self.root, path, whiteout)?
        {
            self.conflicts.add_conflict(path);
        }
        Ok(())
    }

    fn finish_directories(&mut self) -> io::Result<()> {
        while let Some((path, attributes)) = self.directories.by_path.pop_last() {
            // A later member may have replaced it under another name, through a symlinked parent.
            if let Some(file) = self.root.open_directory(&path).map_err(|error| with_path(&path, &error))? {
                self.writers.finish_file(Arc::new(OpenedFile { file, path }), attributes, None)?;
            }
        }
        Ok(())
    }
}

/// Creates a device, unless the layout mounts the filesystem with `nodev`.
fn make_device(place: &RootEntry, kind: SFlag, numbers: (u32, u32), attributes: &MemberAttributes) -> io::Result<()> {
    if fstatfs(place.parent())?.flags().contains(FsFlags::ST_NODEV) {
        let text = "devices are not allowed here: the filesystem is mounted with nodev";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    place.make_node(kind, numbers.0, numbers.1)?;
    set_by_name(place, attributes, false)
}

#[cfg(test)]
mod tests {
    use super::super::mounts::MountsBelow;
    use super::*;
    use crate::testing::{Tar, reader};
    use crate::tree::members_of;
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
        assert_eq!(error, "a: a directory with content exists there");
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
    fn directories_take_so_much_memory_and_no_more() {
        let attributes = || MemberAttributes { mode: 0o755, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };
        let long = Path::new("").join("d/".repeat(2000));
        let mut directories = DirectoryAttributes::default();
        // The same one again takes no more.
        for _ in 0..20_000 {
            directories.add_directory(long.clone(), attributes()).unwrap();
        }
        let error = (0..)
            .find_map(|number| directories.add_directory(long.join(number.to_string()), attributes()).err())
            .unwrap();
        let count = directories.by_path.len();
        assert!((8000..8400).contains(&count), "{count}");
        let expected = format!("the attributes of the {count} directories so far take more than 32 MiB of memory");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_member_that_fails_is_named() {
        for (tar, says) in [
            (Tar::new(), "the tar contains no members"),
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
