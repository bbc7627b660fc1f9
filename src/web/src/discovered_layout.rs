//! Layout of a machine that another installer has installed, derived from the inventory that the machine has registered
//! while it waited for an allocation.

use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;
use layout_discovery::{assess_reinstall, discover_layout, format_layout};
use maud::{Markup, html};
use model::inventory::Inventory;
use std::sync::Arc;
use store::StoredRegistration;

/// Id of the layout of a machine without a name, as in `drophammer layout from-machine`.
const LAYOUT_ID: &str = "from-machine";

/// Shows the link to the layout. Shows nothing if the machine has not inspected its disks, because the layout would
/// lack the mount points of the installed system, or if an installation has started since the registration.
pub(crate) fn show_layout_link(id: &str, inventory: &Inventory, has_begun_since: bool) -> Markup {
    html! {
        @if inventory.explored && !has_begun_since {
            p {
                a href={ "/machines/" (id) "/layout.yaml" } download { "Layout of this machine" }
                ", for a reinstall that renews the system and preserves the data"
            }
        }
    }
}

/// `GET /machines/{id}/layout.yaml`: returns the layout that `drophammer layout from-machine` prints for this machine.
pub(crate) async fn get_discovered_layout(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Response {
    match discover_registered_layout(&app, &id.to_lowercase()).await {
        Ok(layout) => {
            let headers = [
                (header::CONTENT_TYPE, "application/yaml"),
                (header::CONTENT_DISPOSITION, "attachment; filename=layout.yaml"),
            ];
            page_frame::with_headers((headers, layout).into_response())
        }
        Err(error) => page_frame::render_error(&app, Some(&person), error),
    }
}

async fn discover_registered_layout(app: &AppState, id: &str) -> Result<String, ApiError> {
    let unregistered = || ApiError::not_found(format!("no machine with the id {id} has registered"));
    let row = app.state.find_registration(id).await?.ok_or_else(unregistered)?;
    if row.has_begun_since {
        let why = format!("machine {id}: an installation has changed the disks since the machine registered");
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let directory = app.directory();
    let name = directory.find_machine(id).map(|machine| machine.name.clone()).filter(|name| !name.is_empty());
    let layout_id = name.unwrap_or_else(|| LAYOUT_ID.to_owned());
    let layout = app.planner.run_job(id, move || describe_layout(&row, &layout_id)).await?;
    layout.map_err(|why| ApiError::new(StatusCode::CONFLICT, format!("machine {id}: {why}")))
}

fn describe_layout(row: &StoredRegistration, layout_id: &str) -> Result<String, String> {
    let inventory = row.parse_inventory().ok_or("this version does not support the registered inventory")?;
    if let Some(why) = inventory.find_impossible_property() {
        return Err(format!("the registered inventory is invalid: {why}"));
    }
    let found = discover_layout(&inventory, None, layout_id);
    Ok(format_layout(&found, &assess_reinstall(&found, &inventory)))
}
