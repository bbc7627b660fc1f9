//! Revocation of boots and power-off after a machine was freed, so that the system of the previous tenant is stopped.

use super::{AppState, power};
use bmc::PowerAction;
use http_server::api_error::ApiError;

/// Revokes the tokens of all boots that the machine has requested so far. Powers the machine off if the previous
/// tenant's system may still run. If the machine cannot be powered off, a problem is logged.
///
/// # Errors
/// Returns an error if the database fails.
pub(crate) async fn end_previous_system(app: &AppState, id: &str) -> Result<(), ApiError> {
    app.state.free_machine(id).await?;
    if !app.state.may_run_previous_system(id, None).await? {
        return Ok(());
    }
    let name = app.directory().display_name(id).to_owned();
    match power::switch_machine(app, id, PowerAction::Off).await {
        Ok(()) => app.watch.log_note(format!("{name}: powered off, because it was freed")),
        Err(error) => app.watch.log_problem(format!(
            "{name}: cannot power off the freed machine: {error}; power the machine off before it gets another \
            allocation: the system of the previous tenant may still be running, and root on that system can register \
            as this machine",
            error = error.parts().1
        )),
    }
    Ok(())
}
