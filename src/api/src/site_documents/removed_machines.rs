//! Protection of machines whose files a request would remove.

use crate::AppState;
use axum::http::StatusCode;
use http_server::api_error::ApiError;
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;

/// Number of machines that a message lists.
const SHOWN: usize = 20;

/// Refuses to remove machines that have an installed system, an installation in progress, an order or a migration, since the
/// server would then treat the machine as unknown.
pub(super) async fn refuse_removal(
    app: &AppState,
    before: &SiteSnapshot,
    after: &SiteSnapshot,
) -> Result<(), ApiError> {
    let mut protected = Vec::new();
    let migrations = app.state.list_live_migrations().await?;
    for machine in before.machines().filter(|machine| after.find_machine(&machine.id).is_none()) {
        let is_migrated = migrations.iter().any(|is| [&is.a, &is.b].contains(&&machine.id));
        let reason = if is_migrated { Some("is being migrated") } else { find_reason(app, machine).await? };
        protected.extend(
            reason.map(|reason| format!("machine {} ({}) {reason}", before.display_name(&machine.id), machine.id)),
        );
    }
    if protected.is_empty() {
        return Ok(());
    }
    let more = protected.len().saturating_sub(SHOWN);
    let mut lines = protected[..protected.len() - more].join("\n");
    if more > 0 {
        lines += &format!("\nand {more} further machines");
    }
    let why = format!(
        "apply: nothing was stored: the documents would remove machines that are in use; free these machines first with `drophammer machine free`, or include their files\n{lines}"
    );
    Err(ApiError::new(StatusCode::CONFLICT, why))
}

/// Returns why the machine is protected; `None` if its file can be removed.
async fn find_reason(app: &AppState, machine: &MachineSpec) -> Result<Option<&'static str>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let standing = app.state.read_install_state(&machine.id, &allocation.id).await?;
    Ok(match () {
        () if standing.order.is_some() => Some("has an order for a reinstall"),
        () if standing.is_installed() => Some("is installed"),
        () if standing.first.is_some() => Some("is being installed"),
        () => None,
    })
}
