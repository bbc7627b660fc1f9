//! Cache of the checks of allocations. With ten thousand machines in PostgreSQL, reading all records for a scan of the
//! directory takes ten seconds, although almost all records are the same as for the previous scan.
//!
//! A cached result is valid while the machine file and all other files are unchanged, and the versions in the
//! database (`store::changed_record_tracking`) show that the machine's records are unchanged. Errors are not cached,
//! nor are results that depend on registered hardware, because registrations have no versions. During migrations,
//! nothing is cached, since allocations then belong to other machines than the files say.

use super::allocation_check::SettledMachine;
use crate::operator_files::MachineSpec;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use store::ServerState;

/// Cached results, by the path of the machine file.
#[derive(Default)]
pub(crate) struct AllocationCheckCache {
    /// Version of the database's records from which the results were made.
    version: i64,
    results: HashMap<PathBuf, CachedCheck>,
    /// True if results must not be cached, because the changes of records are unknown.
    is_disabled: bool,
}

struct CachedCheck {
    machine: String,
    allocation: Option<String>,
    checked: CheckedAllocation,
}

/// Result of the check of an allocation that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckedAllocation {
    /// Remarks for the operator.
    pub notes: Vec<String>,
    /// Reason why the machine cannot be reinstalled: the layout in the files contradicts the machine's install marker.
    pub contradiction: Option<String>,
}

impl AllocationCheckCache {
    /// Returns the number of cached results.
    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    /// Removes all results, because a file that may concern several machines has changed.
    pub(crate) fn clear(&mut self) {
        self.results.clear();
    }

    /// Removes the result for this machine file.
    pub(crate) fn remove(&mut self, path: &Path) {
        self.results.remove(path);
    }

    /// Removes the results whose records have changed. Removes all results, and caches none, during migrations and if
    /// the database does not keep versions of records.
    pub(super) fn remove_outdated(&mut self, state: &ServerState, has_migrations: bool) {
        let changes = if has_migrations { None } else { state.read_kept_record_changes(self.version).ok().flatten() };
        self.is_disabled = changes.is_none();
        let Some(changes) = changes else { return self.clear() };
        self.version = changes.version;
        if changes.includes_all {
            return self.clear();
        }
        let changed: HashSet<String> = changes.changed.into_iter().collect();
        let is_changed = |cached: &CachedCheck| {
            changed.contains(&cached.machine) || cached.allocation.as_ref().is_some_and(|own| changed.contains(own))
        };
        self.results.retain(|_, cached| !is_changed(cached));
    }

    /// Returns the cached result for the machine file, or the result of `check`, which is then cached.
    ///
    /// # Errors
    /// Returns the error of `check`.
    pub(super) fn find_or_check(
        &mut self,
        path: &Path,
        machine: &MachineSpec,
        check: impl FnOnce(&MachineSpec) -> Result<SettledMachine, String>,
    ) -> Result<CheckedAllocation, String> {
        if let Some(cached) = self.results.get(path) {
            return Ok(cached.checked.clone());
        }
        let SettledMachine { notes, contradiction, depends_on_hardware, .. } = check(machine)?;
        let checked = CheckedAllocation { notes, contradiction };
        if !self.is_disabled && !depends_on_hardware {
            let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
            let cached = CachedCheck { machine: machine.id.clone(), allocation, checked: checked.clone() };
            self.results.insert(path.to_owned(), cached);
        }
        Ok(checked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SiteLoader, SiteScan};
    use crate::ganeti_os_definitions::{OsDefinitions, VerifyCache};
    use model::install_marker::InstallMarker;
    use std::fs;
    use std::path::PathBuf;
    use std::time::Duration;
    use store::image_digest_cache::ImageDigests;
    use store::store_address::PostgresAddress;
    use store::{AdoptOutcome, ServerState};
    use tempfile::TempDir;

    const LAYOUT: &str = "id: small
disks: [{device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0, gpttype: '8300'}]}]
filesystems: [{device: /dev/sda1, format: ext4, path: /}]
";

    struct LoadedSite {
        dir: TempDir,
        state: ServerState,
        loader: SiteLoader,
    }

    impl LoadedSite {
        /// Creates a site with the machines 0 and 1.
        fn new(dir: TempDir, state: ServerState) -> LoadedSite {
            for folder in ["machines", "layouts", "images"] {
                fs::create_dir(dir.path().join(folder)).unwrap();
            }
            fs::write(dir.path().join("layouts/small.yaml"), LAYOUT).unwrap();
            let image = format!("id: debian-13\nurl: http://images/debian.tar\ndigest: sha256:{}\n", "0".repeat(64));
            fs::write(dir.path().join("images/debian.yaml"), image).unwrap();
            let definitions = OsDefinitions::new(dir.path().join("os"), VerifyCache::disabled());
            let digests = ImageDigests::cached_only(state.clone());
            let loader = SiteLoader::new(dir.path(), digests, definitions, state.clone());
            let mut site = LoadedSite { dir, state, loader };
            (0..2).for_each(|number| site.write(number, "host"));
            assert_eq!(site.scan(), Vec::<String>::new());
            site
        }

        fn path(&self, number: u32) -> PathBuf {
            self.dir.path().join(format!("machines/m{number}.yaml"))
        }

        fn write(&self, number: u32, hostname: &str) {
            let allocation =
                format!("{{id: a{number}, hostname: {hostname}, image: debian-13, filesystemlayout: small}}");
            let text = format!("id: {}\nname: m{number}\nallocation: {allocation}\n", id(number));
            fs::write(self.path(number), text).unwrap();
        }

        /// Scans the site completely, and returns the notes.
        fn scan(&mut self) -> Vec<String> {
            self.loader.require_new_snapshot();
            let SiteScan { problems, notes, .. } = self.loader.rescan().unwrap();
            assert_eq!(problems, Vec::<String>::new());
            notes
        }

        /// Replaces the cached notes, which shows whether the next scan uses the cached result.
        fn mark_cached(&mut self) {
            let checks = &mut self.loader.allocation_checks.results;
            checks.values_mut().for_each(|cached| cached.checked.notes = vec![format!("{} is cached", cached.machine)]);
        }

        /// Records that the machine is installed with another image.
        fn adopt(&self, number: u32) {
            let (machine, allocation, image) = (id(number), format!("a{number}"), "debian-12".to_owned());
            let marker = InstallMarker { machine, allocation, image, ..InstallMarker::default() };
            let layout = serde_json::json!({ "id": "small" });
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let adopted = runtime.block_on(self.state.adopt_with_marker(&marker, &layout));
            assert_eq!(adopted.unwrap(), AdoptOutcome::Adopted);
        }
    }

    fn id(number: u32) -> String {
        format!("4c4c4544-0051-3010-8052-b4c04f4d000{number}")
    }

    fn contains(notes: &[String], text: &str) -> bool {
        notes.iter().any(|note| note.contains(text))
    }

    #[test]
    fn scan_reads_only_the_records_of_changed_machines() {
        let Some(server) = testing::postgres::shared() else { return };
        let address = PostgresAddress::parse(&server.create_database("checks")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open_postgres(&address, dir.path(), Duration::from_secs(60)).unwrap();
        let mut site = LoadedSite::new(dir, state);
        let cached = [0, 1].map(|number| format!("{} is cached", id(number)));
        site.mark_cached();
        let notes = site.scan();
        assert!(contains(&notes, &cached[0]) && contains(&notes, &cached[1]), "{notes:?}");

        site.adopt(0);
        let notes = site.scan();
        assert!(contains(&notes, "image debian-12 is installed") && !contains(&notes, &cached[0]), "{notes:?}");
        assert!(contains(&notes, &cached[1]), "{notes:?}");

        site.mark_cached();
        site.write(1, "other");
        let notes = site.scan();
        assert!(contains(&notes, &cached[0]) && !contains(&notes, &cached[1]), "{notes:?}");

        site.mark_cached();
        fs::write(site.dir.path().join("layouts/small.yaml"), LAYOUT.replace("ext4", "xfs")).unwrap();
        let notes = site.scan();
        assert!(!contains(&notes, "is cached"), "all machines are checked after a change of a layout: {notes:?}");
    }

    #[test]
    fn results_are_not_cached_without_versions_of_records() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        assert!(LoadedSite::new(dir, state).loader.allocation_checks.results.is_empty());
    }
}
