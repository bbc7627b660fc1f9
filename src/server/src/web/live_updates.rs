//! Live updates of pages with server-sent events. The server stores only the last state of each machine, and sends
//! changes to watchers twice a second. Changes are not queued for watchers, so a slow watcher misses intermediate
//! states.

use super::page_frame;
use super::phase::DisplayPhase;
use super::session::{LoggedIn, LoginSessions};
use crate::AppState;
use crate::api_error::ApiError;
use crate::server_health::ServerHealth;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::sync::lock_mutex;
use hyper::body::Frame;
use model::install_report::{EventName, ProgressEvent};
use serde::Serialize;
use serde_json::json;
use site::snapshot::SiteSnapshot;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::watch as published;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Maximum number of pages that receive live updates at the same time.
pub(crate) const WATCHERS: usize = 64;
const EVERY: Duration = Duration::from_millis(500);
/// Number of ticks without an update after which a keepalive is sent, so that the server notices a watcher that has disconnected.
const QUIET: u32 = 30;
/// Maximum number of machines whose state is stored. When this number is exceeded, half of the states are discarded:
/// those of the machines that have been silent longest.
const MACHINES: usize = 16 << 10;

/// Current states of machines. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct LiveUpdates(Arc<Mutex<LiveStates>>);

#[derive(Default)]
struct LiveStates {
    version: u64,
    machines: HashMap<String, LiveState>,
    watchers: usize,
}

struct LiveState {
    version: u64,
    /// Value of `LiveStates::version` when the console log of the machine last grew.
    logged: u64,
    /// Last progress event; `None` if a change that is not a progress event has followed.
    event: Option<ProgressEvent>,
    at: Instant,
}

impl LiveUpdates {
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

    pub(crate) fn record_event(&self, machine: &str, event: &ProgressEvent) {
        self.set_state(machine, Some(event.clone()));
    }

    /// Records a change that is not a progress event, for example an order or a report.
    pub(crate) fn record_change(&self, machine: &str) {
        self.set_state(machine, None);
    }

    /// Records that the console log has grown. This does not change the machine's state.
    pub(crate) fn record_log(&self, machine: &str) {
        let mut picture = lock_mutex(&self.0);
        picture.version += 1;
        let version = picture.version;
        if let Some(now) = picture.machines.get_mut(machine) {
            now.logged = version;
        }
    }

    /// Returns the machine's last progress event, and the age of this event.
    pub(crate) fn last_event(&self, machine: &str) -> Option<(ProgressEvent, Duration)> {
        let picture = lock_mutex(&self.0);
        let now = picture.machines.get(machine)?;
        Some((now.event.clone()?, now.at.elapsed()))
    }

    /// Registers a watcher. Returns `None` if [`WATCHERS`] watchers are registered already.
    pub(crate) fn add_watcher(&self) -> Option<WatcherPlace> {
        let mut picture = lock_mutex(&self.0);
        (picture.watchers < WATCHERS).then(|| picture.watchers += 1)?;
        Some(WatcherPlace { live: self.clone(), seen: picture.version })
    }
}

/// Registration of a watcher, which ends when this value is dropped.
pub(crate) struct WatcherPlace {
    live: LiveUpdates,
    seen: u64,
}

impl WatcherPlace {
    /// Returns the changes since the previous call, one per machine.
    fn take_updates(&mut self) -> Vec<MachineUpdate> {
        let picture = lock_mutex(&self.live.0);
        if picture.version == self.seen {
            return Vec::new();
        }
        let new = picture.machines.iter().filter(|(_, now)| now.version.max(now.logged) > self.seen);
        let moved = |(id, now): (&String, &LiveState)| MachineUpdate {
            log: now.logged > self.seen,
            ..MachineUpdate::new(id, now.event.as_ref())
        };
        let moved = new.map(moved).collect();
        self.seen = picture.version;
        moved
    }
}

impl Drop for WatcherPlace {
    fn drop(&mut self) {
        lock_mutex(&self.live.0).watchers -= 1;
    }
}

/// Update of a machine, which is sent to watchers and shown in the machine's row of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MachineUpdate {
    pub id: String,
    /// True if the row must be fetched again, because this update does not contain all changes.
    pub whole: bool,
    /// True if the console log has grown.
    pub log: bool,
    pub phase: String,
    /// Stage of the installation, followed by a message or by the amount of data processed so far.
    pub what: String,
    pub percent: Option<u8>,
    pub rate: String,
    pub left: String,
}

impl MachineUpdate {
    pub(crate) fn new(id: &str, event: Option<&ProgressEvent>) -> MachineUpdate {
        let id = id.to_owned();
        let Some(event) = event else { return MachineUpdate { id, whole: true, ..MachineUpdate::default() } };
        let progress = event.progress.unwrap_or_default();
        let total = progress.total_bytes.filter(|total| *total > 0);
        let percent = total.map(|total| (u128::from(progress.bytes.min(total)) * 100 / u128::from(total)) as u8);
        let said = match event.progress {
            Some(progress) => common::format::format_bytes(progress.bytes),
            None => event.message.lines().next().unwrap_or_default().to_owned(),
        };
        let stage = event.stage.clone().unwrap_or_default();
        let is_flushing = progress.is_flushing();
        let rate = event
            .progress
            .filter(|_| !is_flushing)
            .map(|progress| format!("{}/s", common::format::format_bytes(progress.bytes_per_second)));
        let left = match is_flushing {
            true => Some("flushing".to_owned()),
            false => progress.seconds_left.map(|left| common::format::format_seconds(left as f64)),
        };
        MachineUpdate {
            id,
            whole: event.event != EventName::Installing,
            log: false,
            phase: DisplayPhase::of_event(event.event).word.to_owned(),
            what: [stage, said].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "),
            percent,
            rate: rate.unwrap_or_default(),
            left: left.unwrap_or_default(),
        }
    }
}

/// `GET /events`: stream of live updates.
pub(crate) async fn get_events(State(app): State<Arc<AppState>>, person: LoggedIn) -> Response {
    let Some(place) = app.watch.live.add_watcher() else {
        let why = format!(
            "{WATCHERS} pages already receive live updates: this page shows the state at the time when it was loaded"
        );
        return page_frame::render_error(&app, Some(&person), ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut closing = app.closing.clone();
    let stream = EventStream {
        shape: hash_directory(&app.directory(), &app.counters.health),
        problems: app.counters.health.problems(),
        health: app.counters.health.clone(),
        directory: app.directory.clone(),
        place,
        tick,
        quiet: QUIET,
        closing: Box::pin(async move { drop(closing.wait_for(|closing| *closing).await) }),
        sessions: app.page.sessions.clone(),
        person,
    };
    let types = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    page_frame::with_headers((types, Body::new(stream)).into_response())
}

/// Stream of updates to one watcher. The stream ends when the login session ends or the server exits.
struct EventStream {
    place: WatcherPlace,
    directory: published::Receiver<Arc<SiteSnapshot>>,
    health: ServerHealth,
    /// Problems of the server itself that were last sent to the watcher.
    problems: Vec<String>,
    /// Hash of the directory's content and of all problems when they were last sent to the watcher.
    shape: u64,
    tick: Interval,
    /// Number of ticks since the last transmission.
    quiet: u32,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    sessions: LoginSessions,
    person: LoggedIn,
}

impl EventStream {
    fn next_message(&mut self) -> String {
        let mut text = String::new();
        let moved = self.place.take_updates();
        if !moved.is_empty() {
            text += &format!("event: machines\ndata: {}\n\n", json!(moved));
        }
        let problems = self.health.problems();
        if self.directory.has_changed().unwrap_or_default() || problems != self.problems {
            let directory = self.directory.borrow_and_update().clone();
            let shape = hash_directory(&directory, &self.health);
            if std::mem::replace(&mut self.shape, shape) != shape {
                let all = page_frame::list_problems(&self.health, &directory.problems);
                text += &format!("event: directory\ndata: {}\n\n", json!({ "problems": all }));
            }
            self.problems = problems;
        }
        text
    }
}

/// Returns a hash of all problems, and of everything in the directory that the pages show.
fn hash_directory(directory: &SiteSnapshot, health: &ServerHealth) -> u64 {
    let mut hasher = DefaultHasher::new();
    page_frame::list_problems(health, &directory.problems).hash(&mut hasher);
    let mut machines: Vec<_> = directory.machines().collect();
    machines.sort_by_key(|machine| &machine.id);
    for machine in machines {
        let wanted = machine.allocation.as_ref().map(|wanted| (wanted.id.as_str(), wanted.image.as_str()));
        (&machine.id, &machine.name, &machine.locked, wanted).hash(&mut hasher);
    }
    hasher.finish()
}

impl hyper::body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if self.closing.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            std::task::ready!(self.tick.poll_tick(context));
            if !self.sessions.is_valid(&self.person.session) {
                return Poll::Ready(None);
            }
            let mut text = self.next_message();
            self.quiet += 1;
            if text.is_empty() && self.quiet > QUIET {
                ":\n\n".clone_into(&mut text);
            }
            if !text.is_empty() {
                self.quiet = 0;
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::TransferProgress;

    fn event(bytes: u64) -> ProgressEvent {
        let progress =
            TransferProgress { bytes, total_bytes: Some(200), bytes_per_second: 31_000_000, seconds_left: Some(3) };
        let stage = Some("image.burn".to_owned());
        let message = String::new();
        ProgressEvent { event: EventName::Installing, message, stage, seconds: None, progress: Some(progress) }
    }

    #[test]
    fn a_watcher_is_told_the_last_state_once() {
        let live = LiveUpdates::default();
        live.record_event("a", &event(1));
        let mut place = live.add_watcher().unwrap();
        assert_eq!(place.take_updates(), [], "what was before is on the page already");
        (1..=150).for_each(|bytes| live.record_event("a", &event(bytes)));
        let moved = MachineUpdate {
            id: "a".to_owned(),
            whole: false,
            log: false,
            phase: "installing".to_owned(),
            what: "image.burn: 150 B".to_owned(),
            percent: Some(75),
            rate: "31.0 MB/s".to_owned(),
            left: "3.0 s".to_owned(),
        };
        assert_eq!(place.take_updates(), std::slice::from_ref(&moved));
        assert_eq!(place.take_updates(), []);
        live.record_event("a", &event(200));
        let flushing = place.take_updates().remove(0);
        assert_eq!((flushing.rate.as_str(), flushing.left.as_str()), ("", "flushing"));
        live.record_event("a", &event(150));
        assert_eq!(place.take_updates(), std::slice::from_ref(&moved));
        live.record_log("a");
        live.record_log("nobody");
        assert_eq!(place.take_updates(), [MachineUpdate { log: true, ..moved }], "what it does has not changed");
        assert_eq!(place.take_updates(), []);
        live.record_change("b");
        assert!(place.take_updates().iter().all(|moved| moved.id == "b" && moved.whole));
    }

    #[test]
    fn watchers_and_machines_are_bounded() {
        let live = LiveUpdates::default();
        let places: Vec<_> = (0..WATCHERS + 5).map_while(|_| live.add_watcher()).collect();
        assert_eq!(places.len(), WATCHERS);
        drop(places);
        assert!(live.add_watcher().is_some());
        (0..MACHINES + 5).for_each(|machine| live.record_change(&machine.to_string()));
        assert!(lock_mutex(&live.0).machines.len() <= MACHINES);
        live.record_event("last", &event(1));
        assert!(live.last_event("last").is_some());
    }
}
