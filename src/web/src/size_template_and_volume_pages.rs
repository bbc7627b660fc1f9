//! `/sizes`, `/templates` and `/volumes`: read-only lists of objects in the server's directory.

use super::page_frame;
use super::session::LoggedIn;
use api::metal_api::volumes::volumes_of;
use api::{AppState, operator_api};
use axum::extract::State;
use axum::response::Response;
use common::format::{format_bytes, format_count};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use serde_json::Value;
use site::sizes::{ConstraintKind, SizeConstraint};
use std::sync::Arc;

/// `GET /sizes`: shows the sizes with their constraints, and the number of machines of each size.
pub(crate) async fn get_sizes(State(app): State<Arc<AppState>>, person: LoggedIn) -> Response {
    let directory = app.directory();
    let sizes = &directory.known.sizes;
    let count = |id: &str| directory.machines().filter(|machine| machine.size.as_deref() == Some(id)).count();
    let main = html! {
        h1 { (format_count(sizes.len(), "size", "sizes")) }
        div.scroll tabindex="0" { table {
            tr { th { "Size" } th { "Name" } th { "Constraints" } th.number { "Machines" } }
            @for (id, size) in sizes {
                tr {
                    td { strong { (id) } }
                    td { (size.name) " " span.faint { (size.description) } }
                    td { (size.constraints.iter().map(describe_constraint).collect::<Vec<_>>().join("; ")) }
                    td.number { (count(id)) }
                }
            }
        } }
    };
    page_frame::render_page(&app, &person, "Sizes", "/sizes", main)
}

fn describe_constraint(constraint: &SizeConstraint) -> String {
    let SizeConstraint { kind, min, max } = constraint;
    match kind {
        ConstraintKind::Cores => format!("{min} to {max} cores"),
        ConstraintKind::Memory => format!("{} to {} of memory", format_bytes(*min), format_bytes(*max)),
        ConstraintKind::Storage => format!("{} to {} of storage", format_bytes(*min), format_bytes(*max)),
    }
}

/// `GET /templates`: shows the deploy templates with their steps. The arguments of the steps are omitted, because they
/// may contain secrets.
pub(crate) async fn get_templates(State(app): State<Arc<AppState>>, person: LoggedIn) -> Response {
    let directory = app.directory();
    let templates: Vec<_> = directory.known.templates.all().collect();
    let count = |name: &str| {
        directory.machines().filter(|machine| machine.traits.iter().any(|given| given.as_str() == name)).count()
    };
    let main = html! {
        h1 { (format_count(templates.len(), "deploy template", "deploy templates")) }
        div.scroll tabindex="0" { table {
            tr { th { "Template" } th { "File" } th { "Steps" } th.number { "Machines with this trait" } }
            @for stored in &templates {
                tr {
                    td { strong { (stored.template.name) } }
                    td { (stored.path.file_name().unwrap_or_default().display()) }
                    td { @for step in &stored.template.steps { div { (describe_step(step)) } } }
                    td.number { (count(&stored.template.name)) }
                }
            }
        } }
    };
    page_frame::render_page(&app, &person, "Deploy templates", "/templates", main)
}

fn describe_step(step: &Value) -> String {
    let text = |name: &str| step.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let priority = step.get("priority").map(|priority| format!(", priority {priority}")).unwrap_or_default();
    format!("{}.{}{priority}", text("interface"), text("step"))
}

/// `GET /volumes`: shows the Kubernetes volumes of all machines.
pub(crate) async fn get_volumes(State(app): State<Arc<AppState>>, person: LoggedIn) -> Result<Response, Response> {
    let main = show_volumes(&app).await.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    Ok(page_frame::render_page(&app, &person, "Volumes", "/volumes", main))
}

async fn show_volumes(app: &AppState) -> Result<Markup, ApiError> {
    let directory = app.directory();
    let mut all = Vec::new();
    for listed in operator_api::list_machines(app).await? {
        if let Some(machine) = directory.find_machine(&listed.id) {
            all.extend(volumes_of(app, machine).await?);
        }
    }
    Ok(html! {
        h1 { (format_count(all.len(), "Kubernetes volume", "Kubernetes volumes")) }
        div.scroll tabindex="0" { table {
            tr { th { "Machine" } th { "Volume" } th { "Kind" } th { "State" } th.number { "Size" } th { "Path" } th { "Message" } }
            @for volume in &all {
                tr {
                    td { a href={ "/machines/" (volume.machine) } { (directory.display_name(&volume.machine)) } }
                    td { (volume.name) }
                    td { (volume.kind) }
                    td { (volume.state) }
                    td.number { @if let Some(size) = volume.size_bytes { (format_bytes(size)) } }
                    td { code { (volume.path) } }
                    td.faint { (volume.message) }
                }
            }
        } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn constraints_have_units() {
        for (kind, expected) in [
            (ConstraintKind::Cores, "1 to 2000 cores"),
            (ConstraintKind::Memory, "1 B to 2.00 kB of memory"),
            (ConstraintKind::Storage, "1 B to 2.00 kB of storage"),
        ] {
            assert_eq!(describe_constraint(&SizeConstraint { kind, min: 1, max: 2000 }), expected);
        }
    }

    #[test]
    fn arguments_of_steps_are_not_shown() {
        let step = json!({"interface": "bios", "step": "apply_configuration", "priority": 150, "args": {"password": "hunter2"}});
        assert_eq!(describe_step(&step), "bios.apply_configuration, priority 150");
        assert_eq!(describe_step(&json!({"interface": 5})), ".");
    }
}
