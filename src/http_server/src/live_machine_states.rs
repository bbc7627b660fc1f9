//! Current states of machines, for pages with live updates. Only the last state of each machine is stored. Changes
//! are not queued for watchers, so a slow watcher misses intermediate states.

use common::sync::lock_mutex;
use model::install_report::ProgressEvent;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of pages that receive live updates at the same time.
pub const WATCHERS: usize = 256;
/// Maximum number of pages of one user that receive live updates at the same time, so that no user can prevent the
/// updates of other users.
pub const WATCHERS_PER_USER: usize = 16;
/// Maximum number of machines whose state is stored. When this number is exceeded, the states of the least recently
/// active half of the machines are discarded.
const MACHINES: usize = 64 << 10;

/// Current states of machines. Cheap to clone.
#[derive(Clone, Default)]
pub struct LiveMachineStates(Arc<Mutex<LiveStates>>);

#[derive(Default)]
struct LiveStates {
    version: u64,
    machines: HashMap<String, LiveState>,
    /// Number of watchers of each user.
    watchers: HashMap<String, usize>,
}

struct LiveState {
    version: u64,
    /// Value of `LiveStates::version` when the console log of the machine last grew.
    logged: u64,
    /// Last progress event; `None` if something else, such as an order, has changed the machine's state since then.
    event: Option<ProgressEvent>,
    at: Instant,
}

impl LiveMachineStates {
    fn set_state(&self, machine: &str, event: Option<ProgressEvent>) {
        let mut picture = lock_mutex(&self.0);
        picture.version += 1;
        let (version, at) = (picture.version, Instant::now());
        let logged = picture.machines.get(machine).map_or(0, |now| now.logged);
        picture.machines.insert(machine.to_owned(), LiveState { version, logged, event, at });
        if picture.machines.len() > MACHINES {
            let mut times: Vec<Instant> = picture.machines.values().map(|now| now.at).collect();
            times.sort_unstable();
            let median = times[times.len() / 2];
            picture.machines.retain(|_, now| now.at >= median);
        }
    }

    pub fn record_event(&self, machine: &str, event: &ProgressEvent) {
        self.set_state(machine, Some(event.clone()));
    }

    /// Records a change that is not a progress event, for example an order or a report.
    pub fn record_change(&self, machine: &str) {
        self.set_state(machine, None);
    }

    /// Records that the console log has grown. This does not change the machine's state.
    pub fn record_log(&self, machine: &str) {
        let mut picture = lock_mutex(&self.0);
        picture.version += 1;
        let version = picture.version;
        if let Some(now) = picture.machines.get_mut(machine) {
            now.logged = version;
        }
    }

    /// Returns the machine's last progress event, and the age of this event.
    pub fn last_event(&self, machine: &str) -> Option<(ProgressEvent, Duration)> {
        let picture = lock_mutex(&self.0);
        let now = picture.machines.get(machine)?;
        Some((now.event.clone()?, now.at.elapsed()))
    }

    /// Registers a watcher of a user. Returns `None` if [`WATCHERS_PER_USER`] watchers of this user or [`WATCHERS`]
    /// watchers of all users are registered already.
    pub fn add_watcher(&self, user: &str) -> Option<WatcherRegistration> {
        let mut picture = lock_mutex(&self.0);
        let all: usize = picture.watchers.values().sum();
        let own = picture.watchers.get(user).copied().unwrap_or_default();
        if all >= WATCHERS || own >= WATCHERS_PER_USER {
            return None;
        }
        picture.watchers.insert(user.to_owned(), own + 1);
        Some(WatcherRegistration { live: self.clone(), user: user.to_owned(), seen: picture.version })
    }
}

/// Registration of a watcher, which ends when this value is dropped.
pub struct WatcherRegistration {
    live: LiveMachineStates,
    user: String,
    seen: u64,
}

impl WatcherRegistration {
    /// Returns the changes since the previous call, one per machine.
    pub fn take_changes(&mut self) -> Vec<MachineChange> {
        let picture = lock_mutex(&self.live.0);
        if picture.version == self.seen {
            return Vec::new();
        }
        let new = picture.machines.iter().filter(|(_, now)| now.version.max(now.logged) > self.seen);
        let moved = |(id, now): (&String, &LiveState)| MachineChange {
            machine: id.clone(),
            event: now.event.clone(),
            has_new_log: now.logged > self.seen,
        };
        let moved = new.map(moved).collect();
        self.seen = picture.version;
        moved
    }
}

impl Drop for WatcherRegistration {
    fn drop(&mut self) {
        let mut picture = lock_mutex(&self.live.0);
        let own = picture.watchers.get(&self.user).copied().unwrap_or_default();
        match own {
            0 | 1 => drop(picture.watchers.remove(&self.user)),
            _ => drop(picture.watchers.insert(self.user.clone(), own - 1)),
        }
    }
}

/// Change of a machine's state since the watcher's previous call of [`WatcherRegistration::take_changes`].
#[derive(Debug, Clone, PartialEq)]
pub struct MachineChange {
    pub machine: String,
    /// Last progress event; `None` if something else, such as an order, has changed the machine's state since then.
    pub event: Option<ProgressEvent>,
    /// True if the console log has grown.
    pub has_new_log: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::EventName;

    #[test]
    fn watchers_and_machines_are_bounded() {
        let live = LiveMachineStates::default();
        let own: Vec<_> = (0..WATCHERS).map_while(|_| live.add_watcher("vic")).collect();
        assert_eq!(own.len(), WATCHERS_PER_USER);
        let places: Vec<_> = (0..WATCHERS).map_while(|user| live.add_watcher(&user.to_string())).collect();
        assert_eq!(own.len() + places.len(), WATCHERS);
        drop((own, places));
        assert!(lock_mutex(&live.0).watchers.is_empty() && live.add_watcher("vic").is_some());
        (0..MACHINES + 5).for_each(|machine| live.record_change(&machine.to_string()));
        assert!(lock_mutex(&live.0).machines.len() <= MACHINES);
        let event = ProgressEvent {
            event: EventName::Installing,
            message: String::new(),
            stage: None,
            seconds: None,
            progress: None,
        };
        live.record_event("last", &event);
        assert!(live.last_event("last").is_some());
    }
}
