//! Disks of an installed machine, drawn from the installed layout. The registered inventory is not used, because it
//! describes the disks before the installation.

use super::layout_image_and_order_pages::svg_response;
use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use api::operator_api::find_allocated;
use axum::extract::{Path, State};
use axum::response::Response;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use model::layout::graph::LayoutGraph;
use model::layout::read_json;
use std::sync::Arc;

/// Shows the drawing of the installed layout.
pub(crate) fn show_installed_disks(id: &str, layout: &str) -> Markup {
    html! {
        h2 { "Disks, as installed" }
        p.faint { "Layout " (layout) ", as recorded at the installation" }
        a href={ "/machines/" (id) "/layout.svg" } {
            img.layout src={ "/machines/" (id) "/layout.svg" } alt={ "Disks with layout " (layout) " (diagram)" } loading="lazy";
        }
    }
}

/// `GET /machines/{id}/layout.svg`: returns the diagram of the layout with which the machine was installed.
pub(crate) async fn get_installed_diagram(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Response {
    match draw_installed_layout(&app, &id.to_lowercase()).await {
        Ok(drawn) => svg_response(drawn),
        Err(error) => page_frame::render_error(&app, Some(&person), error),
    }
}

async fn draw_installed_layout(app: &AppState, id: &str) -> Result<String, ApiError> {
    let (_, allocation) = find_allocated(app, id)?;
    let install_state = app.state.read_install_state(id, &allocation).await?;
    let layout = install_state.layout.filter(|_| install_state.succeeded);
    // A layout that cannot be parsed counts as missing: another version of drophammer may have stored it in another
    // format.
    let layout = layout.and_then(|layout| read_json(&layout).ok());
    let missing = || ApiError::not_found(format!("the server lacks the layout with which machine {id} was installed"));
    Ok(diagram::draw_svg(&LayoutGraph::from_layout(&layout.ok_or_else(missing)?.layout)))
}
