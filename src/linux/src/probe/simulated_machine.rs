//! Simulated machine in a temporary directory for tests: sysfs, procfs and devices as files.

use super::sysfs::ProbeRoots;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

pub(super) struct FakeMachine {
    root: tempfile::TempDir,
}

impl FakeMachine {
    /// Creates a machine without disks and NICs.
    pub(super) fn new() -> FakeMachine {
        let tree = FakeMachine { root: tempfile::tempdir().unwrap() };
        tree.write("proc/cpuinfo", "");
        tree.write("proc/meminfo", "MemTotal: 524288 kB\n");
        tree.write("proc/self/mountinfo", "");
        tree.write("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
        for dir in ["sys/block", "sys/devices", "dev"] {
            fs::create_dir_all(tree.path(dir)).unwrap();
        }
        tree
    }

    pub(super) fn roots(&self) -> ProbeRoots {
        ProbeRoots { sys: self.path("sys"), proc: self.path("proc"), dev: self.path("dev") }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(super) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: impl AsRef<std::path::Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Adds a disk at a path below `sys/devices`, and a sparse file of that size as its device node. `device` is the
    /// target of the disk's `device` link, relative to the disk's directory.
    pub(super) fn disk(&self, place: &str, device: &str, size_bytes: u64) {
        let dir = format!("sys/devices/{place}");
        let name = place.rsplit('/').next().unwrap();
        self.write(&format!("{dir}/size"), format!("{}\n", size_bytes / 512));
        self.write(&format!("{dir}/dev"), "8:0\n");
        self.write(&format!("{dir}/ro"), "0\n");
        self.write(&format!("{dir}/removable"), "0\n");
        self.write(&format!("{dir}/queue/logical_block_size"), "512\n");
        self.write(&format!("{dir}/queue/rotational"), "1\n");
        self.link(&format!("{dir}/device"), device);
        self.link(&format!("sys/block/{name}"), format!("../devices/{place}"));
        fs::File::create(self.path(&format!("dev/{name}"))).unwrap().set_len(size_bytes).unwrap();
    }
}

/// Runs a tool. A missing tool makes the test fail, because a skipped test would go unnoticed.
pub(super) fn ran(tool: &str, args: &[&str]) {
    if let Err(error) = crate::process::ToolCommand::new(tool).args(args).run() {
        panic!("{error}");
    }
}

/// Writes the partition table of a sfdisk(8) script to a disk or image.
pub(super) fn sfdisk(disk: &std::path::Path, script: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), script).unwrap();
    // sfdisk reads scripts only from standard input.
    let line = "sfdisk -q --no-reread --no-tell-kernel \"$1\" <\"$2\"";
    ran("sh", &["-c", line, "sh", disk.to_str().unwrap(), file.path().to_str().unwrap()]);
}
