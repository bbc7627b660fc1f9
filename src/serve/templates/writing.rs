//! Templates become files: each whole or not at all, and one at a time.

use super::FOLDER;
use crate::steps::template::Template;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Names of files have 255 bytes at most.
const LONGEST_NAME: usize = 200;

/// Who has it changes files.
pub struct Writing {
    folder: PathBuf,
    turn: Arc<Mutex<()>>,
}

impl Writing {
    pub fn new(dir: &Path) -> Writing {
        Writing { folder: dir.join(FOLDER), turn: Arc::default() }
    }

    /// Until it is dropped nobody else changes anything.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Where a template of this name is kept.
    pub fn path(&self, template: &Template) -> PathBuf {
        let by_name = Some(&template.name).filter(|name| name.len() <= LONGEST_NAME);
        let name = by_name.or(template.uuid.as_ref()).unwrap_or(&template.name);
        self.folder.join(format!("{name}.yaml"))
    }
}

/// Writes the file beside its place and puts it there.
pub fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::Error::other("this is no path of a file"));
    };
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let new = folder.join(format!(".{}.new", name.display()));
    // Arguments may be secrets.
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    if let Ok(old) = fs::metadata(path) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    // The kernel's own times are too coarse to tell two versions of one length from each other.
    file.set_modified(SystemTime::now())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// Takes the file away.
pub fn remove(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
