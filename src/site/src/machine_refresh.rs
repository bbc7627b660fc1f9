//! Update of single machines in a snapshot, without a scan of the whole directory. With ten thousand machine files, a
//! scan takes a second, which would delay a machine that waits for a change of its file.

use crate::loader::{SettledMachine, SiteLoader, check_machine_allocation};
use crate::operator_files::MachineSpec;
use crate::snapshot::SiteSnapshot;
use crate::yaml_folder::format_problem;
use common::format::os_error_messages::without_os_error_numbers;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Machine whose file or whose records have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedMachine {
    pub id: String,
    /// Path of a machine file that is new or was changed; `None` if the file has not changed.
    pub file: Option<PathBuf>,
}

/// Snapshot in which some machines were updated.
pub struct RefreshedSite {
    pub snapshot: SiteSnapshot,
    /// Remarks for the operator about the updated machines, by the path of the machine file.
    pub notes: BTreeMap<PathBuf, Vec<String>>,
}

impl SiteLoader {
    /// Returns a copy of the snapshot in which these machines are up to date. Returns `None` if only a scan can
    /// determine their state: during migrations, or if one of the machines has a problem, or may share an id, a MAC
    /// or a management controller with another machine.
    pub fn refresh_machines(&mut self, current: &SiteSnapshot, changed: &[ChangedMachine]) -> Option<RefreshedSite> {
        let has_migrations = !self.state.list_live_migrations_blocking().ok()?.is_empty();
        if self.stale || has_migrations || !current.outdated_migrations.is_empty() {
            return None;
        }
        if self.refresh_documents() {
            return None;
        }
        let mut refreshed = RefreshedSite { snapshot: current.clone(), notes: BTreeMap::new() };
        for machine in changed {
            self.refresh_machine(&mut refreshed, machine)?;
        }
        Some(refreshed)
    }

    /// Returns a copy of the snapshot with the changes that [`SiteLoader::find_changes`] has found, provided that
    /// only these machines have changed. Returns `None` under the same conditions as
    /// [`SiteLoader::refresh_machines`].
    pub fn apply_found_changes(&mut self, current: &SiteSnapshot, changed: &[ChangedMachine]) -> Option<RefreshedSite> {
        let mut refreshed = self.refresh_machines(current, changed)?;
        refreshed.snapshot.revision = self.revision;
        Some(refreshed)
    }

    fn refresh_machine(&mut self, refreshed: &mut RefreshedSite, changed: &ChangedMachine) -> Option<()> {
        let ChangedMachine { id, file } = changed;
        let snapshot = &mut refreshed.snapshot;
        if let Some(path) = file.as_ref().or(snapshot.machine_files.get(id)).cloned() {
            if self.may_concern_others(snapshot, id, &path) {
                return None;
            }
            // The revision is read first, so that it is never newer than the text.
            let revision = self.documents.revision_of(&path);
            self.allocation_checks.remove(&path);
            self.machines.rescan_file(path.clone());
            let entry = self.machines.entries.get_mut(&path)?;
            let machine = entry.newest.as_ref().ok().filter(|machine| machine.id == *id)?;
            let settled = check_machine_allocation(&mut self.definitions, &self.state, &snapshot.known, machine);
            let SettledMachine { machine, notes, contradiction: None, .. } = settled.ok()? else { return None };
            entry.last_valid = entry.newest.as_ref().ok().cloned();
            update_index(snapshot, &machine)?;
            let notes =
                notes.iter().map(|note| without_os_error_numbers(&format_problem(&path, note, false)).into_owned());
            refreshed.notes.insert(path.clone(), notes.collect());
            snapshot.machine_files.insert_mut(id.clone(), path);
            snapshot.machines.insert_mut(id.clone(), Arc::new(machine));
            revision.into_iter().for_each(|revision| snapshot.machine_revisions.insert_mut(id.clone(), revision));
        }
        let updates = snapshot.updates.get(id).copied().unwrap_or_default();
        snapshot.updates.insert_mut(id.clone(), updates + 1);
        Some(())
    }

    /// Returns whether the file of the machine may concern other machines: it contained another machine before, another
    /// file contains the machine, or a problem mentions the file or the machine.
    fn may_concern_others(&self, snapshot: &SiteSnapshot, id: &str, path: &Path) -> bool {
        let known = snapshot.machine_files.get(id);
        // Comparing the text of paths is much faster than comparing their components.
        let is_same = |other: &Path| other.as_os_str() == path.as_os_str();
        let named = path.display().to_string();
        let is_mentioned = snapshot.problems.iter().any(|problem| problem.contains(&named) || problem.contains(id));
        let contained_other = snapshot.machine_files.iter().any(|(other, file)| other != id && is_same(file));
        let mut others = self.machines.entries.iter().filter(|(other, _)| !is_same(other));
        let is_in_other_file =
            known.is_none() && others.any(|(_, entry)| entry.last_valid.as_ref().is_some_and(|other| other.id == *id));
        known.is_some_and(|known| !is_same(known)) || is_mentioned || contained_other || is_in_other_file
    }
}

/// Adds the MACs and the management controller of the machine to the snapshot. Returns `None` if another machine may
/// have them, or if they have changed.
fn update_index(snapshot: &mut SiteSnapshot, machine: &MachineSpec) -> Option<()> {
    let id = &machine.id;
    for mac in &machine.macs {
        match snapshot.macs.get(mac).map(Vec::as_slice) {
            None | Some([]) => snapshot.macs.insert_mut(mac.clone(), vec![id.clone()]),
            Some([only]) if only == id => {}
            Some(_) => return None,
        }
    }
    let controller = |machine: &MachineSpec| machine.bmc.as_ref().map(|bmc| bmc.at.clone());
    match snapshot.find_machine(id) {
        Some(before) if before.macs == machine.macs && controller(before) == controller(machine) => Some(()),
        None if !snapshot.controllers.is_used_by_another(machine) => {
            snapshot.controllers.add(machine);
            Some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ganeti_os_definitions::{OsDefinitions, VerifyCache};
    use crate::loader::{SiteChanges, SiteScan};
    use crate::test_store;
    use std::fs;
    use store::image_digest_cache::ImageDigests;
    use tempfile::TempDir;

    struct LoadedSite {
        dir: TempDir,
        loader: SiteLoader,
        snapshot: SiteSnapshot,
    }

    impl LoadedSite {
        /// Creates a directory with the machines `m0` to `m2`.
        fn new() -> LoadedSite {
            let dir = tempfile::tempdir().unwrap();
            for folder in ["machines", "layouts", "images"] {
                fs::create_dir(dir.path().join(folder)).unwrap();
            }
            let state = test_store::open(dir.path());
            let definitions = OsDefinitions::new(dir.path().join("os"), VerifyCache::start(|_| ()).unwrap());
            let loader = SiteLoader::new(dir.path(), ImageDigests::cached_only(state.clone()), definitions, state);
            let mut site = LoadedSite { dir, loader, snapshot: SiteSnapshot::default() };
            (0..3).for_each(|number| drop(site.write(number, &format!("52:54:00:00:00:0{number}"), "")));
            let SiteScan { directory, problems, .. } = site.loader.rescan().unwrap();
            assert_eq!(problems, Vec::<String>::new());
            site.snapshot = directory;
            site
        }

        fn write(&self, number: u32, mac: &str, more: &str) -> PathBuf {
            let path = self.dir.path().join(format!("machines/m{number}.yaml"));
            fs::write(&path, format!("id: {}\nname: m{number}\nmacs: ['{mac}']\n{more}", id(number))).unwrap();
            path
        }

        fn refresh(&mut self, number: u32, file: Option<PathBuf>) -> Option<SiteSnapshot> {
            let refreshed = self.loader.refresh_machines(&self.snapshot, &[ChangedMachine { id: id(number), file }]);
            refreshed.map(|refreshed| refreshed.snapshot)
        }
    }

    fn id(number: u32) -> String {
        format!("4c4c4544-0051-3010-8052-b4c04f4d000{number}")
    }

    #[test]
    fn new_file_takes_effect_and_affects_only_its_machine() {
        let mut site = LoadedSite::new();
        let file = site.write(7, "52:54:00:00:00:07", "");
        let new = site.refresh(7, Some(file.clone())).unwrap();
        assert_eq!((new.machines().count(), new.display_name(&id(7))), (4, "m7"));
        assert_eq!(new.machine_files[&id(7)], file);
        assert_eq!(new.find_machines_by_mac("52:54:00:00:00:07").count(), 1);
        assert_ne!(new.machine_version(&id(7)), site.snapshot.machine_version(&id(7)));
        assert_eq!(new.machine_version(&id(1)), site.snapshot.machine_version(&id(1)));
        assert!(site.loader.rescan().is_none(), "the file is not read again");
        site.loader.require_new_snapshot();
        let scanned = site.loader.rescan().unwrap().directory;
        assert_eq!(scanned.machines().count(), 4);
        assert_ne!(scanned.machine_version(&id(1)), new.machine_version(&id(1)));
    }

    #[test]
    fn periodic_scan_finds_single_machines() {
        let mut site = LoadedSite::new();
        assert!(matches!(site.loader.find_changes(), SiteChanges::None));
        let file = site.write(7, "52:54:00:00:00:07", "");
        let SiteChanges::Machines(changed) = site.loader.find_changes() else { panic!() };
        assert_eq!(changed, [ChangedMachine { id: id(7), file: Some(file.clone()) }]);
        let new = site.loader.refresh_machines(&site.snapshot, &changed).unwrap().snapshot;
        assert_eq!(new.machine_files[&id(7)], file);
        // The file now describes another machine, so the machine that it described has no file.
        fs::write(&file, format!("id: {}\nname: m8\nmacs: ['52:54:00:00:00:08']\n", id(8))).unwrap();
        let SiteChanges::Machines(changed) = site.loader.find_changes() else { panic!() };
        assert!(site.loader.refresh_machines(&new, &changed).is_none());
        site.write(7, "52:54:00:00:00:07", "unknown: 1\n");
        assert!(matches!(site.loader.find_changes(), SiteChanges::All), "an invalid file");
        fs::remove_file(&file).unwrap();
        assert!(matches!(site.loader.find_changes(), SiteChanges::All), "a removed file");
    }

    #[test]
    fn database_change_updates_the_version_of_its_machine() {
        let mut site = LoadedSite::new();
        let new = site.refresh(1, None).unwrap();
        assert_ne!(new.machine_version(&id(1)), site.snapshot.machine_version(&id(1)));
        assert_eq!(new.machine_version(&id(2)), site.snapshot.machine_version(&id(2)));
        // Machines are also updated without a changed file, for example after a registration.
        assert!(site.refresh(8, None).is_some());
    }

    #[test]
    fn changes_that_may_affect_other_machines_need_a_scan() {
        let mut site = LoadedSite::new();
        let file = site.write(7, "52:54:00:00:00:01", "");
        assert!(site.refresh(7, Some(file)).is_none(), "the MAC of another machine");
        let mut site = LoadedSite::new();
        let copy = site.dir.path().join("machines/copy.yaml");
        fs::copy(site.dir.path().join("machines/m1.yaml"), &copy).unwrap();
        assert!(site.refresh(1, Some(copy)).is_none(), "the id of another file");
        let mut site = LoadedSite::new();
        let file = site.write(7, "52:54:00:00:00:07", "unknown: 1\n");
        assert!(site.refresh(7, Some(file)).is_none(), "an invalid file");
        let mut site = LoadedSite::new();
        let allocation = "allocation: {id: a7, hostname: h, image: none, filesystemlayout: none}\n";
        let file = site.write(7, "52:54:00:00:00:07", allocation);
        assert!(site.refresh(7, Some(file)).is_none(), "an image that does not exist");
        let mut site = LoadedSite::new();
        site.write(1, "52:54:00:00:00:09", "");
        assert!(site.refresh(1, None).is_none(), "other MACs");
        let mut site = LoadedSite::new();
        let controller = "bmc: {url: 'ipmi://10.1.0.7', username: u, password: p}\n";
        site.write(1, "52:54:00:00:00:01", controller);
        assert!(site.refresh(1, None).is_none(), "another controller");
        site.loader.require_new_snapshot();
        site.snapshot = site.loader.rescan().unwrap().directory;
        let file = site.write(7, "52:54:00:00:00:07", controller);
        assert!(site.refresh(7, Some(file)).is_none(), "the controller of another machine");
        let mut site = LoadedSite::new();
        site.loader.require_new_snapshot();
        assert!(site.refresh(1, None).is_none(), "a scan is necessary anyway");
    }
}
