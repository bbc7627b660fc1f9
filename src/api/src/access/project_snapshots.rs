//! Snapshots of the directory for users with projects. A snapshot contains only the machines of the projects, and no
//! problems, because the problems name files of other machines.

use common::sync::lock_mutex;
use site::snapshot::SiteSnapshot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Maximum number of combinations of projects whose snapshots are cached.
const COMBINATIONS: usize = 64;

/// Complete snapshot, and its restriction to a combination of projects.
type RestrictedSnapshot = (Arc<SiteSnapshot>, Arc<SiteSnapshot>);

/// Cache of the snapshots for users with projects.
#[derive(Default)]
pub struct ProjectSnapshots(Mutex<HashMap<Vec<String>, RestrictedSnapshot>>);

impl ProjectSnapshots {
    /// Returns the part of the snapshot that a user with these projects sees.
    pub fn restrict(&self, all: Arc<SiteSnapshot>, projects: &[String]) -> Arc<SiteSnapshot> {
        let mut cache = lock_mutex(&self.0);
        if let Some((source, part)) = cache.get(projects)
            && Arc::ptr_eq(source, &all)
        {
            return part.clone();
        }
        if cache.len() >= COMBINATIONS {
            cache.clear();
        }
        let part = Arc::new(all.restrict_to_projects(projects));
        cache.insert(projects.to_owned(), (all, part.clone()));
        part
    }
}
