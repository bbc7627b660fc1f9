//! Live updates of pages with server-sent events. The server sends the changes of machines to watchers twice a second.

use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use api::access::RequestActor;
use api::display_phase::DisplayPhase;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;
use http_server::live_machine_states::{MachineChange, WATCHERS, WATCHERS_PER_USER, WatcherRegistration};
use http_server::server_health::ServerHealth;
use hyper::body::Frame;
use model::install_report::{EventName, ProgressEvent};
use serde::Serialize;
use serde_json::json;
use site::snapshot::SiteSnapshot;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store::token_hash::TokenHash;
use store::user_tokens::TokenVerdict;
use tokio::sync::watch as published;
use tokio::time::{Interval, MissedTickBehavior, interval};

const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of ticks without an update after which a keepalive is sent. A failed keepalive reveals a watcher that has
/// disconnected.
const KEEPALIVE_TICKS: u32 = 30;
/// Last message of a stream whose session has ended. The page then shows the login form.
const SESSION_END: &str = "event: logout\ndata: {}\n\n";

/// Update of a machine, which is sent to watchers and shown in the machine's row in the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MachineUpdate {
    pub id: String,
    /// True if the row must be fetched again, because this update does not contain all changes.
    pub whole: bool,
    /// True if the console log has grown.
    pub log: bool,
    pub phase: String,
    /// Stage of the installation, followed by a message or by the amount of processed data.
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
            None => page_frame::reword_message(event.message.lines().next().unwrap_or_default()),
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

impl From<MachineChange> for MachineUpdate {
    fn from(change: MachineChange) -> MachineUpdate {
        MachineUpdate { log: change.has_new_log, ..MachineUpdate::new(&change.machine, change.event.as_ref()) }
    }
}

/// `GET /events`: stream of live updates.
pub(crate) async fn get_events(State(app): State<Arc<AppState>>, person: LoggedIn) -> Response {
    let Some(place) = app.watch.live.add_watcher(&person.identity.user) else {
        let why = format!(
            "{WATCHERS_PER_USER} pages of this user, or {WATCHERS} pages of all users, already receive live updates: this page shows the state at the time when it was loaded"
        );
        return page_frame::render_error(&app, Some(&person), ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let mut tick = interval(TICK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut closing = app.closing.clone();
    let stream = EventStream {
        shape: hash_directory(&app.directory(), &page_frame::list_visible_problems(&app, &person)),
        problems: app.counters.health.problems(),
        health: app.counters.health.clone(),
        directory: app.directory.clone(),
        app: app.clone(),
        place,
        tick,
        quiet: KEEPALIVE_TICKS,
        closing: Box::pin(async move { drop(closing.wait_for(|closing| *closing).await) }),
        session_check: verify_later(app, person.session),
        has_ended: false,
        person,
    };
    let types = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    page_frame::with_headers((types, Body::new(stream)).into_response())
}

/// Stream of updates to one watcher. The stream ends when the login session ends or the server exits.
struct EventStream {
    place: WatcherRegistration,
    directory: published::Receiver<Arc<SiteSnapshot>>,
    health: ServerHealth,
    /// Problems of the server itself that were last sent to the watcher.
    problems: Vec<String>,
    /// Hash that [`hash_directory`] returned for the state last sent to the watcher.
    shape: u64,
    tick: Interval,
    /// Number of ticks since the last transmission.
    quiet: u32,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    app: Arc<AppState>,
    person: LoggedIn,
    session_check: SessionCheck,
    /// True after the last message, which reports the end of the session.
    has_ended: bool,
}

/// Next verification of the session. Regular verifications are needed because the token may expire, or another server
/// may disable the user, while the session sends no request.
type SessionCheck = Pin<Box<dyn Future<Output = common::error::Result<TokenVerdict>> + Send>>;

fn verify_later(app: Arc<AppState>, session: TokenHash) -> SessionCheck {
    Box::pin(async move {
        tokio::time::sleep(app.session_interval).await;
        app.sessions.verify_session(&app, session).await
    })
}

impl EventStream {
    /// Returns whether the session is valid. Also updates the permissions of the user at each verification.
    fn is_session_valid(&mut self, context: &mut Context) -> bool {
        if let Poll::Ready(verdict) = self.session_check.as_mut().poll(context) {
            self.session_check = verify_later(self.app.clone(), self.person.session);
            match verdict {
                Ok(TokenVerdict::Valid(identity)) => self.person.identity = identity,
                Ok(TokenVerdict::Refused { .. } | TokenVerdict::Unknown) => return false,
                // If the database is unavailable, the stream continues. Requests of the session fail with the reason.
                Err(_) => {}
            }
        }
        self.app.sessions.is_valid(&self.person.session)
    }

    /// Returns a message with all changes since the previous call, except changes that the user may not see.
    fn next_message(&mut self) -> String {
        let actor = RequestActor { identity: Some(self.person.identity.clone()), ..RequestActor::default() };
        actor.run_blocking(|| self.collect_changes())
    }

    fn collect_changes(&mut self) -> String {
        let mut text = String::new();
        let visible = self.app.directory();
        let may_see = |id: &str| !self.person.identity.is_restricted() || visible.find_machine(id).is_some();
        let changes = self.place.take_changes().into_iter().filter(|change| may_see(&change.machine));
        let moved: Vec<_> = changes.map(MachineUpdate::from).collect();
        if !moved.is_empty() {
            text += &format!("event: machines\ndata: {}\n\n", json!(moved));
        }
        let problems = self.health.problems();
        if self.directory.has_changed().unwrap_or_default() || problems != self.problems {
            self.directory.mark_unchanged();
            let all = page_frame::list_visible_problems(&self.app, &self.person);
            let shape = hash_directory(&visible, &all);
            if std::mem::replace(&mut self.shape, shape) != shape {
                text += &format!("event: directory\ndata: {}\n\n", json!({ "problems": all }));
            }
            self.problems = problems;
        }
        text
    }
}

/// Returns a hash of the problems, and of those properties of the machines that the pages show.
fn hash_directory(directory: &SiteSnapshot, problems: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    problems.hash(&mut hasher);
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
            if self.has_ended || self.closing.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            std::task::ready!(self.tick.poll_tick(context));
            if !self.is_session_valid(context) {
                self.has_ended = true;
                return Poll::Ready(Some(Ok(Frame::data(SESSION_END.into()))));
            }
            let mut text = self.next_message();
            self.quiet += 1;
            if text.is_empty() && self.quiet > KEEPALIVE_TICKS {
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
    use http_server::live_machine_states::LiveMachineStates;
    use model::install_report::TransferProgress;

    fn event(bytes: u64) -> ProgressEvent {
        let progress =
            TransferProgress { bytes, total_bytes: Some(200), bytes_per_second: 31_000_000, seconds_left: Some(3) };
        let stage = Some("image.burn".to_owned());
        let message = String::new();
        ProgressEvent { event: EventName::Installing, message, stage, seconds: None, progress: Some(progress) }
    }

    fn take_updates(place: &mut WatcherRegistration) -> Vec<MachineUpdate> {
        place.take_changes().into_iter().map(MachineUpdate::from).collect()
    }

    #[test]
    fn watcher_receives_each_state_once() {
        let live = LiveMachineStates::default();
        live.record_event("a", &event(1));
        let mut place = live.add_watcher("ann").unwrap();
        assert_eq!(take_updates(&mut place), [], "earlier lines are already on the page");
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
        assert_eq!(take_updates(&mut place), std::slice::from_ref(&moved));
        assert_eq!(take_updates(&mut place), []);
        live.record_event("a", &event(200));
        let flushing = take_updates(&mut place).remove(0);
        assert_eq!((flushing.rate.as_str(), flushing.left.as_str()), ("", "flushing"));
        live.record_event("a", &event(150));
        assert_eq!(take_updates(&mut place), std::slice::from_ref(&moved));
        live.record_log("a");
        live.record_log("nobody");
        assert_eq!(
            take_updates(&mut place),
            [MachineUpdate { log: true, ..moved }],
            "the state of the machine has not changed"
        );
        assert_eq!(take_updates(&mut place), []);
        live.record_change("b");
        assert!(take_updates(&mut place).iter().all(|moved| moved.id == "b" && moved.whole));
    }
}
