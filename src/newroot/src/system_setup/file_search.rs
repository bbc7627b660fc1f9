//! File search in the target by patterns. A `*` in a pattern matches any characters of one path component.

use crate::NewRoot;

/// Directories of programs, in the order of `PATH` in [`crate::image_installer`].
const PROGRAMS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns the files that match this pattern, sorted by name.
pub(crate) fn find_matching(root: &NewRoot, pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = match part.split_once('*') {
            None => found.into_iter().map(|dir| format!("{dir}/{part}")).collect(),
            Some((begin, end)) => found.iter().flat_map(|dir| matching_names(root, dir, begin, end)).collect(),
        };
    }
    found.retain(|path| is_file(root, path));
    found
}

fn matching_names(root: &NewRoot, dir: &str, begin: &str, end: &str) -> Vec<String> {
    let fits = |name: &String| {
        !name.starts_with('.')
            && name.len() >= begin.len() + end.len()
            && name.starts_with(begin)
            && name.ends_with(end)
    };
    let names = root.list_names(if dir.is_empty() { "/" } else { dir }).unwrap_or_default();
    names.into_iter().filter(fits).map(|name| format!("{dir}/{name}")).collect()
}

/// Returns the first file that matches one of these patterns.
pub(crate) fn find_first(root: &NewRoot, patterns: &[&str]) -> Option<String> {
    patterns.iter().find_map(|pattern| find_matching(root, pattern).into_iter().next())
}

/// Returns the path of the first of these programs that the target contains.
pub(crate) fn find_program(root: &NewRoot, names: &[&str]) -> Option<String> {
    let paths = names.iter().flat_map(|name| PROGRAMS.iter().map(move |dir| format!("{dir}/{name}")));
    paths.into_iter().find(|path| is_file(root, path))
}

pub(crate) fn is_file(root: &NewRoot, path: &str) -> bool {
    root.open_file(path).is_ok()
}

pub(crate) fn is_directory(root: &NewRoot, path: &str) -> bool {
    root.list_names(path).is_ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    /// Creates a target with these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, NewRoot) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = NewRoot::open(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn star_matches_within_one_path_component() {
        let files =
            ["boot/vmlinuz-6.1", "boot/vmlinuz-6.2", "boot/initrd", "usr/lib/modules/6.1/vmlinuz", "usr/bin/dracut"];
        let (dir, root) = tree(&files.map(|path| (path, "")));
        std::fs::create_dir(dir.path().join("boot/vmlinuz-dir")).unwrap();
        std::os::unix::fs::symlink("/etc/none", dir.path().join("boot/vmlinuz-dangling")).unwrap();
        for (pattern, found) in [
            ("/boot/vmlinuz-*", &["/boot/vmlinuz-6.1", "/boot/vmlinuz-6.2"][..]),
            ("/usr/lib/modules/*/vmlinuz", &["/usr/lib/modules/6.1/vmlinuz"]),
            ("/boot/initrd", &["/boot/initrd"]),
            ("/boot/*nitr*", &[]),
            ("/none/*", &[]),
            ("/boot/initrd/*", &[]),
        ] {
            assert_eq!(find_matching(&root, pattern), found, "{pattern}");
        }
        assert_eq!(find_first(&root, &["/none", "/boot/vmlinuz-*"]).as_deref(), Some("/boot/vmlinuz-6.1"));
        assert_eq!(find_program(&root, &["mkinitcpio", "dracut"]).as_deref(), Some("/usr/bin/dracut"));
        assert_eq!(find_program(&root, &["mkinitcpio"]), None);
    }
}
