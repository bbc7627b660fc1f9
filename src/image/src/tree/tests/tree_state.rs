//! Reads the state of a tree, to compare it with another tree.

use super::*;
use std::os::unix::fs::FileTypeExt;

/// Attributes and content of a file, from stat(2) and getxattr(2). `same_as` is the first path with the same inode, by
/// which hard links are compared.
#[derive(Debug, PartialEq)]
pub(crate) struct FileState {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) device: u64,
    pub(crate) size: u64,
    pub(crate) mtime: (i64, i64),
    pub(crate) links: u64,
    pub(crate) same_as: PathBuf,
    pub(crate) content: Option<Vec<u8>>,
    pub(crate) target: Option<PathBuf>,
    pub(crate) xattrs: BTreeMap<std::ffi::OsString, Vec<u8>>,
}

pub(crate) fn look(root: &Path, with_nanoseconds: bool) -> BTreeMap<PathBuf, FileState> {
    let mut todo = vec![PathBuf::new()];
    let mut paths = Vec::new();
    while let Some(path) = todo.pop() {
        if fs::symlink_metadata(root.join(&path)).unwrap().is_dir() {
            todo.extend(fs::read_dir(root.join(&path)).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        paths.push(path);
    }
    paths.sort();
    let mut first = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for path in paths {
        let full = root.join(&path);
        let metadata = fs::symlink_metadata(&full).unwrap();
        let xattrs = xattr::list(&full).unwrap();
        let has = FileState {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            device: metadata.rdev(),
            size: if metadata.is_dir() { 0 } else { metadata.size() },
            mtime: (metadata.mtime(), if with_nanoseconds { metadata.mtime_nsec() } else { 0 }),
            links: if metadata.is_dir() { 0 } else { metadata.nlink() },
            same_as: first.entry(metadata.ino()).or_insert(path.clone()).clone(),
            content: metadata.is_file().then(|| fs::read(&full).unwrap()),
            target: metadata.is_symlink().then(|| fs::read_link(&full).unwrap()),
            xattrs: xattrs.map(|name| (name.clone(), xattr::get(&full, &name).unwrap().unwrap())).collect(),
        };
        assert!(!metadata.file_type().is_socket());
        seen.insert(path, has);
    }
    seen
}

pub(crate) fn assert_same(one: &BTreeMap<PathBuf, FileState>, other: &BTreeMap<PathBuf, FileState>, what: &str) {
    let paths = |seen: &BTreeMap<PathBuf, FileState>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(one), paths(other), "{what}");
    for (path, was) in one {
        let is = &other[path];
        // The contents are not printed, because they are long.
        let short = |seen: &FileState| {
            format!(
                "{:?}",
                FileState {
                    content: None,
                    xattrs: seen.xattrs.clone(),
                    same_as: seen.same_as.clone(),
                    target: seen.target.clone(),
                    ..*seen
                }
            )
        };
        assert!(was == is, "{what}: {}: {} became {}", path.display(), short(was), short(is));
    }
}
