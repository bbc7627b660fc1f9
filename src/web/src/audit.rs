//! Page with the newest entries of the audit log, for admins.

use super::page_frame::{render_error, render_page, show_age};
use super::session::LoggedIn;
use super::submitted_forms::SubmittedForm;
use api::AppState;
use api::audit_log::{AuditEntry, AuditQuery};
use axum::extract::{RawQuery, State};
use axum::response::Response;
use common::format::join_few;
use maud::{Markup, html};
use site::snapshot::SiteSnapshot;
use std::sync::Arc;

/// Number of entries on a page.
const ENTRIES: u32 = 100;

/// `GET /audit`: shows the entries that match the filters, the newest first.
pub(crate) async fn get_audit(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let form = SubmittedForm::parse_query(query.as_deref());
    let audit_query = AuditQuery {
        who: form.get("who").trim().to_owned(),
        machine: form.get("machine").trim().to_owned(),
        action: form.get("action").trim().to_owned(),
        before: form.get("before").parse().ok(),
        limit: Some(ENTRIES),
        ..AuditQuery::default()
    };
    let entries = app.state.list_audit(audit_query.clone()).await;
    let entries = entries.map_err(|error| render_error(&app, Some(&person), error.into()))?;
    Ok(render_page(&app, &person, "Audit", "/audit", show_entries(&audit_query, &entries, &app.directory())))
}

fn show_entries(audit_query: &AuditQuery, entries: &[AuditEntry], directory: &SiteSnapshot) -> Markup {
    let fields = [
        ("who", "User", &audit_query.who),
        ("machine", "Machine or object", &audit_query.machine),
        ("action", "Action", &audit_query.action),
    ];
    html! {
        h1 { "Audit" }
        form.choices method="get" action="/audit" {
            @for (name, label, value) in fields {
                label { span.faint { (label) " " } input name=(name) value=(value); }
            }
            button { "Filter" }
        }
        @if entries.is_empty() { p.faint { "No entries match." } } @else {
            table.cards {
                thead { tr { th { "Time" } th { "User" } th { "Address" } th { "Action" } th { "Object" } th { "Outcome" } th { "Changes" } } }
                tbody { @for entry in entries { (show_entry(entry, &describe_objects(entry, directory))) } }
            }
        }
        @if let Some(last) = entries.last().filter(|_| entries.len() == ENTRIES as usize) {
            p { a href={ "/audit?" (older_query(audit_query, last.id)) } { "Older entries" } }
        }
    }
}

fn older_query(audit_query: &AuditQuery, before: i64) -> String {
    let before = before.to_string();
    let fields = [
        ("who", &audit_query.who),
        ("machine", &audit_query.machine),
        ("action", &audit_query.action),
        ("before", &before),
    ];
    serde_urlencoded::to_string(fields.map(|(name, value)| (name, value.as_str()))).unwrap_or_default()
}

/// Returns the names of the machines, or the name of the other object, that the entry concerns.
fn describe_objects(entry: &AuditEntry, directory: &SiteSnapshot) -> String {
    let names: Vec<String> = entry.objects().map(|object| directory.display_name(object).to_owned()).collect();
    join_few(&names, ", ")
}

/// Shows an entry. `object` is the result of [`describe_objects`].
fn show_entry(entry: &AuditEntry, object: &str) -> Markup {
    let text = |value: &Option<serde_json::Value>| value.as_ref().map_or("–".to_owned(), ToString::to_string);
    html! {
        tr {
            td { (show_age(&entry.time)) }
            td data-label="User" { (if entry.user.is_empty() { "–" } else { &entry.user }) @if !entry.token.is_empty() { br; span.faint { (entry.token) } } }
            td data-label="Address" { (entry.address) }
            td data-label="Action" { (entry.action) br; span.faint { (entry.request) } }
            td data-label="Object" title=[(entry.object != object).then_some(&entry.object)] { (object) }
            td data-label="Outcome" { (entry.outcome.as_str()) @if let Some(status) = entry.status { " " (status) } @if !entry.reason.is_empty() { br; span.faint { (entry.reason) } } }
            td data-label="Changes" {
                @if !entry.changes.is_empty() {
                    details {
                        summary { (entry.changes.len()) }
                        ul { @for change in &entry.changes { li { (change.path) ": " (text(&change.before)) " → " (text(&change.after)) } } }
                    }
                }
            }
        }
    }
}
