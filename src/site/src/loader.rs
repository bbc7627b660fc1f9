//! Reader of the operator's directory. Builds a snapshot of all files in force, and reports the problems of all files.

mod allocation_check;
mod allocation_check_cache;
mod complete_scan;
mod document_source;
mod image_manifest;
mod machine_files;

pub(crate) use allocation_check::{SettledMachine, check_machine_allocation};
pub use complete_scan::scan_completely;

use allocation_check_cache::AllocationCheckCache;

use crate::deploy_templates::{self, DeployTemplates};
use crate::documents::SiteDocuments;
use crate::duplicate_ids::index_by_id;
use crate::ganeti_os_definitions::{self, OsDefinitions};
use crate::image_states::{self, ImageStates};
use crate::machine_refresh::ChangedMachine;
use crate::operator_files::{self, ImageLocation, ImageSpec, MachineSpec};
use crate::plan_approvals::{self, Approval, Approvals};
use crate::registry_credentials::RegistryCredentials;
use crate::requested_steps;
use crate::site_objects::SiteObjects;
use crate::sizes::{self, MachineSize};
use crate::snapshot::SiteSnapshot;
use crate::unusable_files::UnusableFiles;
use crate::watched_file::WatchedFile;
use crate::yaml_folder::YamlFolder;
use common::diagnostic;
use common::error_code::ErrorCode;
use common::format::os_error_messages::without_os_error_numbers;
use image_manifest::{manifest_path, read_image_contents};
use model::deploy_steps::template::DeployTemplate;
use model::layout::{self, Layout, layout_set::LayoutSet};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::image_digest_cache::{self, ImageDigests};
use store::{FileStamp, ServerState};

fn read_layout(text: &str) -> Result<Layout, String> {
    let parsed = layout::read_yaml(text).map_err(|problems| diagnostic::join_problems(&problems))?;
    Ok(parsed.layout)
}

fn read_template(text: &str) -> Result<DeployTemplate, String> {
    DeployTemplate::parse_file(text).map_err(|problems| diagnostic::join_problems(&problems))
}

/// Reader of the operator's directory. Stores the last valid version of each file in memory.
pub struct SiteLoader {
    dir: PathBuf,
    pub(crate) documents: SiteDocuments,
    /// Reason why the documents in the database could not be read at the last scan.
    unread: Option<String>,
    /// Revision of the documents in the database at the last scan.
    pub(crate) revision: Option<i64>,
    pub(crate) machines: YamlFolder<MachineSpec>,
    pub(crate) allocation_checks: AllocationCheckCache,
    layouts: YamlFolder<Layout>,
    images: YamlFolder<ImageSpec>,
    templates: YamlFolder<DeployTemplate>,
    approvals: YamlFolder<Approval>,
    approved_only: bool,
    /// True if approvals are ignored.
    ignores_approvals: bool,
    sizes: YamlFolder<MachineSize>,
    registries: RegistryCredentials,
    states: WatchedFile<ImageStates>,
    /// Stamps (size and modification time) of the image files and their manifests at the last scan.
    stamps: Vec<Option<FileStamp>>,
    digests: ImageDigests,
    pub(crate) definitions: OsDefinitions,
    pub(crate) state: ServerState,
    /// True if an input that is not a file, such as the database or a computed digest, has changed since the last scan.
    pub(crate) stale: bool,
    /// Number of complete scans.
    scans: u64,
}

/// Result of a scan of the directory.
#[derive(Default)]
pub struct SiteScan {
    pub directory: SiteSnapshot,
    pub problems: Vec<String>,
    /// Remarks for the operator that are not problems. The server logs each of them once.
    pub notes: Vec<String>,
}

/// Changes since the last scan of the directory.
#[derive(Debug)]
pub enum SiteChanges {
    None,
    /// Only files of these machines are new or have changed. The list is empty if the revision of the documents has
    /// changed, but no document in force.
    Machines(Vec<ChangedMachine>),
    /// A new snapshot of the whole directory is necessary.
    All,
}

/// Maximum number of changed machine files for which the machines are updated separately.
const SEPARATE_MACHINES: usize = 64;

impl SiteLoader {
    pub fn new(dir: &Path, digests: ImageDigests, definitions: OsDefinitions, state: ServerState) -> SiteLoader {
        SiteLoader {
            dir: dir.to_owned(),
            documents: SiteDocuments::of_directory(dir),
            unread: None,
            revision: None,
            machines: YamlFolder::new(dir.join("machines"), operator_files::parse_machine),
            allocation_checks: AllocationCheckCache::default(),
            layouts: YamlFolder::new(dir.join("layouts"), read_layout),
            images: YamlFolder::new(dir.join("images"), operator_files::parse_image),
            templates: YamlFolder::optional(dir.join(deploy_templates::FOLDER), read_template),
            approvals: YamlFolder::optional(dir.join(plan_approvals::FOLDER), plan_approvals::parse_approval),
            approved_only: false,
            ignores_approvals: false,
            sizes: YamlFolder::optional(dir.join(sizes::FOLDER), MachineSize::parse_size),
            registries: RegistryCredentials::new(dir),
            states: image_states::states_file(dir),
            stamps: Vec::new(),
            digests,
            definitions,
            state,
            stale: true,
            scans: 0,
        }
    }

    /// Returns the path of the operator's directory.
    pub fn directory_path(&self) -> &Path {
        &self.dir
    }

    /// Sets whether installations are served only to machines with an approved plan.
    pub fn with_approved_only(self, approved_only: bool) -> SiteLoader {
        SiteLoader { approved_only, ..self }
    }

    /// Makes the loader ignore approvals. Required to compute plans that the operator has not approved yet.
    pub fn without_approvals(self) -> SiteLoader {
        let approvals = YamlFolder::optional(PathBuf::new(), plan_approvals::parse_approval);
        SiteLoader { approvals, ignores_approvals: true, ..self }
    }

    /// Stores a computed digest. The next scan returns a new snapshot.
    pub fn store_digest(&mut self, done: image_digest_cache::DigestResult) {
        self.digests.store_result(done);
        self.allocation_checks.clear();
        self.stale = true;
    }

    /// Stores the result of a `verify` program. The next scan returns a new snapshot.
    pub fn store_verdict(&mut self, done: ganeti_os_definitions::VerifyResult) {
        self.definitions.store_verdict(done);
        self.allocation_checks.clear();
        self.stale = true;
    }

    /// Returns whether a machine or parameter still waits for a `verify` program.
    pub fn is_waiting(&self) -> bool {
        self.definitions.is_waiting()
    }

    /// Records that the database has changed, so that the next scan returns a new snapshot.
    pub fn require_new_snapshot(&mut self) {
        self.stale = true;
    }

    /// Discards the results of a scan that has panicked. It may have read changes that are in no snapshot yet, so
    /// that only a complete snapshot may claim their revision.
    pub fn discard_incomplete_scan(&mut self) {
        self.allocation_checks.clear();
        self.stale = true;
    }

    /// Returns a new snapshot, or `None` if nothing has changed since the last scan.
    pub fn rescan(&mut self) -> Option<SiteScan> {
        match self.find_changes() {
            SiteChanges::None => None,
            SiteChanges::Machines(_) | SiteChanges::All => Some(self.build_snapshot()),
        }
    }

    /// Reads the files that have changed, and returns what has changed since the last scan.
    pub fn find_changes(&mut self) -> SiteChanges {
        // Documents in the database are read first, because they contain the machine files.
        let (has_other_error, revision) = (self.refresh_documents(), self.revision);
        self.revision = self.documents.stored().map(|stored| stored.revision);
        let machines = self.machines.find_changes();
        let (is_stale, has_other_changes) = (std::mem::take(&mut self.stale), self.find_other_changes());
        if has_other_changes || machines.affects_others {
            self.allocation_checks.clear();
        }
        machines.files.iter().for_each(|file| self.allocation_checks.remove(file));
        let is_first = revision.is_some() != self.revision.is_some();
        if has_other_changes || is_stale || has_other_error || is_first || machines.affects_others {
            return SiteChanges::All;
        }
        match self.identify_machines(machines.files) {
            None => SiteChanges::All,
            Some(changed) if changed.is_empty() && revision == self.revision => SiteChanges::None,
            Some(changed) => SiteChanges::Machines(changed),
        }
    }

    /// Returns the machines to which the files belong. Returns `None` if there are too many files to update each
    /// machine separately, or if a file is invalid.
    fn identify_machines(&self, files: Vec<PathBuf>) -> Option<Vec<ChangedMachine>> {
        let identify = |file: PathBuf| {
            let machine = self.machines.entries.get(&file)?.newest.as_ref().ok()?;
            Some(ChangedMachine { id: machine.id.clone(), file: Some(file) })
        };
        if files.len() > SEPARATE_MACHINES { None } else { files.into_iter().map(identify).collect() }
    }

    /// Reads all files except the machine files, and returns whether anything has changed.
    fn find_other_changes(&mut self) -> bool {
        let mut changed = self.layouts.rescan();
        changed |= self.images.rescan();
        changed |= self.definitions.rescan();
        changed |= self.templates.rescan();
        changed |= self.approvals.rescan();
        changed |= self.sizes.rescan();
        changed |= self.registries.reload();
        changed |= self.states.rescan();
        changed |= self.digests.discard_failures();
        let stamps = self.image_paths().into_iter().flat_map(|path| [manifest_path(&path), path]);
        let stamps: Vec<_> = stamps.map(|path| image_digest_cache::file_stamp(&path).ok()).collect();
        changed |= stamps != self.stamps;
        self.stamps = stamps;
        changed
    }

    fn image_paths(&self) -> Vec<PathBuf> {
        let images = self
            .images
            .entries
            .values()
            .flat_map(|entry| entry.newest.as_ref().ok().into_iter().chain(&entry.last_valid));
        images.filter_map(|image| self.local_file(image)).collect()
    }

    fn local_file(&self, image: &ImageSpec) -> Option<PathBuf> {
        match &image.at {
            ImageLocation::File(file) => Some(self.dir.join("images").join(file)),
            ImageLocation::Url(_) => None,
        }
    }

    /// Evaluates all files and all machines.
    pub fn build_snapshot(&mut self) -> SiteScan {
        let mut problems: Vec<String> = self.unread.iter().cloned().collect();
        let layouts = self.layouts.take_last_valid(&mut problems);
        let layouts = index_by_id("layout", layouts, |layout| &layout.id, &mut problems);
        let set = LayoutSet::new(layouts.values().map(|(path, layout)| (path.as_path(), layout)));
        problems.extend(
            set.find_collisions()
                .iter()
                .map(|collision| ErrorCode::AmbiguousLayout.annotate(format!("layouts/: {collision}"))),
        );
        let images = self.images.take_last_valid(&mut problems);
        let images = index_by_id("image", images, |image| &image.id, &mut problems);
        problems.extend(self.registries.problem());
        problems.extend(self.states.describe_problem());
        self.scans += 1;
        let (mut directory, mut notes) = (self.empty_snapshot(), Vec::new());
        directory.images.clone_from(&images);
        directory.scanned_images = Arc::new(self.images.entries.keys().cloned().collect());
        let images = self.complete_images(images, &mut directory, &mut problems, &mut notes);
        directory.layout_files = layouts.iter().map(|(id, (path, _))| (id.clone(), path.clone())).collect();
        let layouts = layouts.into_iter().map(|(id, (_, layout))| (id, layout)).collect();
        let templates = DeployTemplates::new(self.templates.take_last_valid(&mut problems), &mut problems);
        notes.extend(requested_steps::find_unusable_templates(&templates));
        let mut approvals = Approvals::new(&self.approvals, self.approved_only, &mut problems);
        approvals.ignored = self.ignores_approvals;
        let sizes = self.sizes.take_last_valid(&mut problems);
        let sizes = index_by_id("size", sizes, |size| &size.id, &mut problems);
        directory.size_files = sizes.iter().map(|(id, (path, _))| (id.clone(), path.clone())).collect();
        let sizes = sizes.into_iter().map(|(id, (_, size))| (id, size)).collect();
        let states = self.states.last_valid.clone();
        directory.known = Arc::new(SiteObjects {
            layouts,
            unusable_layouts: UnusableFiles::collect(&self.layouts, &self.dir),
            set,
            images,
            unusable_images: UnusableFiles::collect(&self.images, &self.dir),
            templates,
            states,
            approvals,
            sizes,
        });
        problems.extend(self.definitions.collect_problems());
        directory.os_definitions = self.definitions.catalog().clone();
        notes.extend(self.describe_ignored_files());
        self.add_machines(&mut directory, &mut problems, &mut notes);
        let shown = |texts: Vec<String>| texts.iter().map(|text| without_os_error_numbers(text).into_owned()).collect();
        SiteScan { directory, problems: shown(problems), notes: shown(notes) }
    }

    /// Completes the images with their files and registry credentials. A machine waits if the digest of its image is
    /// missing, because the digest is still being computed or the image is unreadable.
    fn complete_images(
        &mut self,
        images: BTreeMap<String, (PathBuf, ImageSpec)>,
        directory: &mut SiteSnapshot,
        problems: &mut Vec<String>,
        notes: &mut Vec<String>,
    ) -> BTreeMap<String, Option<ImageSpec>> {
        let mut completed = BTreeMap::new();
        for (id, (path, mut image)) in images {
            let usable = match self.local_file(&image) {
                Some(file) => self.add_image_file(directory, (&path, &mut image), file, problems, notes),
                None => true,
            };
            problems
                .extend(self.registries.add_credentials(&mut image).map(|why| format!("{}: {why}", path.display())));
            completed.insert(id, usable.then_some(image));
        }
        completed
    }

    /// Adds the local file of an image to the snapshot, and sets the image's digest and contents. Returns whether the
    /// digest is known.
    fn add_image_file(
        &mut self,
        directory: &mut SiteSnapshot,
        (path, image): (&Path, &mut ImageSpec),
        file: PathBuf,
        problems: &mut Vec<String>,
        notes: &mut Vec<String>,
    ) -> bool {
        let manifest = manifest_path(&file);
        let digest = match image.digest.take() {
            Some(given) => {
                image_digest_cache::file_stamp(&file).map(|_| Some(given)).map_err(|error| error.to_string())
            }
            None => self.digests.digest_of(&file),
        };
        if let Err(why) = &digest {
            problems.push(format!("{}: {}: {why}", path.display(), file.display()));
        }
        if let ImageLocation::File(served) = &image.at {
            directory.files.insert(served.clone(), file);
        }
        image.digest = digest.ok().flatten();
        match read_image_contents(&manifest, image.digest.as_deref()) {
            Ok(contents) => image.contents = contents,
            Err(why) => notes.push(format!(
                "{file}: the manifest {manifest} is not used: {why}",
                file = path.display(),
                manifest = manifest.display()
            )),
        }
        image.digest.is_some()
    }
}
