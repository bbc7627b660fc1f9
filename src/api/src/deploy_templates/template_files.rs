//! Files of templates. The files are written atomically, and one at a time.

use crate::metal_api::edited_files::atomic_file::{sync_folder, write_temporary};
use model::deploy_steps::template::DeployTemplate;
use site::deploy_templates::FOLDER;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Maximum length in bytes of the template's name within the name of its file. File names are limited to 255 bytes.
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

    /// Waits for the lock. No other request changes a file until the returned guard is dropped.
    pub(crate) async fn lock_changes(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Returns the path at which a template is stored.
    pub(crate) fn template_path(&self, template: &DeployTemplate) -> PathBuf {
        let by_name = Some(&template.name).filter(|name| name.len() <= LONGEST_NAME);
        let name = by_name.or(template.uuid.as_ref()).unwrap_or(&template.name);
        self.folder.join(format!("{name}.yaml"))
    }
}

/// Writes the file atomically.
pub(crate) fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    // Arguments may contain secrets.
    let permissions = fs::metadata(path).map_or(Permissions::from_mode(0o600), |old| old.permissions());
    let new = write_temporary(path, text, permissions)?;
    fs::rename(&new, path)?;
    sync_folder(path)
}

/// Deletes the file.
pub(crate) fn remove_file(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(path)
}
