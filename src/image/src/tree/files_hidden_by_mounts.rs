//! Filesystems that are or will be mounted below the root. Counts the files of the image that these filesystems hide,
//! and lists files that could not be created because a directory of the same name exists.

use super::header_block_limit::HeaderBudget;
use model::install_report::HiddenFiles;
use std::path::{Path, PathBuf};

/// Maximum number of conflicts whose paths are listed. All conflicts are counted.
const MAXIMUM_LISTED_PATHS: usize = 10;

/// Mount points below the root, as paths in the installed system, such as `/var/lib`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountsBelow<'a> {
    /// Preserved filesystems that are mounted after the image was unpacked, and will then hide files of the image.
    pub hidden: &'a [String],
    /// Preserved filesystems that are mounted while the image is unpacked. Files of the image are added to these
    /// filesystems, and replace files of the same name.
    pub merged: &'a [String],
    /// Filesystems that this installation has created, and that are mounted while the image is unpacked. If unpacking
    /// starts over, files of the image are removed from these filesystems.
    pub fresh: &'a [String],
}

/// Files of the image that could not be created because a directory of a preserved filesystem has the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileConflicts {
    pub files: u64,
    /// Paths of the first files that could not be created.
    pub first: Vec<String>,
}

impl FileConflicts {
    pub(crate) fn add_conflict(&mut self, path: &Path) {
        self.files += 1;
        if self.first.len() < MAXIMUM_LISTED_PATHS {
            self.first.push(format!("/{}", path.display()));
        }
    }
}

/// Converts mount points such as `/var/lib` to the form of member paths, `var/lib`.
pub fn relative_paths(mount_points: &[String]) -> Vec<PathBuf> {
    mount_points.iter().map(|path| Path::new(path).components().skip(1).collect()).collect()
}

/// Counts the files that mount points will hide, and the header blocks, over all parts of an image.
pub struct HiddenFileCounter<'a> {
    pub work: HeaderBudget,
    beneath: MountsBelow<'a>,
    hidden: Vec<(PathBuf, u64)>,
    merged: Vec<PathBuf>,
}

impl<'a> HiddenFileCounter<'a> {
    pub fn new(beneath: MountsBelow<'a>) -> HiddenFileCounter<'a> {
        let hidden = relative_paths(beneath.hidden).into_iter().map(|path| (path, 0)).collect();
        HiddenFileCounter { work: HeaderBudget::default(), beneath, hidden, merged: relative_paths(beneath.merged) }
    }

    /// Counts a member that is not a directory. A member below several mount points is counted only for the deepest
    /// mount point.
    pub(crate) fn count_file(&mut self, path: &Path) {
        let depth = |mount_point: &Path| mount_point.components().count();
        let covers = |mount_point: &Path| path != mount_point && path.starts_with(mount_point);
        let covering = self.hidden.iter_mut().filter(|(mount_point, _)| covers(mount_point));
        let Some((mount_point, files)) = covering.max_by_key(|(mount_point, _)| depth(mount_point)) else { return };
        let deeper = |merged: &PathBuf| covers(merged) && depth(merged) > depth(mount_point);
        if !self.merged.iter().any(deeper) {
            *files += 1;
        }
    }

    /// Returns the number of hidden files for each mount point in [`MountsBelow::hidden`], in the order of that list.
    pub(crate) fn finish(self) -> Vec<HiddenFiles> {
        let files = self.hidden.into_iter().map(|(_, files)| files);
        self.beneath.hidden.iter().zip(files).map(|(path, files)| HiddenFiles { path: path.clone(), files }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_counted_once_below_the_deepest_mount_point() {
        let hidden = ["/var/lib", "/var", "/srv", "/var/lib/"].map(str::to_owned);
        let merged = ["/var/lib/dpkg".to_owned()];
        let mut counter = HiddenFileCounter::new(MountsBelow { hidden: &hidden[..3], merged: &merged, fresh: &[] });
        for path in ["var/lib/a", "var/lib/b/c", "var/lib", "var/log/d", "var/lib/dpkg/status", "variable", "etc/e"] {
            counter.count_file(Path::new(path));
        }
        let counts: Vec<_> = counter.finish().into_iter().map(|hidden| (hidden.path, hidden.files)).collect();
        // `var/lib` itself is below `/var`: a file of this name would be hidden by the filesystem at `/var`.
        assert_eq!(counts, [("/var/lib".into(), 2), ("/var".into(), 2), ("/srv".into(), 0)]);
        assert_eq!(relative_paths(&hidden[3..]), [Path::new("var/lib")]);
    }

    #[test]
    fn all_conflicts_are_counted_and_some_named() {
        let mut conflicts = FileConflicts::default();
        (0..25).for_each(|number| conflicts.add_conflict(&Path::new("var/lib").join(number.to_string())));
        assert_eq!((conflicts.files, conflicts.first.len()), (25, MAXIMUM_LISTED_PATHS));
        assert_eq!(conflicts.first[0], "/var/lib/0");
    }
}
