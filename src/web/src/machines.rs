//! `/`: the list of machines, with one row per machine.

use super::form::SubmittedForm;
use super::live_updates::MachineUpdate;
use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use api::display_phase::{self, DisplayPhase, ObjectFate};
use api::operator::{self, MachineFailure, MachineSummary};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use common::format::{format_count, natural_sort_key};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Age of a progress event in seconds above which the rate and the remaining time in the event are no longer shown. An
/// agent sends an event every second.
const FRESH_SECONDS: u64 = 30;

/// Contents of a machine's row.
pub(crate) struct MachineRow {
    pub listed: MachineSummary,
    /// Id of the image in the machine file.
    pub wanted: Option<String>,
    pub phase: DisplayPhase,
    /// Progress of a running operation, or the last event of a failed one.
    pub moved: Option<MachineUpdate>,
    /// Description of the machine's open migration; `None` if no migration is open.
    pub moving: Option<String>,
}

impl MachineRow {
    pub(crate) fn new(app: &AppState, listed: MachineSummary) -> MachineRow {
        let machine = app.directory();
        let wanted = machine.find_machine(&listed.id).and_then(|machine| machine.allocation.as_ref());
        let wanted = wanted.map(|allocation| allocation.image.as_str().to_owned());
        let live = app.watch.live.last_event(&listed.id);
        let phase = DisplayPhase::current(app, &listed);
        let moved = live.filter(|_| matches!(phase.kind, ObjectFate::Busy | ObjectFate::Bad)).map(|(event, ago)| {
            let moved = MachineUpdate::new(&listed.id, Some(&event));
            match ago.as_secs() {
                ..FRESH_SECONDS => moved,
                silent => {
                    let left = format!("silent for {}", common::format::format_seconds(silent as f64));
                    MachineUpdate { rate: String::new(), left, ..moved }
                }
            }
        });
        let moving = listed.moving.as_ref().map(|moving| moving.describe(machine.display_name(&moving.other)));
        MachineRow { listed, wanted, phase, moved, moving }
    }

    fn name(&self) -> &str {
        self.listed.display_name()
    }

    /// Returns the reason why the last attempt has failed, unless another attempt is in progress.
    pub(crate) fn failure(&self) -> Option<&MachineFailure> {
        self.listed.failure.as_ref().filter(|_| self.phase.kind != ObjectFate::Busy)
    }

    fn matches_filter(&self, text: &str, phase: &str) -> bool {
        let text = text.to_lowercase();
        let MachineSummary { id, name, image, .. } = &self.listed;
        let all = [Some(id), Some(name), image.as_ref(), self.wanted.as_ref()];
        let has = all.into_iter().flatten().any(|field| field.to_lowercase().contains(&text));
        has && (phase.is_empty() || phase == self.phase.word)
    }

    pub(crate) fn markup(&self) -> Markup {
        let MachineSummary { id, image, order, last_seen, locked, outcome, .. } = &self.listed;
        let moved = self.moved.clone().unwrap_or_default();
        let failed = outcome.as_ref().filter(|outcome| !outcome.success && order.is_none());
        html! {
            tr data-id=(id) data-find=(self.filter_text()) class=(self.phase.kind.css_class()) {
                td.name { a href={ "/machines/" (id) } { (self.name()) } }
                td.phase {
                    span.word { (self.phase.word) }
                    @if let Some(moving) = &self.moving { " " span.tag { (moving) } }
                    @if locked.is_some() { " " span.tag { "locked" } }
                    @if let Some(failed) = failed { " " span.tag.bad title=(failed.message) { "last reinstall failed" } }
                    @if self.listed.new { " " a href={ "/machines/" (id) "/add" } { "Add…" } }
                    @if let Some(failure) = self.failure() { div.reason.words { (failure.attempt) } }
                }
                td.image {
                    @match (image, &self.wanted, order) {
                        (Some(image), _, Some(order)) => { (image) " → " (order.image) }
                        (Some(image), _, None) => { (image) }
                        (None, Some(wanted), _) => { span.faint { "wanted: " } (wanted) }
                        (None, None, _) => {}
                    }
                }
                td.progress {
                    progress max="100" value=[moved.percent] hidden[moved.percent.is_none()]
                        aria-label={ "Progress of " (self.name()) } {}
                    span.percent { @if let Some(percent) = moved.percent { (percent) " %" } }
                    span.what { (moved.what) }
                }
                td.rate { (moved.rate) }
                td.left { (moved.left) }
                td.seen { @if let Some(seen) = last_seen { (page_frame::show_time(seen)) } }
            }
        }
    }

    /// Returns the text that the page's filter searches, in lower case.
    fn filter_text(&self) -> String {
        let MachineSummary { id, name, image, .. } = &self.listed;
        let all = [Some(id), Some(name), image.as_ref(), self.wanted.as_ref()];
        all.into_iter().flatten().map(|text| text.to_lowercase()).collect::<Vec<_>>().join(" ")
    }
}

/// `GET /`: shows the list of machines.
pub(crate) async fn get_machines(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let query = SubmittedForm::parse_query(query.as_deref());
    let (text, phase) = (query.get("q").trim(), display_phase::current_word(query.get("phase")));
    let rows = operator::list_with_new_machines(&app).await.map_err(refused)?;
    let mut rows: Vec<MachineRow> = rows.into_iter().map(|listed| MachineRow::new(&app, listed)).collect();
    rows.sort_by(|one, other| natural_sort_key(one.name()).cmp(&natural_sort_key(other.name())));
    let mut phases: BTreeMap<&str, (usize, ObjectFate)> = BTreeMap::new();
    for row in &rows {
        phases.entry(row.phase.word).or_insert((0, row.phase.kind)).0 += 1;
    }
    let main = html! {
        div.head {
            h1 { (format_count(rows.len(), "machine", "machines")) }
            form.filter role="search" action="/" {
                label.faint for="filter" { "Filter" }
                input #filter type="search" name="q" value=(text) autocomplete="off" aria-keyshortcuts="/";
                button.quiet { "Filter" }
            }
        }
        p #phases {
            @if !phase.is_empty() { a href="/" { "all" } " · " }
            @for (word, (count, kind)) in &phases {
                a.phase.(kind.css_class()) href={ "/?" (phase_query(word)) } { span.word { (word) } " " (count) } " "
            }
        }
        table.machines {
            thead {
                tr {
                    @for name in ["Machine", "Phase", "Image", "Progress", "Rate", "Left", "Last seen (UTC)"] {
                        th scope="col" { (name) }
                    }
                }
            }
            tbody #machines {
                @for row in rows.iter().filter(|row| row.matches_filter(text, phase)) { (row.markup()) }
            }
        }
        @if rows.is_empty() {
            p { "No machines yet. A machine that boots over PXE registers, waits, and appears in this list as "
                em { "new" } "." }
        }
    };
    Ok(page_frame::render_page(&app, &person, "Machines", "/", main))
}

fn phase_query(phase: &str) -> String {
    serde_urlencoded::to_string([("phase", phase)]).unwrap_or_default()
}

/// `GET /machines/{id}/row`: a single row. The page requests the row when more than the progress of the machine has
/// changed.
pub(crate) async fn get_row(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let directory = app.directory();
    let id = id.to_lowercase();
    let unknown = || ApiError::not_found(format!("machines/ contains no machine {id}"));
    let listed = match directory.find_machine(&id) {
        Some(machine) => operator::summarize_machine(&app, machine).await,
        None => operator::summarize_new_machine(&app, &id).await.and_then(|listed| listed.ok_or_else(unknown)),
    };
    let listed = listed.map_err(refused)?;
    Ok(page_frame::html_response(StatusCode::OK, &MachineRow::new(&app, listed).markup()))
}
