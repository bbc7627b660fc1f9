//! What is or will be mounted below the root: which of the image's files nobody will see, and what the image could not
//! put where something of the disk stands.

use super::work::Work;
use crate::facts::Hidden;
use std::path::{Path, PathBuf};

/// So many conflicts are named; all are counted.
const NAMED: usize = 10;

/// Filesystems by their mount points, as the installed system sees them: `/var/lib`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beneath<'a> {
    /// Kept ones that will be mounted after the burn, over what the image has there.
    pub hidden: &'a [String],
    /// Kept ones that are mounted already: the image's files are added and win over files of the same name.
    pub merged: &'a [String],
    /// Were made by this run, and are mounted already: what the image brings there goes when it starts over.
    pub fresh: &'a [String],
}

/// Files of the image that did not get their place, because a directory of a kept filesystem stands there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conflicts {
    pub files: u64,
    /// The first of them.
    pub first: Vec<String>,
}

impl Conflicts {
    pub fn add(&mut self, path: &Path) {
        self.files += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("/{}", path.display()));
        }
    }
}

/// `/var/lib` as `var/lib`, the way members are named.
pub fn relative(mount_points: &[String]) -> Vec<PathBuf> {
    mount_points.iter().map(|path| Path::new(path).components().skip(1).collect()).collect()
}

/// Counts, over all parts of an image, its files below the mount points that will cover them, and the work that it makes.
pub struct Counter<'a> {
    pub work: Work,
    beneath: Beneath<'a>,
    hidden: Vec<(PathBuf, u64)>,
    merged: Vec<PathBuf>,
}

impl<'a> Counter<'a> {
    pub fn new(beneath: Beneath<'a>) -> Counter<'a> {
        let hidden = relative(beneath.hidden).into_iter().map(|path| (path, 0)).collect();
        Counter { work: Work::default(), beneath, hidden, merged: relative(beneath.merged) }
    }

    /// A member that is no directory. It counts once, below the deepest mount point.
    pub fn count(&mut self, path: &Path) {
        let depth = |mount_point: &Path| mount_point.components().count();
        let covers = |mount_point: &Path| path != mount_point && path.starts_with(mount_point);
        let covering = self.hidden.iter_mut().filter(|(mount_point, _)| covers(mount_point));
        let Some((mount_point, files)) = covering.max_by_key(|(mount_point, _)| depth(mount_point)) else { return };
        let deeper = |merged: &PathBuf| covers(merged) && depth(merged) > depth(mount_point);
        if !self.merged.iter().any(deeper) {
            *files += 1;
        }
    }

    /// One for each hidden mount point, in the order in which they were given.
    pub fn finish(self) -> Vec<Hidden> {
        let files = self.hidden.into_iter().map(|(_, files)| files);
        self.beneath.hidden.iter().zip(files).map(|(path, files)| Hidden { path: path.clone(), files }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_once_below_the_deepest_mount_point() {
        let hidden = ["/var/lib", "/var", "/srv", "/var/lib/"].map(str::to_owned);
        let merged = ["/var/lib/dpkg".to_owned()];
        let mut counter = Counter::new(Beneath { hidden: &hidden[..3], merged: &merged, fresh: &[] });
        for path in ["var/lib/a", "var/lib/b/c", "var/lib", "var/log/d", "var/lib/dpkg/status", "variable", "etc/e"] {
            counter.count(Path::new(path));
        }
        let counts: Vec<_> = counter.finish().into_iter().map(|hidden| (hidden.path, hidden.files)).collect();
        // `var/lib` itself is below `/var`: a file there would be hidden by that one.
        assert_eq!(counts, [("/var/lib".into(), 2), ("/var".into(), 2), ("/srv".into(), 0)]);
        assert_eq!(relative(&hidden[3..]), [Path::new("var/lib")]);
    }

    #[test]
    fn conflicts_are_all_counted_and_some_named() {
        let mut conflicts = Conflicts::default();
        (0..25).for_each(|number| conflicts.add(&Path::new("var/lib").join(number.to_string())));
        assert_eq!((conflicts.files, conflicts.first.len()), (25, NAMED));
        assert_eq!(conflicts.first[0], "/var/lib/0");
    }
}
