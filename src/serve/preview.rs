//! Inputs for planning a machine on a workstation: its registered inventory, and the allocation that it would receive.

use super::App;
use super::api::told::on_the_wire;
use super::api_error::ApiError;
use super::base::Base;
use super::identity;
use super::moves::agents;
use super::moves::handing::Foreseen;
use super::operator::Operator;
use super::resolve::resolve;
use super::state::Registered as Row;
use super::wanted;
use crate::allocation;
use crate::control::wire::Register;
use crate::inventory::Inventory;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub const WAITS: &str = "its image has no digest yet, its OS definition is not verified yet, or a template generates its layout from an inventory that is \
    not registered yet";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Preview {
    /// The document that the machine would receive, without secrets.
    pub machine: allocation::Machine,
    /// Reason why it would not receive an allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Last registration, at the beginning of a boot into the ramdisk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Registered>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Registered {
    #[schemars(with = "serde_json::Value")]
    pub inventory: Inventory,
    /// Time of the registration by this server's clock, RFC 3339, UTC; empty if it was registered before times were recorded.
    pub time: String,
    pub seconds_ago: u64,
    /// The machine has passed a point of no return since: the contents of its disks have changed.
    pub outdated: bool,
}

/// `GET /v1/machine/{id}/preview`.
pub async fn preview(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    base: Base,
    _: Operator,
) -> Result<Json<Preview>, ApiError> {
    let id = id.to_lowercase();
    let directory = app.directory();
    let described = directory.machine(&id);
    let mut preview = Preview::default();
    preview.machine.id.clone_from(&id);
    let mut is_installed = false;
    if let Some(machine) = described {
        preview.machine.name.clone_from(&machine.name);
        preview.machine.size = machine.size.clone().map(|id| allocation::Named { id });
        let foreseen = agents::foreseen(&app, &directory, &id).await?;
        if !matches!(foreseen, Foreseen::AsEver) {
            match foreseen {
                Foreseen::Told(given) => preview.machine.allocation = Some(given.on_the_wire(&base.calls, false)),
                Foreseen::Nothing(why) | Foreseen::Unknown(why) => preview.withheld = Some(why),
                Foreseen::AsEver => {}
            }
        } else if let Some(allocation) = &machine.allocation {
            let standing = wanted::standing(&app, &id, allocation, &directory.known).await?;
            is_installed = standing.is_installed();
            match resolve(machine, &standing, &directory.known) {
                Ok(Some(assigned)) => {
                    preview.machine.allocation = Some(on_the_wire(&assigned, standing, &base.calls, false));
                }
                Ok(None) => preview.withheld = Some(WAITS.to_owned()),
                Err(why) => preview.withheld = Some(why),
            }
        } else {
            preview.withheld = Some("its file does not contain an allocation".to_owned());
        }
    } else {
        preview.withheld = Some("it does not have a file in machines/".to_owned());
    }
    if let Some(allocation) = &mut preview.machine.allocation {
        allocation.blank_only = identity::blank_only(&app, &directory, &id).await?;
    }
    preview.registered = registered(&app, &id, is_installed).await?;
    if described.is_none() && preview.registered.is_none() {
        return Err(ApiError::not_found(format!(
            "machines/ contains no machine {id}, and no machine with this id has registered"
        )));
    }
    Ok(Json(preview))
}

async fn registered(app: &App, id: &str, is_installed: bool) -> Result<Option<Registered>, ApiError> {
    let Some(row) = app.state.registered(id).await? else { return Ok(None) };
    let machine = id.to_owned();
    let read = app.planner.compute(id, move || of_row(row, &machine, is_installed)).await?;
    read.map_err(|why| ApiError::new(StatusCode::CONFLICT, why))
}

/// Parses a stored registration.
///
/// # Errors
/// The registration is invalid or not supported.
pub fn of_row(row: Row, id: &str, is_installed: bool) -> Result<Option<Registered>, String> {
    // It may have been stored by another version.
    let register: Register = serde_json::from_str(&row.document).map_err(|error| {
        let what = format!("cannot parse the registration of machine {id}: {error}");
        format!("{what}. The machine registers again when it boots the ramdisk")
    })?;
    let Some(inventory) = register.inventory else { return Ok(None) };
    if let Some(why) = inventory.exceeded() {
        return Err(format!(
            "the registration of machine {id} is not supported: {why}, and boot it into the ramdisk again"
        ));
    }
    let at = row.time.as_deref().and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok());
    let seconds_ago = at.map_or(0, |at| (OffsetDateTime::now_utc() - at).whole_seconds().unsigned_abs());
    // If the time was not recorded, it is only known that the installation came later.
    let outdated = row.has_begun_since || (at.is_none() && is_installed);
    Ok(Some(Registered { inventory, time: row.time.unwrap_or_default(), seconds_ago, outdated }))
}
