//! `/`: the list of machines, with one row per machine. `machine_list_query` filters and sorts the rows.

use super::hardware_identifiers::{HardwareIdentifiers, read_identifiers};
use super::live_update_stream::MachineUpdate;
use super::machine_list_query::{MachineListQuery, SortColumn};
use super::page_frame;
use super::rack_drawing::{MachineSquare, draw_machines};
use super::session::LoggedIn;
use super::static_addresses::list_static_addresses;
use api::AppState;
use api::access;
use api::display_phase::{DisplayPhase, FILE_ERROR, ObjectFate, find_live_event};
use api::operator_api::{self, MachineFailure, MachineSummary};
use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use common::format::{format_count, natural_sort_key};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Minimum age of a progress event, in seconds, at which the event's rate and remaining time are no longer shown. An
/// agent sends an event every second.
const MAXIMUM_PROGRESS_AGE_SECONDS: u64 = 30;

/// Titles of the columns, each with the sort order that a click on the title selects; `None` if the title is not
/// clickable.
const COLUMNS: [(&str, Option<SortColumn>); 7] = [
    ("Machine", Some(SortColumn::Name)),
    ("Phase", Some(SortColumn::Phase)),
    ("Image", Some(SortColumn::Image)),
    ("Progress", Some(SortColumn::Progress)),
    ("Rate", None),
    ("Left", None),
    ("Last seen", Some(SortColumn::Seen)),
];

/// Contents of a machine's row.
pub(crate) struct MachineRow {
    pub listed: MachineSummary,
    /// Id of the image in the machine file.
    pub wanted: Option<String>,
    /// Id of the installed layout or, if nothing is installed, of the layout in the machine file.
    pub layout: Option<String>,
    pub phase: DisplayPhase,
    /// Progress of a running operation, or the last event of a failed operation.
    pub moved: Option<MachineUpdate>,
    /// Description of the machine's open migration; `None` if no migration is open.
    pub moving: Option<String>,
    /// MAC addresses, IP addresses in the machine file, and serial numbers, for the filter of the list.
    pub identifiers: Vec<String>,
}

impl MachineRow {
    pub(crate) fn new(app: &AppState, listed: MachineSummary) -> MachineRow {
        let directory = app.directory();
        let machine = directory.find_machine(&listed.id);
        let wanted = machine.and_then(|machine| machine.allocation.as_ref());
        let layout = listed.layout.clone().or_else(|| Some(wanted?.filesystemlayout.as_ref()?.to_string()));
        let mut identifiers = machine.map(|machine| machine.macs.clone()).unwrap_or_default();
        identifiers.extend(wanted.iter().flat_map(|allocation| list_static_addresses(&allocation.passed_on)));
        let wanted = wanted.map(|allocation| allocation.image.as_str().to_owned());
        let live = find_live_event(app, &listed);
        let phase = DisplayPhase::current(app, &listed);
        let moved = live.filter(|_| matches!(phase.kind, ObjectFate::Busy | ObjectFate::Bad)).map(|(event, ago)| {
            let moved = MachineUpdate::new(&listed.id, Some(&event));
            match ago.as_secs() {
                ..MAXIMUM_PROGRESS_AGE_SECONDS => moved,
                silent => {
                    let left = format!("silent for {}", common::format::format_seconds(silent as f64));
                    MachineUpdate { rate: String::new(), left, ..moved }
                }
            }
        });
        let moving = listed.moving.as_ref().map(|moving| moving.describe(directory.display_name(&moving.other)));
        MachineRow { listed, wanted, layout, phase, moved, moving, identifiers }
    }

    /// Adds identifiers of the registered hardware to the identifiers from the machine file.
    fn with_identifiers(mut self, registered: Vec<String>) -> MachineRow {
        self.identifiers.extend(registered);
        self
    }

    pub(crate) fn name(&self) -> &str {
        self.listed.display_name()
    }

    /// Returns the reason why the last attempt has failed, unless another attempt is in progress.
    pub(crate) fn failure(&self) -> Option<&MachineFailure> {
        self.listed.failure.as_ref().filter(|_| self.phase.kind != ObjectFate::Busy)
    }

    pub(crate) fn markup(&self) -> Markup {
        let MachineSummary { id, image, order, last_seen, locked, outcome, .. } = &self.listed;
        let failed = outcome.as_ref().filter(|outcome| !outcome.success && order.is_none());
        html! {
            tr data-id=(id) data-find=(self.filter_text()) class=(self.phase.kind.css_class()) {
                td.select { @if !self.listed.new && !self.listed.unusable {
                    input type="checkbox" name="machine" value=(id) form="bulk" aria-label={ "Select " (self.name()) };
                } }
                td.name { a href={ "/machines/" (id) } { (self.name()) } }
                td.phase {
                    span.word { (self.phase.word) }
                    @if let Some(moving) = &self.moving { " " span.tag { (moving) } }
                    @if locked.is_some() { " " span.tag { "locked" } }
                    @if let Some(failed) = failed { " " span.tag.bad title=(page_frame::reword_message(&failed.message)) { "last reinstall failed" } }
                    @if let Some(error) = &self.listed.file_error {
                        @if !self.listed.unusable { " " span.tag.bad { (FILE_ERROR) } }
                        div.reason.words { (page_frame::reword_message(&access::visible_file_error(error))) }
                    }
                    @if self.listed.new { " " a href={ "/machines/" (id) "/add" } { "Add…" } }
                }
                td.image {
                    @match (image, &self.wanted, order) {
                        (Some(image), _, Some(order)) => { (image) " → " (order.image) }
                        (Some(image), _, None) => { (image) }
                        (None, Some(wanted), _) => { span.faint { "wanted: " } (wanted) }
                        (None, None, _) => {}
                    }
                }
                (self.show_activity())
                td.seen { @if let Some(seen) = last_seen { (page_frame::show_age(seen)) } }
            }
        }
    }

    /// Returns the reason that the list shows for a failed machine. Before the final report, the reason is the last
    /// event.
    fn failure_reason(&self) -> Option<String> {
        let reported = self.failure().map(|failure| page_frame::reword_message(&failure.attempt.to_string()));
        let event = self.moved.as_ref().filter(|moved| self.phase.kind == ObjectFate::Bad && !moved.what.is_empty());
        reported.or_else(|| event.map(|event| event.what.clone()))
    }

    /// Shows the reason of a failure, or the progress of a running operation.
    fn show_activity(&self) -> Markup {
        let moved = self.moved.clone().unwrap_or_default();
        html! {
            @if let Some(reason) = self.failure_reason() {
                td.reason.words { (reason) }
            } @else {
                td.progress {
                    progress max="100" value=[moved.percent] hidden[moved.percent.is_none()]
                        aria-label={ "Progress of " (self.name()) } {}
                    span.percent { @if let Some(percent) = moved.percent { (percent) " %" } }
                    span.what { (moved.what) }
                }
                td.rate { (moved.rate) }
                td.left { (moved.left) }
            }
        }
    }

    /// Returns the text that the page's filter searches, in lower case and without duplicates.
    pub(crate) fn filter_text(&self) -> String {
        let MachineSummary { id, name, image, wanted, address, size, .. } = &self.listed;
        let known = [image, &self.wanted, wanted, &self.layout, address, size].into_iter().flatten();
        let all = [name, id].into_iter().chain(known).chain(&self.identifiers).map(|text| text.to_lowercase());
        let mut words: Vec<String> = Vec::new();
        for text in all.chain([self.phase.word.to_lowercase()]).filter(|text| !text.is_empty()) {
            if !words.contains(&text) {
                words.push(text);
            }
        }
        words.join(" ")
    }
}

/// `GET /`: shows the list of machines.
pub(crate) async fn get_machines(
    State(app): State<Arc<AppState>>,
    Extension(identifiers): Extension<HardwareIdentifiers>,
    person: LoggedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let query = MachineListQuery::parse(query.as_deref());
    let mut rows = list_rows(&app, &identifiers).await.map_err(refused)?;
    query.sort_rows(&mut rows);
    let failed = rows.iter().filter(|row| row.phase.kind == ObjectFate::Bad).count();
    let title = if failed == 0 { "Machines".to_owned() } else { format!("({failed}) Machines") };
    Ok(page_frame::render_page(&app, &person, &title, "/", show_list(&app, &person, &rows, &query)))
}

async fn list_rows(app: &AppState, identifiers: &HardwareIdentifiers) -> Result<Vec<MachineRow>, ApiError> {
    // An error is ignored, so that the list is available even if the planner is busy. Without the identifiers, the
    // filter finds fewer machines.
    let mut identifiers = identifiers.list_all(app).await.unwrap_or_default();
    let listed = operator_api::list_with_new_machines(app).await?;
    let rows = listed.into_iter().map(|listed| {
        let identifiers = identifiers.remove(&listed.id).unwrap_or_default();
        MachineRow::new(app, listed).with_identifiers(identifiers)
    });
    Ok(rows.collect())
}

fn show_list(app: &AppState, person: &LoggedIn, rows: &[MachineRow], query: &MachineListQuery) -> Markup {
    let shown: Vec<&MachineRow> = rows.iter().filter(|row| query.matches(row)).collect();
    let all = format_count(rows.len(), "machine", "machines");
    html! {
        div.head {
            h1 #count { @if shown.len() < rows.len() { (shown.len()) " of " } (all) }
            form.filter role="search" action="/" {
                label.faint for="filter" { "Filter" }
                input #filter type="search" name="q" value=(query.text) autocomplete="off" aria-keyshortcuts="/"
                    placeholder="name, MAC, serial, IP, image, …";
                @for (name, value) in [("phase", query.phase.as_str()), ("sort", &query.sort_word())] {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                }
                button.quiet { "Filter" }
            }
        }
        p #phases data-phase=(query.phase) { (show_phases(rows, query)) }
        (draw_rack(rows, query))
        @if person.is_operator() { (show_bulk_form(app, person)) }
        table.machines {
            thead { tr { th.select { input #all type="checkbox" aria-label="Select all machines in the list" hidden; } @for (name, column) in COLUMNS { (show_column(query, name, column)) } } }
            tbody #machines { @for row in shown { (row.markup()) } }
        }
        p #none hidden[!rows.is_empty()] {
            "No machines yet. A machine that boots over PXE registers, waits, and appears in this list as " em { "new" } "."
        }
    }
}

/// Draws all machines in the order of their names. Machines that do not match the query are pale.
fn draw_rack(rows: &[MachineRow], query: &MachineListQuery) -> Markup {
    let mut sorted: Vec<&MachineRow> = rows.iter().collect();
    sorted.sort_by_cached_key(|row| natural_sort_key(row.name()));
    draw_machines(sorted.into_iter().map(|row| MachineSquare {
        path: format!("/machines/{}", row.listed.id),
        name: row.name(),
        state: row.phase.word,
        class: row.phase.kind.css_class(),
        matches: query.matches(row),
    }))
}

/// Shows the form for actions on the selected machines. The checkboxes in the rows belong to this form.
fn show_bulk_form(app: &AppState, person: &LoggedIn) -> Markup {
    html! {
        form #bulk method="post" action="/bulk/review" {
            (page_frame::form_token(person))
            label.faint for="action" #selected { "Selected machines" }
            select #action name="action" {
                option value="reinstall" { "Reinstall with" }
                option value="allocate" { "Allocate with" }
                option value="cancel" { "Cancel the order" }
                option value="free" { "Free" }
                option value="lock" { "Lock" }
                option value="unlock" { "Unlock" }
                option value="on" { "Switch on" }
                option value="cycle" { "Switch off and on" }
                option value="off" { "Switch off" }
                option value="pxe" { "Boot over PXE next time" }
            }
            select name="image" aria-label="Image to install" {
                option value="" { "image" }
                @for image in app.directory().known.listed_images() { option value=(image) { (image) } }
            }
            button.quiet { "Review…" }
        }
    }
}

/// Shows the number of machines in each phase, as links to lists of these machines. Counts only machines that match
/// the filter.
fn show_phases(rows: &[MachineRow], query: &MachineListQuery) -> Markup {
    let mut phases: BTreeMap<&str, (usize, ObjectFate)> = BTreeMap::new();
    for row in rows.iter().filter(|row| query.matches_text(row)) {
        phases.entry(row.phase.word).or_insert((0, row.phase.kind)).0 += 1;
    }
    html! {
        @if !query.phase.is_empty() { a href=(query.url_with_phase("")) { "all" } " · " }
        @for (word, (count, kind)) in &phases {
            a.phase.(kind.css_class()) href=(query.url_with_phase(word)) aria-current=[(*word == query.phase).then_some("true")] {
                span.word { (word) } " " (count)
            } " "
        }
    }
}

fn show_column(query: &MachineListQuery, name: &str, column: Option<SortColumn>) -> Markup {
    html! {
        th scope="col" aria-sort=[column.and_then(|column| query.aria_sort(column))] {
            @if let Some(column) = column { a href=(query.url_sorted_by(column)) { (name) } } @else { (name) }
        }
    }
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
        Some(machine) => operator_api::summarize_machine(&app, machine).await,
        None => operator_api::summarize_new_machine(&app, &id).await.and_then(|listed| listed.ok_or_else(unknown)),
    };
    let identifiers = read_identifiers(&app, &id).await.unwrap_or_default();
    let row = MachineRow::new(&app, listed.map_err(refused)?).with_identifiers(identifiers);
    Ok(page_frame::html_response(StatusCode::OK, &row.markup()))
}
