//! Files that the operator adds to an installed system.

use super::NewRoot;
use common::error::{Context, Phase, Result};
use operations::InjectedFile;
use std::io;

/// Writes or removes each of the files in the target, in order. Symlinks are resolved within the target.
///
/// # Errors
/// Returns an error if a file cannot be written, or its owner does not exist in the target. The remaining files are
/// then not written.
pub fn inject_files(root: &NewRoot, files: &[InjectedFile]) -> Result<()> {
    for file in files {
        let Some(content) = &file.content else {
            root.remove(&file.path)?;
            continue;
        };
        let why = || format!("write {file} to the target", file = file.path);
        let user = resolve_id(root, "/etc/passwd", file.owner.as_deref()).context(Phase::Target, why)?;
        let group = resolve_id(root, "/etc/group", file.group.as_deref()).context(Phase::Target, why)?;
        root.write_file(&file.path, file.mode, content)?;
        if (user, group) != (0, 0) {
            root.change_owner(&file.path, (user, group), file.mode)?;
        }
    }
    Ok(())
}

/// Returns the ID of a user or group that is specified as a number, or as a name in the target's passwd(5) or group(5).
fn resolve_id(root: &NewRoot, list: &str, wanted: Option<&str>) -> io::Result<u32> {
    let Some(wanted) = wanted else { return Ok(0) };
    if let Ok(number) = wanted.parse() {
        return Ok(number);
    }
    let known = root.read_text(list)?;
    let mut fields = known.lines().map(|line| line.split(':'));
    let found = fields.find_map(|mut fields| (fields.next() == Some(wanted)).then(|| fields.nth(1)?.parse().ok())?);
    found.ok_or_else(|| io::Error::other(format!("{list} does not contain {wanted}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn file(path: &str, content: Option<&[u8]>, owner: Option<&str>) -> InjectedFile {
        let content = content.map(<[u8]>::to_vec);
        InjectedFile { path: path.into(), content, mode: 0o640, owner: owner.map(str::to_owned), group: None }
    }

    #[test]
    fn injected_files_change_only_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("system"), dir.path().join("outside"));
        fs::create_dir_all(inside.join("etc")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(inside.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/:/bin/false\n").unwrap();
        fs::write(inside.join("etc/old"), "old").unwrap();
        symlink(&outside, inside.join("way-out")).unwrap();
        let root = NewRoot::open(&inside).unwrap();
        let told =
            [file("/etc/deep/new", Some(b"new"), None), file("/etc/old", None, None), file("/etc/none", None, None)];
        inject_files(&root, &told).unwrap();
        assert_eq!(fs::read(inside.join("etc/deep/new")).unwrap(), b"new");
        assert_eq!(fs::metadata(inside.join("etc/deep/new")).unwrap().mode() & 0o7777, 0o640);
        assert!(!inside.join("etc/old").exists());
        let _ = inject_files(&root, &[file("/way-out/x", Some(b"x"), None)]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(resolve_id(&root, "/etc/passwd", Some("web")).unwrap(), 33);
        assert_eq!(resolve_id(&root, "/etc/passwd", Some("7")).unwrap(), 7);
        let error = inject_files(&root, &[file("/etc/x", Some(b""), Some("nobody-here"))]).unwrap_err().to_string();
        assert!(error.contains("does not contain nobody-here") && !inside.join("etc/x").exists(), "{error}");
    }
}
