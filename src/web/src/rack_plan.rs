//! `/plan`: the plans of all machines, as `drophammer site plan` prints them. Shows what each machine would lose and
//! preserve with the present files and open orders, or after a change. `rack_plan_computation` computes the plans.

use super::page_frame::{self, show_age};
use super::rack_drawing::{MachineSquare, draw_machines};
use super::rack_plan_computation::{RackPlanProgress, RackPlanRun, RackPlanRuns};
use super::session::LoggedIn;
use super::submitted_forms::SubmittedForm;
use api::AppState;
use api::access;
use api::rack_plan::machine_rows::{RackOutcome, RackRow, RackSummary, describe_disks};
use api::rack_plan::{RackChange, check_change};
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use common::format::{format_bytes, format_count, natural_sort_key};
use maud::{Markup, html};
use plan::InstallMode;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of rows on a page.
const ROWS: usize = 100;
/// Maximum time that a request waits for the end of the computation. After this time, the page shows the rows that are
/// complete so far.
const COMPUTATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Outcomes, most important first, each with its value in the URL, its description and its style.
const OUTCOMES: [(RackOutcome, &str, &str, &str); 5] = [
    (RackOutcome::Refused, "refused", "refused", "bad"),
    (RackOutcome::Erases, "erases", "loses data", "erases"),
    (RackOutcome::Unknown, "unknown", "unknown", "idle"),
    (RackOutcome::Installs, "installs", "installed without loss", "good"),
    (RackOutcome::Nothing, "nothing", "unchanged", "idle"),
];

/// Change for which the plans are computed, and filters for the rows of the page.
#[derive(Debug, Clone, Default)]
struct PlanQuery {
    change: RackChange,
    /// Outcome of the listed machines, as its URL value in [`OUTCOMES`]; empty for machines with any outcome.
    verdict: String,
    /// Text that the name of a machine must contain.
    text: String,
    /// Number of the page, from 1.
    page: usize,
}

impl PlanQuery {
    fn parse(form: &SubmittedForm) -> PlanQuery {
        let given = |name: &str| Some(form.get(name).to_owned()).filter(|id| !id.is_empty());
        PlanQuery {
            change: RackChange {
                image: given("image"),
                layout: given("layout"),
                reinstall: !form.get("reinstall").is_empty(),
            },
            verdict: form.get("verdict").to_owned(),
            text: form.get("q").trim().to_owned(),
            page: form.get("page").parse().unwrap_or(1).max(1),
        }
    }

    fn url(&self) -> String {
        let page = if self.page > 1 { self.page.to_string() } else { String::new() };
        let RackChange { image, layout, reinstall } = &self.change;
        let fields = [
            ("image", image.as_deref().unwrap_or_default()),
            ("layout", layout.as_deref().unwrap_or_default()),
            ("reinstall", if *reinstall { "yes" } else { "" }),
            ("verdict", &self.verdict),
            ("q", &self.text),
            ("page", &page),
        ];
        let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        match serde_urlencoded::to_string(fields) {
            Ok(query) if !query.is_empty() => format!("/plan?{query}"),
            _ => "/plan".to_owned(),
        }
    }

    fn url_with_verdict(&self, verdict: &str) -> String {
        PlanQuery { verdict: verdict.to_owned(), page: 1, ..self.clone() }.url()
    }

    fn url_of_page(&self, page: usize) -> String {
        PlanQuery { page, ..self.clone() }.url()
    }

    /// Returns whether the page shows the row.
    fn matches(&self, row: &RackRow) -> bool {
        let (_, word, ..) = describe_outcome(row.outcome);
        (self.verdict.is_empty() || self.verdict == word)
            && display_name(row).to_lowercase().contains(&self.text.to_lowercase())
    }

    /// Returns the path of the page that shows the whole plan of a machine.
    fn plan_url(&self, row: &RackRow) -> String {
        let reinstalls = row.mode == Some(InstallMode::Reinstall) && self.change.reinstalls();
        match &row.image {
            // If the change selects a layout, the page of the machine is used instead, because the page for ordering a
            // reinstall does not support another layout.
            Some(image) if reinstalls && self.change.layout.is_none() => {
                let query = serde_urlencoded::to_string([("image", image)]).unwrap_or_default();
                format!("/machines/{}/reinstall?{query}", row.id)
            }
            _ => format!("/machines/{}#plan", row.id),
        }
    }
}

fn describe_outcome(outcome: RackOutcome) -> (RackOutcome, &'static str, &'static str, &'static str) {
    OUTCOMES.into_iter().find(|(one, ..)| *one == outcome).unwrap_or(OUTCOMES[0])
}

fn display_name(row: &RackRow) -> &str {
    if row.name.is_empty() { &row.id } else { &row.name }
}

/// `GET /plan`: shows the plans. With `again`, computes them again even if recent plans exist. Orders nothing.
pub(crate) async fn get_plan(
    State(app): State<Arc<AppState>>,
    Extension(runs): Extension<RackPlanRuns>,
    person: LoggedIn,
    RawQuery(query): RawQuery,
) -> Response {
    let form = SubmittedForm::parse_query(query.as_deref());
    let query = PlanQuery::parse(&form);
    let (status, plans) = match check_change(&app.directory(), &query.change) {
        Err(error) => (
            StatusCode::BAD_REQUEST,
            html! { p.problem.words role="alert" { strong { "Refused: " } (error.to_coded_text()) } },
        ),
        Ok(()) => {
            let again = !form.get("again").is_empty();
            let run = runs.find_or_start(&app, query.change.clone(), again);
            if again {
                return Redirect::to(&query.url()).into_response();
            }
            run.wait_until_finished(COMPUTATION_TIMEOUT).await;
            (StatusCode::OK, show_run(&query, &run))
        }
    };
    let main = html! {
        div.head { h1 { "Plan of all machines" } }
        (show_change_form(&app, &query))
        (plans)
    };
    let mut response = page_frame::render_page(&app, &person, "Plan", "/plan", main);
    *response.status_mut() = status;
    response
}

fn show_change_form(app: &AppState, query: &PlanQuery) -> Markup {
    let directory = app.directory();
    let RackChange { image, layout, reinstall } = &query.change;
    let options = |ids: Vec<&str>, selected: &Option<String>| {
        html! { @for id in ids { option value=(id) selected[selected.as_deref() == Some(id)] { (id) } } }
    };
    html! {
        form.choices action="/plan" {
            label { span.faint { "Image " } select name="image" {
                option value="" { "according to machine files and orders" }
                (options(directory.known.listed_images().collect(), image))
            } }
            label { span.faint { "Layout " } select name="layout" {
                option value="" { "as in files" }
                (options(directory.known.layouts.keys().map(String::as_str).collect(), layout))
            } }
            label { input type="checkbox" name="reinstall" value="yes" checked[*reinstall]; " Reinstall the installed machines" }
            button { "Plan" }
        }
    }
}

fn show_run(query: &PlanQuery, run: &RackPlanRun) -> Markup {
    let is_finished = run.is_finished();
    let RackPlanProgress { rows, total, failure } = run.progress();
    let summary = RackSummary::from_rows(&rows);
    let mut shown: Vec<&RackRow> = rows.iter().filter(|row| query.matches(row)).collect();
    let order = |row: &RackRow| OUTCOMES.iter().position(|(outcome, ..)| *outcome == row.outcome);
    shown.sort_by(|one, other| {
        let key = |row| (order(row), Reverse(row.lost_bytes), natural_sort_key(display_name(row)));
        key(one).cmp(&key(other))
    });
    let pages = shown.len().div_ceil(ROWS).max(1);
    let page = query.page.min(pages);
    html! {
        @if let Some(why) = &failure { p.problem.words role="alert" { "The plans could not be computed: " (why) } }
        @if !is_finished {
            p data-unfinished role="status" {
                progress max=(total) value=(rows.len()) aria-label="Planned machines" {}
                " Planned " (rows.len()) " of " (format_count(total, "machine", "machines")) ". " a href=(query.url()) { "Reload" }
            }
        }
        (show_summary(query, &summary, run))
        (show_verdicts(query, &rows))
        (draw_rack(query, &rows))
        (show_rows(query, shown.iter().skip((page - 1) * ROWS).take(ROWS).copied()))
        @if pages > 1 {
            nav.pages aria-label="Pages of the list" {
                @if page > 1 { a href=(query.url_of_page(page - 1)) rel="prev" { "Previous" } " " }
                "Page " (page) " of " (pages) " "
                @if page < pages { a href=(query.url_of_page(page + 1)) rel="next" { "Next" } }
            }
        }
    }
}

fn show_summary(query: &PlanQuery, summary: &RackSummary, run: &RackPlanRun) -> Markup {
    let again = query.url_of_page(1);
    let again = format!("{again}{}again=yes", if again.contains('?') { '&' } else { '?' });
    let outdated = "A plan from an outdated inventory is a prediction: only the agent can check the disks.";
    html! {
        p {
            strong { "Data lost: " (format_bytes(summary.lost_bytes)) " on " (format_count(summary.disks, "disk", "disks")) }
            " " (summary.describe_duration())
        }
        p.faint {
            "Planned " (show_age(&run.time)) " from the registered inventories. Nothing is ordered. " (outdated) " "
            a href=(again) { "Plan again" }
        }
    }
}

/// Shows the number of machines with each outcome, as links to these machines.
fn show_verdicts(query: &PlanQuery, rows: &[RackRow]) -> Markup {
    let count = |outcome: RackOutcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let total = rows.len();
    html! {
        div.head {
            p #phases {
                @for (outcome, value, word, class) in OUTCOMES {
                    @if count(outcome) > 0 || query.verdict == value {
                        a.phase.(class) href=(query.url_with_verdict(value)) aria-current=[(query.verdict == value).then_some("true")] {
                            span.word { (word) } " " (count(outcome))
                        } " "
                    }
                }
                @if !query.verdict.is_empty() { a href=(query.url_with_verdict("")) { "all " (total) } }
            }
            form.filter role="search" action="/plan" {
                label.faint for="name" { "Filter" }
                input #name type="search" name="q" value=(query.text) autocomplete="off" placeholder="name";
                @for (name, value) in [("image", query.change.image.as_deref()), ("layout", query.change.layout.as_deref()),
                    ("reinstall", query.change.reinstall.then_some("yes")), ("verdict", Some(query.verdict.as_str()))] {
                    @if let Some(value) = value.filter(|value| !value.is_empty()) { input type="hidden" name=(name) value=(value); }
                }
                button.quiet { "Filter" }
            }
        }
    }
}

/// Draws all machines in the order of their names, with the outcomes of their plans.
fn draw_rack(query: &PlanQuery, rows: &[RackRow]) -> Markup {
    let mut sorted: Vec<&RackRow> = rows.iter().collect();
    sorted.sort_by_cached_key(|row| natural_sort_key(display_name(row)));
    draw_machines(sorted.into_iter().map(|row| {
        let (_, _, state, class) = describe_outcome(row.outcome);
        MachineSquare { path: query.plan_url(row), name: display_name(row), state, class, matches: query.matches(row) }
    }))
}

fn show_rows<'a>(query: &PlanQuery, rows: impl Iterator<Item = &'a RackRow>) -> Markup {
    html! {
        table.cards.plans {
            thead { tr {
                th scope="col" { "Machine" } th scope="col" { "Plan" } th scope="col" { "Image, layout" }
                th.number scope="col" { "Data lost" } th scope="col" { "Disks" } th scope="col" { "Inventory" }
            } }
            tbody { @for row in rows { (show_row(query, row)) } }
        }
    }
}

fn show_row(query: &PlanQuery, row: &RackRow) -> Markup {
    let (_, _, word, class) = describe_outcome(row.outcome);
    let has_plan = row.image.is_some() && row.outcome != RackOutcome::Nothing;
    let reasons = access::visible_lines(&row.reasons.join("\n"));
    html! {
        tr class=(class) {
            td.name { a href={ "/machines/" (row.id) } { (display_name(row)) } }
            td.phase {
                span.word { (word) }
                @if has_plan { " " a href=(query.plan_url(row)) aria-label={ "Plan of " (display_name(row)) } { "plan" } }
                // If the inventory is outdated, a tag replaces the reason, because all rows with an outdated inventory
                // have the same reason.
                @if !reasons.is_empty() && !row.foreseen {
                    div.words.(if row.outcome == RackOutcome::Refused { "reason" } else { "note" }) { (reasons) }
                }
            }
            td {
                @if let Some(image) = &row.image { (image) }
                @if let Some(layout) = &row.layout { span.faint { ", " (layout) } }
            }
            td.number data-label="Data lost" { @if row.lost_bytes > 0 { (format_bytes(row.lost_bytes)) } }
            td { @for line in describe_disks(&row.disks) { div { (line) } } }
            td.seen {
                @if let Some(time) = &row.inventory { (show_age(time)) }
                @if row.foreseen { " " span.tag title=(reasons) { "outdated" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> PlanQuery {
        PlanQuery::parse(&SubmittedForm::parse_query(Some(text)))
    }

    #[test]
    fn links_preserve_the_change() {
        let plan = query("image=a%26b&reinstall=yes&verdict=erases&q=web&page=3&other=1");
        assert_eq!(plan.url(), "/plan?image=a%26b&reinstall=yes&verdict=erases&q=web&page=3");
        assert_eq!(plan.url_with_verdict(""), "/plan?image=a%26b&reinstall=yes&q=web");
        for (text, url) in [("", "/plan"), ("page=0", "/plan"), ("page=x&image=", "/plan"), ("page=2", "/plan?page=2")]
        {
            assert_eq!(query(text).url(), url, "{text}");
        }
    }

    #[test]
    fn machines_are_filtered_by_verdict_and_name() {
        let row = RackRow::unknown("1-2".to_owned(), "Web-1".to_owned(), "r");
        for (text, expected) in [
            ("", true),
            ("verdict=unknown&q=web", true),
            ("verdict=erases", false),
            ("q=db", false),
            ("verdict=x", false),
        ] {
            assert_eq!(query(text).matches(&row), expected, "{text}");
        }
    }

    #[test]
    fn plans_link_to_the_page_that_shows_them() {
        let unknown = RackRow::unknown("1-2".to_owned(), String::new(), "r");
        let image = Some("debian&13".to_owned());
        let reinstall = RackRow { mode: Some(InstallMode::Reinstall), image, ..unknown.clone() };
        assert_eq!(query("image=debian%2613").plan_url(&reinstall), "/machines/1-2/reinstall?image=debian%2613");
        assert_eq!(query("image=debian%2613&layout=x").plan_url(&reinstall), "/machines/1-2#plan");
        assert_eq!(query("").plan_url(&reinstall), "/machines/1-2#plan");
        assert_eq!(query("image=a").plan_url(&unknown), "/machines/1-2#plan");
    }
}
