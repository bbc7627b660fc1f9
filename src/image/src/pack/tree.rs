//! Packs a directory as a tar, depth first. The names in each directory are sorted by their bytes, so that the result
//! does not depend on the order in which the filesystem lists the names.

use super::seekable_zstd::FrameWriter;
use super::tar_member::{PackedKind, PackedMember};
use common::error::{Context, Error, Phase, Result};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tar::Builder;

struct TreeWalk<'a, W: Write> {
    root: &'a Path,
    device: u64,
    tar: Builder<FrameWriter<W>>,
    epoch: Option<i64>,
    /// First name of each file with several names (hard links), by device and inode number of the file.
    first_names: HashMap<(u64, u64), PathBuf>,
    files: u64,
}

/// Packs the directory, and returns the number of packed entries.
///
/// # Errors
/// Returns an error if a file cannot be read or is modified while it is packed, if another filesystem is mounted in the
/// directory, or if the image cannot be written.
pub(crate) fn pack_tree<W: Write>(
    root: &Path,
    frames: FrameWriter<W>,
    epoch: Option<i64>,
) -> Result<(u64, FrameWriter<W>)> {
    let metadata = fs::metadata(root).context(Phase::Image, || format!("stat {}", root.display()))?;
    let tar = Builder::new(frames);
    let mut walk = TreeWalk { root, device: metadata.dev(), tar, epoch, first_names: HashMap::new(), files: 0 };
    // Stack of paths. Names are pushed in reverse order, so that the first name is packed next.
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        if walk.add_entry(&path)? {
            let mut names = walk.list_names(&path)?;
            names.sort_by(|one, other| other.as_bytes().cmp(one.as_bytes()));
            todo.extend(names.into_iter().map(|name| path.join(name)));
        }
    }
    let frames = walk.tar.into_inner().context(Phase::Image, || "finish the tar".to_owned())?;
    Ok((walk.files, frames))
}

impl<W: Write> TreeWalk<'_, W> {
    fn list_names(&self, path: &Path) -> Result<Vec<OsString>> {
        let directory = self.root.join(path);
        let listed = fs::read_dir(&directory).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        listed.context(Phase::Image, || format!("list {}", directory.display()))
    }

    /// Packs one entry, and returns whether the entry is a directory.
    fn add_entry(&mut self, path: &Path) -> Result<bool> {
        let full = self.root.join(path);
        // The specified root may be a symlink, which is followed; symlinks below it are packed as symlinks.
        let look = if path.as_os_str().is_empty() { fs::metadata } else { fs::symlink_metadata };
        let metadata = look(&full).context(Phase::Image, || format!("stat {}", full.display()))?;
        if metadata.is_dir() && metadata.dev() != self.device {
            let why = "another filesystem is mounted at this path, but only files of one filesystem are packed; \
                       unmount that filesystem, or copy its contents";
            return Err(Error::refusal(Phase::Image, format!("{}: {why}", full.display())));
        }
        if metadata.file_type().is_socket() {
            tracing::warn!("{path} is a socket and is not packed", path = full.display());
            return Ok(false);
        }
        self.append_member(path, &full, &metadata).context(Phase::Image, || format!("pack {}", full.display()))?;
        self.files += 1;
        Ok(metadata.is_dir())
    }

    fn append_member(&mut self, path: &Path, full: &Path, metadata: &Metadata) -> std::io::Result<()> {
        let what = self.member_kind(path, full, metadata)?;
        // Members that are hard links do not have attributes: the attributes of the member with the first name apply.
        let xattrs = if let PackedKind::HardLink(_) = what { Vec::new() } else { sorted_xattrs(full)? };
        PackedMember { path: member_name(path, metadata.is_dir()), metadata, what, xattrs, epoch: self.epoch }
            .append_to(&mut self.tar)
    }

    fn member_kind(&mut self, path: &Path, full: &Path, metadata: &Metadata) -> std::io::Result<PackedKind> {
        let kind = metadata.file_type();
        if !kind.is_dir() && metadata.nlink() > 1 {
            let first = self.first_names.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.to_owned());
            if first != path {
                return Ok(PackedKind::HardLink(first.as_os_str().as_bytes().to_owned()));
            }
        }
        Ok(match kind {
            kind if kind.is_dir() => PackedKind::Directory,
            kind if kind.is_symlink() => PackedKind::Symlink(fs::read_link(full)?.into_os_string().into_vec()),
            kind if kind.is_char_device() => PackedKind::CharacterDevice,
            kind if kind.is_block_device() => PackedKind::BlockDevice,
            kind if kind.is_fifo() => PackedKind::Fifo,
            _ => PackedKind::File(File::open(full)?),
        })
    }
}

/// Returns the name of a member. Names of directories end with a slash.
fn member_name(path: &Path, is_directory: bool) -> Vec<u8> {
    let mut name = path.as_os_str().as_bytes().to_owned();
    if name.is_empty() {
        name.push(b'.');
    }
    if is_directory {
        name.push(b'/');
    }
    name
}

/// Returns the xattrs of a file, sorted by name, because filesystems list them in no particular order.
fn sorted_xattrs(full: &Path) -> std::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let listed = match xattr::list(full) {
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut names: Vec<OsString> = listed.collect();
    names.sort();
    let named = names.into_iter().map(|name| Ok((xattr::get(full, &name)?, name)));
    let there = named.filter_map(|pair| match pair {
        Ok((value, name)) => value.map(|value| Ok((name.into_vec(), value))),
        Err(error) => Some(Err(error)),
    });
    there.collect()
}
