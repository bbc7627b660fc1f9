//! Files in `/etc/metal`: the install marker, and the record of the adoption. Both are new files in the root
//! filesystem. Nothing is written outside of filesystems, so boot loaders and the metadata of arrays are not
//! affected.

use super::adoption_record::{AdoptionRecord, format_marker};
use super::refuse;
use common::bounded_read::read_whole;
use common::encoding::format_sha256;
use common::error::{Context, Phase, Result};
use linux::atomic_file::{remove_if_present, replace_file};
use linux::probe::proc_mounts::{MountEntry, parse_mounts};
use linux::safe_open::{PathRestriction, open_beneath};
use model::install_marker::{InstallMarker, PATH};
use model::inventory::MARKER_BYTES;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directory of the marker, relative to the root directory.
const DIRECTORY: &str = "etc/metal";
const RECORD: &str = "drophammer-adoption.json";
const TEMPORARY: &str = ".drophammer-adoption.new";
/// Mode of the files. Only root may read them, because they contain ids and serial numbers.
const SECRET_FILE_MODE: u32 = 0o600;
/// Free space that must be available, in bytes. A marker has a few kilobytes.
const ROOM_BYTES: u64 = 1 << 20;

/// Directory of the install marker in an installed system.
#[derive(Debug)]
pub(crate) struct MarkerStorage {
    root: PathBuf,
}

impl MarkerStorage {
    pub(crate) fn new(root: &Path) -> MarkerStorage {
        MarkerStorage { root: root.to_owned() }
    }

    fn directory(&self) -> PathBuf {
        self.root.join(DIRECTORY)
    }

    fn marker_path(&self) -> PathBuf {
        self.root.join(PATH.trim_start_matches('/'))
    }

    /// Returns the reasons why the marker cannot be written, or would not be found in the ramdisk. `mounts` is the
    /// content of /proc/self/mountinfo.
    pub(crate) fn find_obstacles(&self, mounts: &str) -> Vec<String> {
        let mounts = parse_mounts(mounts);
        let read_only = mounts.iter().rfind(|mount| mount.path == "/").filter(|mount| is_read_only(mount));
        let read_only = read_only.map(|_| "/ is mounted read-only, so the install marker cannot be written".to_owned());
        let mut obstacles: Vec<String> = read_only.into_iter().collect();
        obstacles.extend(["etc", DIRECTORY].into_iter().find_map(|path| self.explain_directory(path)));
        if obstacles.is_empty() {
            obstacles.extend(self.explain_lack_of_room());
        }
        for (path, meaning) in [
            (self.marker_path(), "the machine has an install marker: drophammer has installed or adopted it already"),
            (self.directory().join(RECORD), "an earlier adoption was interrupted: run `drophammer adopt --undo`"),
        ] {
            if fs::symlink_metadata(&path).is_ok() {
                obstacles.push(format!("{} exists: {meaning}", path.display()));
                break;
            }
        }
        obstacles
    }

    /// Returns the reason why the ramdisk would not find files in the directory; `None` if it would find them. Opens
    /// the path in the same way as the ramdisk.
    fn explain_directory(&self, path: &str) -> Option<String> {
        let root = match File::open(&self.root) {
            Ok(root) => root,
            Err(error) => return Some(format!("{}: {error}", self.root.display())),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let why = match open_beneath(&root, path, flags, PathRestriction::SameFilesystem) {
            Ok(_) => return None,
            Err(Errno::ENOENT) if path == DIRECTORY => return None,
            Err(Errno::EXDEV) => "is on a filesystem other than that of /",
            Err(Errno::ELOOP) => "is a symlink, or below one",
            Err(Errno::ENOTDIR) => "is not a directory",
            Err(error) => error.desc(),
        };
        Some(format!("/{path} {why}, so an install marker there would not be found"))
    }

    fn explain_lack_of_room(&self) -> Option<String> {
        let space = match nix::sys::statvfs::statvfs(&self.root) {
            Ok(space) => space,
            Err(error) => return Some(format!("/: cannot read the free space: {error}")),
        };
        let free = space.blocks_available().saturating_mul(space.fragment_size());
        let too_small = format!("/ has {free} bytes of free space, but {ROOM_BYTES} bytes are required");
        (free < ROOM_BYTES).then_some(too_small)
    }

    /// Writes the record of the adoption first, and then the marker. If the command is interrupted, `--undo` finds the
    /// record.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. No marker exists then.
    pub(crate) fn write(&self, record: &mut AdoptionRecord, marker: &InstallMarker) -> Result<()> {
        let what = || format!("write {PATH}");
        let created = DirBuilder::new().mode(0o755).create(self.directory());
        record.created_directory = match created {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error).context(Phase::Settings, what),
        };
        let text = format_marker(marker)?;
        let written = self
            .update_record(record)
            .and_then(|()| self.replace(&self.marker_path(), text.as_bytes()).context(Phase::Settings, what));
        written.or_else(|error| self.remove(record).and(Err(error)))
    }

    /// Writes the record of the adoption.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn update_record(&self, record: &AdoptionRecord) -> Result<()> {
        let path = self.directory().join(RECORD);
        self.replace(&path, record.to_text()?.as_bytes())
            .context(Phase::Settings, || format!("write {}", path.display()))
    }

    fn replace(&self, path: &Path, content: &[u8]) -> std::io::Result<()> {
        let temporary = self.directory().join(TEMPORARY);
        replace_file(path, &temporary, content, Permissions::from_mode(SECRET_FILE_MODE))?;
        File::open(self.directory())?.sync_all()
    }

    /// Reads the record of an adoption.
    ///
    /// # Errors
    /// Refuses if the machine has no record, and fails if the record cannot be parsed.
    pub(crate) fn read_record(&self) -> Result<AdoptionRecord> {
        let path = self.directory().join(RECORD);
        let what = || format!("read {}", path.display());
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let why = "so `drophammer adopt` has not adopted this machine; nothing was removed";
                return Err(refuse(format!("{} does not exist, {why}", path.display())));
            }
            read => read.context(Phase::Settings, what)?,
        };
        serde_json::from_str(&text).context(Phase::Settings, what)
    }

    /// Checks that the marker is the recorded one, or is absent.
    ///
    /// # Errors
    /// Refuses if the machine has another marker.
    pub(crate) fn check_marker(&self, record: &AdoptionRecord) -> Result<()> {
        let path = self.marker_path();
        let what = || format!("read {}", path.display());
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.context(Phase::Settings, what)?,
        };
        let content = read_whole(file, MARKER_BYTES as u64).context(Phase::Settings, what)?;
        match content.is_some_and(|content| format_sha256(content) == record.marker_digest) {
            true => Ok(()),
            false => Err(refuse(format!(
                "{PATH} is not the install marker that `drophammer adopt` has written, for example because the machine was reinstalled \
                 since; nothing was removed"
            ))),
        }
    }

    /// Removes the marker and the record. Also removes the directory if the adoption has created it and it is empty.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub(crate) fn remove(&self, record: &AdoptionRecord) -> Result<()> {
        for path in [self.marker_path(), self.directory().join(RECORD)] {
            remove_if_present(&path).context(Phase::Settings, || format!("remove {}", path.display()))?;
        }
        if record.created_directory {
            // The directory remains if it contains files of other programs.
            drop(fs::remove_dir(self.directory()));
        }
        let parent = self.root.join("etc");
        File::open(&parent).and_then(|parent| parent.sync_all()).context(Phase::Settings, || "sync /etc")
    }
}

fn is_read_only(mount: &MountEntry) -> bool {
    mount.options.iter().any(|option| option == "ro")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const WRITABLE: &str = "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n";

    fn prepare_root() -> (tempfile::TempDir, MarkerStorage) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        let storage = MarkerStorage::new(dir.path());
        (dir, storage)
    }

    fn list_files(root: &Path) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn adopted() -> (InstallMarker, AdoptionRecord) {
        let marker = InstallMarker { machine: "m-1".into(), allocation: "a-1".into(), ..InstallMarker::default() };
        let marker_digest = format_sha256(format_marker(&marker).unwrap());
        (marker, AdoptionRecord { marker_digest, ..AdoptionRecord::default() })
    }

    #[test]
    fn files_are_written_for_root_only_and_removed_completely() {
        let (dir, storage) = prepare_root();
        assert_eq!(storage.find_obstacles(WRITABLE), Vec::<String>::new());
        let (marker, mut record) = adopted();
        storage.write(&mut record, &marker).unwrap();
        assert!(record.created_directory);
        let metal = dir.path().join("etc/metal");
        assert_eq!(list_files(&metal), ["drophammer-adoption.json", "drophammer.json"].map(|name| metal.join(name)));
        for file in list_files(&metal) {
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
        }
        let text = fs::read_to_string(metal.join("drophammer.json")).unwrap();
        assert_eq!(serde_json::from_str::<InstallMarker>(&text).unwrap(), marker);
        assert!(storage.find_obstacles(WRITABLE)[0].contains("the machine has an install marker"));
        assert_eq!(storage.read_record().unwrap(), record);
        storage.check_marker(&record).unwrap();
        storage.remove(&record).unwrap();
        assert!(list_files(&dir.path().join("etc")).is_empty());
    }

    #[test]
    fn files_of_other_programs_remain() {
        let (dir, storage) = prepare_root();
        let metal = dir.path().join("etc/metal");
        fs::create_dir(&metal).unwrap();
        fs::write(metal.join("install.yaml"), "other").unwrap();
        let (marker, mut record) = adopted();
        storage.write(&mut record, &marker).unwrap();
        assert!(!record.created_directory);
        storage.remove(&record).unwrap();
        assert_eq!(list_files(&metal), [metal.join("install.yaml")]);
        fs::remove_file(metal.join("install.yaml")).unwrap();
        storage.write(&mut record, &marker).unwrap();
        storage.remove(&record).unwrap();
        assert!(metal.is_dir(), "the empty directory existed before");
    }

    #[test]
    fn another_marker_is_not_removed() {
        let (dir, storage) = prepare_root();
        let error = storage.read_record().unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("has not adopted this machine"), "{error}");
        let (marker, mut record) = adopted();
        storage.write(&mut record, &marker).unwrap();
        let path = dir.path().join("etc/metal/drophammer.json");
        fs::write(&path, "{}").unwrap();
        let error = storage.check_marker(&record).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("nothing was removed"), "{error}");
        fs::remove_file(&path).unwrap();
        storage.check_marker(&record).unwrap();
    }

    #[test]
    fn places_where_the_ramdisk_would_not_find_the_marker_are_refused() {
        let (dir, storage) = prepare_root();
        let read_only = "1 0 8:2 / / ro,relatime - ext4 /dev/sda2 ro\n";
        assert!(storage.find_obstacles(read_only)[0].contains("mounted read-only"));
        let metal = dir.path().join("etc/metal");
        fs::write(&metal, "a file").unwrap();
        assert!(storage.find_obstacles(WRITABLE)[0].contains("/etc/metal is not a directory"));
        fs::remove_file(&metal).unwrap();
        symlink("/srv", &metal).unwrap();
        assert!(storage.find_obstacles(WRITABLE)[0].contains("/etc/metal is a symlink"));
        fs::remove_file(&metal).unwrap();
        fs::remove_dir(dir.path().join("etc")).unwrap();
        symlink("srv", dir.path().join("etc")).unwrap();
        assert!(storage.find_obstacles(WRITABLE)[0].contains("/etc is a symlink"));
    }

    #[test]
    fn an_interrupted_adoption_is_reported() {
        let (dir, storage) = prepare_root();
        let (marker, mut record) = adopted();
        storage.write(&mut record, &marker).unwrap();
        fs::remove_file(dir.path().join("etc/metal/drophammer.json")).unwrap();
        assert!(storage.find_obstacles(WRITABLE)[0].contains("was interrupted"));
    }

    /// If the filesystem has no space for the record, no file remains.
    #[test]
    #[ignore = "needs root and loop devices"]
    fn root_a_full_filesystem_gets_no_marker() {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("mnt");
        fs::create_dir(&point).unwrap();
        let options = Some("size=64k");
        nix::mount::mount(Some("none"), &point, Some("tmpfs"), nix::mount::MsFlags::empty(), options).unwrap();
        fs::create_dir(point.join("etc")).unwrap();
        let storage = MarkerStorage::new(&point);
        let obstacles = storage.find_obstacles(WRITABLE);
        fs::write(point.join("filler"), vec![1; 48 << 10]).unwrap();
        let (mut marker, mut record) = adopted();
        marker.image = "x".repeat(64 << 10);
        let result = storage.write(&mut record, &marker);
        let left = list_files(&point.join("etc"));
        nix::mount::umount(&point).unwrap();
        assert!(obstacles[0].contains("bytes of free space"), "{obstacles:?}");
        assert!(result.is_err() && left.is_empty(), "{result:?} {left:?}");
    }
}
