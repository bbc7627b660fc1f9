//! Test support: a target in which programs can run.

use super::NewRoot;
use linux::process::ToolCommand;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;
use testing::executables::write_executable;

/// Creates a target with busybox.
pub(crate) fn busybox() -> (TempDir, NewRoot) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for sub in ["bin", "lib", "lib64", "proc", "sys", "dev", "run", "mnt"] {
        fs::create_dir(root.join(sub)).unwrap();
    }
    let busybox = ToolCommand::new("sh").args(["-c", "command -v busybox"]).run().unwrap().stdout;
    let busybox = busybox.trim();
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let libraries = ToolCommand::new("ldd").arg(busybox).run().map(|out| out.stdout).unwrap_or_default();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(library, target).unwrap();
    }
    for applet in ["sh", "echo", "sleep", "mount", "cat", "ls", "test", "seq", "touch", "env"] {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let root = NewRoot::open(&root).unwrap();
    (dir, root)
}

/// Writes a shell script to the target.
pub(crate) fn script(root: &NewRoot, path: &str, script: &str) {
    let path = root.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_executable(&path, &format!("#!/bin/sh\n{script}\n"));
}
