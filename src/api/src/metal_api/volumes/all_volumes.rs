//! List of the volumes of all machines, which clients may request in pages and filter.

use super::{VolumeResponse, has_volume, volumes_of};
use crate::AppState;
use crate::operator_api::OperatorAuth;
use crate::page_query::PageSelection;
use axum::Json;
use axum::extract::State;
use common::format::compare_natural;
use http_server::api_error::ApiError;
use site::operator_files::MachineSpec;
use std::sync::Arc;

/// `GET /v1/volumes`: lists the volumes of all machines, sorted by the id of the machine, and then by name.
pub(crate) async fn list_volumes(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    mut page: PageSelection,
) -> Result<Json<Vec<VolumeResponse>>, ApiError> {
    let directory = app.directory();
    let mut machines: Vec<&MachineSpec> = directory.machines().collect();
    machines.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    // The machines before the page are not read from the database, unless the machine file no longer lists the volume.
    let first = page.previous().and_then(|uid| machines.iter().position(|machine| has_volume(machine, uid)));
    let mut listed = Vec::new();
    for machine in &machines[first.unwrap_or(0)..] {
        if page.is_full() {
            break;
        }
        let mut volumes = volumes_of(&app, machine).await?;
        volumes.sort_by(|one, other| compare_natural(&one.name, &other.name));
        volumes.retain(|volume| page.accepts(&volume.uid, [volume.name.as_str(), &machine.id, &machine.name]));
        listed.extend(volumes);
    }
    page.finish()?;
    Ok(Json(listed))
}
