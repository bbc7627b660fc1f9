//! Unpacks members to files below the root.

use super::acl::has_default_acl;
use super::attributes::{creation_mode, set_by_name, set_xattrs};
use super::files_hidden_by_mounts::{FileConflicts, HiddenFileCounter};
use super::hard_link::{copy_source, try_hard_link};
use super::member_receiver::MemberReceiver;
use super::root_entry::RootEntry;
use super::sparse::SparseMap;
use super::tar_member::{MemberAttributes, MemberKind, TarMember};
use super::unpack_root::{UnpackRoot, relative_inside};
use super::whiteout::{LayerNames, Whiteout};
use super::writer_pool::{OpenedFile, WriterPool, with_path};
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

/// Maximum memory for the attributes of directories, in bytes. This memory is enough for 180,000 directories with paths
/// of 60 bytes.
const DIRECTORIES_BYTES: usize = 32 << 20;

/// Results of unpacking one part.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct UnpackResult {
    pub entries: u64,
    pub tar_bytes: u64,
    pub conflicts: FileConflicts,
}

/// Unpacks all members. Later members replace earlier ones and existing files. Directories of preserved filesystems are
/// not replaced; instead, a conflict is recorded. Each member that is not a directory is passed to `counter`. In a
/// layer of an OCI image (`layered`), whiteouts remove files of earlier layers. The number of bytes fetched so far
/// (`download`) limits the number of header blocks.
///
/// # Errors
/// Returns the error of `members`, or an error if the archive is malformed, truncated or empty, or a file cannot be
/// written. If a member cannot be unpacked, the error contains its path.
pub(crate) fn untar(
    members: MemberReceiver,
    root: &UnpackRoot,
    counter: &mut HiddenFileCounter,
    layered: bool,
    download: &DownloadState,
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
        download,
        conflicts: FileConflicts::default(),
    };
    let parsed = unpacking.unpack_all();
    let Unpacker { members, writers, entries, conflicts, counter, .. } = unpacking;
    writers.join_writers(parsed)?;
    counter.work.add_part(members.header_blocks(), download.bytes());
    Ok(UnpackResult { entries, tar_bytes: members.position(), conflicts })
}

struct Unpacker<'a, 'b> {
    members: MemberReceiver,
    root: &'a UnpackRoot,
    writers: WriterPool,
    directories: DirectoryAttributes,
    layer: Option<LayerNames>,
    entries: u64,
    /// Total size of the files that were copied in place of hard links, in bytes.
    copied: u64,
    counter: &'a mut HiddenFileCounter<'b>,
    download: &'a DownloadState,
    conflicts: FileConflicts,
}

/// Attributes of directories. The attributes are set after all members were unpacked, because the final mode may deny
/// writing, and each file created in a directory changes the directory's mtime.
#[derive(Default)]
struct DirectoryAttributes {
    /// Attributes by path. A directory precedes the directories in it.
    by_path: BTreeMap<PathBuf, MemberAttributes>,
    /// Approximate memory use of the attributes, in bytes.
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
        let text = format!("the attributes of the first {count} directories require more than {limit} MiB of memory");
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
        // An archive without members is an error, except for layers: empty layers are common.
        if self.entries == 0 && self.layer.is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the tar archive does not contain any members"));
        }
        self.finish_directories()
    }

    fn next_member(&mut self) -> io::Result<Option<TarMember>> {
        let (work, download, root) = (&self.counter.work, self.download, self.root);
        self.members.next_member(&|| work.left(download.bytes()).saturating_sub(root.worked()))
    }

    fn unpack_member(&mut self, path: &[u8], member: TarMember) -> io::Result<()> {
        let path = relative_inside(path)?;
        if self.layer.is_some()
            && let Some(whiteout) = Whiteout::parse(&path)?
        {
            return self.apply_whiteout(&path, &whiteout);
        }
        // Install marker of the machine from which the image was made. It is not unpacked, because it would look like
        // the marker of a complete installation.
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
        // The xattrs are set now, because later steps do not change them, and storing them until the end would require
        // much memory.
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
            // No attributes are set on a hard link: a hard link shares the attributes of its file, which an earlier
            // member has set.
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

    /// Creates a file with these data segments (offset and length). All other ranges are holes. `length` is the length
    /// of a sparse file, which may end with a hole; `None` for other files.
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
        // The free space is checked again after all writers have finished: a replaced file occupies space until the
        // writers have closed it.
        self.writers.wait_written()?;
        match insufficient_space(file, bytes)? {
            None => Ok(()),
            Some(free) => {
                let text = format!("the file is {bytes} bytes, but its filesystem has only {free} bytes free");
                Err(io::Error::new(io::ErrorKind::StorageFull, text))
            }
        }
    }

    fn make_hard_link(&mut self, path: &Path, place: &RootEntry, target: &[u8]) -> io::Result<()> {
        let source = self.root.resolve_existing(&relative_inside(target)?)?;
        // The target of the link was not unpacked, because a preserved directory exists at the target's path. The link
        // is therefore also recorded as a conflict.
        if source.is_kept_directory()? {
            self.conflicts.add_conflict(path);
            return Ok(());
        }
        if try_hard_link(&source, place)? {
            return Ok(());
        }
        // The content of the source must have been written completely before it is copied.
        self.writers.wait_written()?;
        copy_source(&source, place, |file, bytes| {
            self.check_copied_bytes(bytes)?;
            self.copied += bytes;
            self.check_free_space(file, bytes)
        })
    }

    /// Checks the total length of the tar and of copied files. Without this check, an image could fill the disk with
    /// many small members that each copy a large file.
    fn check_copied_bytes(&self, more: u64) -> io::Result<()> {
        let (longest, copied) = (self.root.longest_tar(), self.copied.saturating_add(more));
        if copied == 0 || self.members.position().saturating_add(copied) <= longest {
            return Ok(());
        }
        let text = format!(
            "the tar archive is longer than {longest} bytes, the limit for target filesystems of this size (copies \
            that replace hard links across filesystems are included)"
        );
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
            // The directory may no longer exist: a later member may have replaced it through another path, which
            // contains a symlink.
            if let Some(file) = self.root.open_directory(&path).map_err(|error| with_path(&path, &error))? {
                self.writers.finish_file(Arc::new(OpenedFile { file, path }), attributes, None)?;
            }
        }
        Ok(())
    }
}

/// Creates a device. Fails if the filesystem is mounted with `nodev`.
fn make_device(place: &RootEntry, kind: SFlag, numbers: (u32, u32), attributes: &MemberAttributes) -> io::Result<()> {
    if fstatfs(place.parent())?.flags().contains(FsFlags::ST_NODEV) {
        let text = "device nodes are not allowed at this path: the filesystem is mounted with nodev";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    place.make_node(kind, numbers.0, numbers.1)?;
    set_by_name(place, attributes, false)
}

#[cfg(test)]
mod tests;
