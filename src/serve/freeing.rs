//! Release of a machine that the operator frees: its previous tenant's system must stop.

use super::api_error::ApiError;
use super::{App, power};
use crate::bmc::Action;

/// Revokes the tokens of earlier boots, and powers the machine off if its system may still run. A machine that cannot be powered off is
/// reported.
///
/// # Errors
/// The database fails.
pub async fn end_previous_system(app: &App, id: &str) -> Result<(), ApiError> {
    app.state.free(id).await?;
    if !app.state.is_not_clean(id, None).await? {
        return Ok(());
    }
    let name = app.directory().name(id).to_owned();
    match power::switch(app, id, Action::Off).await {
        Ok(()) => app.watch.note(format!("{name}: powered off, because it was freed")),
        Err(error) => app.watch.problem(format!(
            "{name}: cannot power off the freed machine: {}; the system of its previous tenant may still be running, and its root user can \
             register as the machine: power it off before it gets another allocation",
            error.parts().1
        )),
    }
    Ok(())
}
