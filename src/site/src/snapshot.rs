//! Snapshot of the versions of the operator's files that are in force.

use crate::controller_index::ControllerIndex;
use crate::ganeti_os_definitions::DefinitionCatalog;
use crate::operator_files::{ImageSpec, MachineSpec};
use crate::site_objects::SiteObjects;
use crate::unusable_files::MachineFileErrors;
use model::machine_identity::swap_id_byte_order;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use store::machine_migration::Migration;

pub(crate) const MANIFEST: &str = ".manifest";

/// Suffixes of the files that an agent requests together with an image, such as its manifest.
const SIDECAR_SUFFIXES: [&str; 4] = [MANIFEST, ".manifest.minisig", ".sha256", ".sha256.minisig"];

/// Map whose copies share their entries: copying the map, and changing one entry of the copy, is cheap.
pub type SharedMap<V> = rpds::HashTrieMapSync<String, V>;

/// Consistent snapshot of all files in force.
#[derive(Debug, Clone, Default)]
pub struct SiteSnapshot {
    /// Machines by id.
    pub(crate) machines: SharedMap<Arc<MachineSpec>>,
    /// For each MAC, the ids of the machines whose files list the MAC. A MAC that more than one machine file lists does
    /// not identify a machine.
    pub(crate) macs: SharedMap<Vec<String>>,
    /// Machines by their management controllers.
    pub(crate) controllers: ControllerIndex,
    /// Local image files, by the path below `/images/` at which they are served.
    pub(crate) files: HashMap<String, PathBuf>,
    /// Images as defined in their YAML files, with the path of the YAML file.
    pub images: BTreeMap<String, (PathBuf, ImageSpec)>,
    /// Paths of all YAML files in `images/` at the scan, including invalid ones.
    pub scanned_images: Arc<BTreeSet<PathBuf>>,
    /// Path of each machine file, by the machine's id.
    pub machine_files: SharedMap<PathBuf>,
    /// Errors of the machine files.
    pub machine_errors: Arc<MachineFileErrors>,
    /// Migrations whose results are missing from the machine files of this server, because another server that shares
    /// the database has recorded them.
    pub outdated_migrations: Arc<Vec<Migration>>,
    /// For each layout in force, the path of its file. The key is the id of the layout.
    pub layout_files: BTreeMap<String, PathBuf>,
    /// For each size in force, the path of its file. The key is the id of the size.
    pub size_files: BTreeMap<String, PathBuf>,
    pub os_definitions: DefinitionCatalog,
    /// Objects that allocations can refer to.
    pub known: Arc<SiteObjects>,
    /// Problems of the operator's directory, which are shown to the operator. The server sets this field when it
    /// publishes the snapshot.
    pub problems: Vec<String>,
    /// Number of the complete scan from which this snapshot was created.
    pub(crate) scan: u64,
    /// Revision of the documents in the database; `None` if the documents are files.
    pub revision: Option<i64>,
    /// Revision of the machine file in force, for each machine whose file was updated after the other documents.
    pub(crate) machine_revisions: SharedMap<i64>,
    /// For each machine that was updated since the complete scan, the number of its updates.
    pub(crate) updates: SharedMap<u64>,
}

/// Version of the files and records that affect one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineVersion {
    scan: u64,
    updates: u64,
}

impl SiteSnapshot {
    /// Returns a copy of the snapshot that contains only the machines of these projects, and an empty list of problems.
    pub fn restrict_to_projects(&self, projects: &[String]) -> SiteSnapshot {
        let is_own = |machine: &MachineSpec| machine.project.as_ref().is_some_and(|own| projects.contains(own));
        let machines: SharedMap<_> = self
            .machines
            .iter()
            .filter(|(_, machine)| is_own(machine))
            .map(|(id, one)| (id.clone(), one.clone()))
            .collect();
        let keep_own = |ids: &[String]| ids.iter().filter(|id| machines.contains_key(*id)).cloned().collect();
        let macs = self.macs.iter().map(|(mac, ids)| (mac.clone(), keep_own(ids))).collect();
        let machine_errors = Arc::new(self.machine_errors.restrict_to(|id| machines.contains_key(id)));
        let files = self.machine_files.iter().filter(|(id, _)| machines.contains_key(*id));
        let machine_files = files.map(|(id, file)| (id.clone(), file.clone())).collect();
        SiteSnapshot {
            machines,
            macs,
            controllers: self.controllers.clone(),
            machine_files,
            machine_errors,
            outdated_migrations: self.outdated_migrations.clone(),
            files: self.files.clone(),
            images: self.images.clone(),
            scanned_images: self.scanned_images.clone(),
            layout_files: self.layout_files.clone(),
            size_files: self.size_files.clone(),
            os_definitions: self.os_definitions.clone(),
            known: self.known.clone(),
            problems: Vec::new(),
            scan: self.scan,
            revision: self.revision,
            machine_revisions: self.machine_revisions.clone(),
            updates: self.updates.clone(),
        }
    }

    pub fn find_machine(&self, id: &str) -> Option<&MachineSpec> {
        self.machines.get(id).map(Arc::as_ref)
    }

    /// Returns the revision up to which changes of the machine's file are in force.
    pub fn machine_file_revision(&self, id: &str) -> i64 {
        self.machine_revisions.get(id).copied().max(self.revision).unwrap_or_default()
    }

    /// Returns the version of the machine. If the version is equal in two snapshots, nothing that affects the machine
    /// has changed between the snapshots.
    pub fn machine_version(&self, id: &str) -> MachineVersion {
        MachineVersion { scan: self.scan, updates: self.updates.get(id).copied().unwrap_or_default() }
    }

    /// Returns the machine with this UUID as its id. If there is none, the UUID is also looked up in the other byte
    /// order, because some firmware reports it in that order.
    pub fn find_machine_by_uuid(&self, uuid: &str) -> Option<&MachineSpec> {
        self.find_machine(uuid).or_else(|| self.find_machine(&swap_id_byte_order(uuid)?))
    }

    /// Returns all machines whose files list this MAC.
    pub fn find_machines_by_mac(&self, mac: &str) -> impl Iterator<Item = &MachineSpec> {
        self.macs.get(mac).into_iter().flatten().filter_map(|id| self.find_machine(id))
    }

    pub fn machines(&self) -> impl Iterator<Item = &MachineSpec> {
        self.machines.values().map(Arc::as_ref)
    }

    /// Returns all machines. Snapshots share the entries of machines that have not changed.
    pub fn shared_machines(&self) -> impl Iterator<Item = &Arc<MachineSpec>> {
        self.machines.values()
    }

    /// Returns the path of an image file, or of a file next to an image file (see [`SIDECAR_SUFFIXES`]).
    pub fn find_image_file(&self, served: &str) -> Option<PathBuf> {
        if let Some(file) = self.files.get(served) {
            return Some(file.clone());
        }
        SIDECAR_SUFFIXES.iter().find_map(|suffix| {
            let mut file = self.files.get(served.strip_suffix(suffix)?)?.clone().into_os_string();
            file.push(suffix);
            Some(file.into())
        })
    }

    /// Returns the display name of a machine: its name, or its id if it has no name.
    pub fn display_name<'a>(&'a self, id: &'a str) -> &'a str {
        self.find_machine(id).map(|machine| machine.name.as_str()).filter(|name| !name.is_empty()).unwrap_or(id)
    }
}
