//! Files of templates. The files are written atomically, and one at a time.

use crate::metal_api::document_edits::file_edits::{sync_folder, write_temporary};
use common::sync::lock_mutex;
use model::deploy_steps::template::DeployTemplate;
use model::machine_identity::swap_id_byte_order;
use site::deploy_templates::FOLDER;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Maximum length in bytes of the template's name within the name of its file. File names are limited to 255 bytes.
const LONGEST_NAME: usize = 200;

/// Folder of templates, and the locks for changing and creating files.
pub struct TemplateWriter {
    folder: PathBuf,
    lock: Arc<RwLock<()>>,
    /// Ids of the machines whose files are being created.
    creations: Arc<Mutex<BTreeSet<String>>>,
}

/// Permission to create the file of one machine, held until the value is dropped. Meanwhile, other requests can
/// create files of other machines, but no request can change a file.
pub(crate) struct CreationPermit {
    machine: String,
    creations: Arc<Mutex<BTreeSet<String>>>,
    _lock: OwnedRwLockReadGuard<()>,
}

impl Drop for CreationPermit {
    fn drop(&mut self) {
        lock_mutex(&self.creations).remove(&self.machine);
    }
}

impl TemplateWriter {
    pub fn new(dir: &Path) -> TemplateWriter {
        TemplateWriter { folder: dir.join(FOLDER), lock: Arc::default(), creations: Arc::default() }
    }

    /// Waits for the lock. No other request changes a file until the returned guard is dropped.
    pub(crate) async fn lock_changes(&self) -> OwnedRwLockWriteGuard<()> {
        self.lock.clone().write_owned().await
    }

    /// Waits until no other request changes files, and then returns the permission to create the file of a machine.
    /// Returns `None` if another request is creating this file.
    pub(crate) async fn lock_creation(&self, machine: &str) -> Option<CreationPermit> {
        let lock = self.lock.clone().read_owned().await;
        // The same machine can be named by its UUID in either byte order, so both forms are locked.
        let other = swap_id_byte_order(machine);
        let mut creations = lock_mutex(&self.creations);
        if other.is_some_and(|other| creations.contains(&other)) || !creations.insert(machine.to_owned()) {
            return None;
        }
        Some(CreationPermit { machine: machine.to_owned(), creations: self.creations.clone(), _lock: lock })
    }

    /// Returns the path at which a template is stored.
    pub(crate) fn template_path(&self, template: &DeployTemplate) -> PathBuf {
        let by_name = Some(&template.name).filter(|name| name.len() <= LONGEST_NAME);
        let name = by_name.or(template.uuid.as_ref()).unwrap_or(&template.name);
        self.folder.join(format!("{name}.yaml"))
    }
}

/// Writes the file of a template atomically.
pub(crate) fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    // The arguments of steps may contain secrets, so only the owner can read a new file.
    let permissions = fs::metadata(path).map_or(Permissions::from_mode(0o600), |old| old.permissions());
    let new = write_temporary(path, text, permissions)?;
    fs::rename(&new, path)?;
    sync_folder(path)
}

/// Deletes the file of a template.
pub(crate) fn remove_file(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(path)
}
