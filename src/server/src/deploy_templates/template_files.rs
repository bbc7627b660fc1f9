//! Files of templates: written atomically, one at a time.

use super::FOLDER;
use model::deploy_steps::template::DeployTemplate;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Longest template name used in a file name. File names have at most 255 bytes.
const LONGEST_NAME: usize = 200;

/// Folder of templates, and the lock for changing files.
pub struct TemplateWriter {
    folder: PathBuf,
    turn: Arc<Mutex<()>>,
}

impl TemplateWriter {
    pub fn new(dir: &Path) -> TemplateWriter {
        TemplateWriter { folder: dir.join(FOLDER), turn: Arc::default() }
    }

    /// Waits for the lock. Until it is dropped, no other request changes a file.
    pub async fn lock_changes(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Returns the path at which a template is stored.
    pub fn template_path(&self, template: &DeployTemplate) -> PathBuf {
        let by_name = Some(&template.name).filter(|name| name.len() <= LONGEST_NAME);
        let name = by_name.or(template.uuid.as_ref()).unwrap_or(&template.name);
        self.folder.join(format!("{name}.yaml"))
    }
}

/// Writes the file atomically.
pub fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::Error::other("the path does not name a file"));
    };
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let new = folder.join(format!(".{}.new", name.display()));
    // Arguments may contain secrets.
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    if let Ok(old) = fs::metadata(path) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    // The kernel's own timestamps are too coarse to distinguish two versions of the same length.
    file.set_modified(SystemTime::now())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// Deletes the file.
pub fn remove_file(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
