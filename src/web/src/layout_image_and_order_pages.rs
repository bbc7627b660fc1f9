//! Pages of layouts, images and orders.

use super::page_frame::{self, show_age};
use super::session::LoggedIn;
use api::{AppState, operator_api};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use common::encoding::percent_encode;
use common::format::{format_bytes, format_count, without_secrets};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use model::layout::graph::LayoutGraph;
use site::operator_files::{ImageLocation, ImageSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Content security policy of a diagram, which must not load files or run scripts.
const PICTURE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// `GET /layouts`: shows all layouts.
pub(crate) async fn get_layouts(State(app): State<Arc<AppState>>, person: LoggedIn) -> Response {
    let directory = app.directory();
    let layouts = &directory.known.layouts;
    let main = html! {
        h1 { (format_count(layouts.len(), "layout", "layouts")) }
        @for (id, layout) in layouts {
            section id=(id) {
                h2 { (id) }
                p {
                    @if let Some(description) = layout.description.as_ref().or(layout.name.as_ref()) { (description) " " }
                    span.faint { (directory.layout_files.get(id).and_then(|file| file.file_name()).unwrap_or_default().display()) }
                }
                a href={ "/layouts/" (percent_encode(id, "")) "/picture.svg" } {
                    img.layout src={ "/layouts/" (percent_encode(id, "")) "/picture.svg" } alt={ "Layout " (id) " (diagram)" } loading="lazy";
                }
            }
        }
    };
    page_frame::render_page(&app, &person, "Layouts", "/layouts", main)
}

/// `GET /layouts/{id}/picture.svg`: returns the diagram of a layout, as drawn by `drophammer tree --svg`.
pub(crate) async fn get_diagram(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Response {
    let directory = app.directory();
    let Some(layout) = directory.known.layouts.get(&id) else {
        return page_frame::render_error(
            &app,
            Some(&person),
            ApiError::not_found(directory.known.explain_absent_layout(&id).reason),
        );
    };
    svg_response(diagram::draw_svg(&LayoutGraph::from_layout(layout)))
}

/// Returns a response with a diagram.
pub(crate) fn svg_response(drawn: String) -> Response {
    let mut response = ([(header::CONTENT_TYPE, "image/svg+xml")], drawn).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PICTURE_POLICY));
    page_frame::with_headers(response)
}

/// `GET /images`: shows all images.
pub(crate) async fn get_images(State(app): State<Arc<AppState>>, person: LoggedIn) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    app.await_added_images().await;
    let directory = app.directory();
    let machines = operator_api::list_machines(&app).await.map_err(refused)?;
    let runs = |id: &str| machines.iter().filter(|machine| machine.image.as_deref() == Some(id)).count();
    let place = |image: &ImageSpec| match &image.at {
        ImageLocation::Url(url) => without_secrets(url),
        ImageLocation::File(file) => format!("images/{file}"),
    };
    let mut files = BTreeMap::new();
    for (id, (_, image)) in &directory.images {
        if let ImageLocation::File(file) = &image.at
            && let Ok(metadata) = tokio::fs::metadata(app.images.join(file)).await
        {
            files.insert(id, metadata);
        }
    }
    let main = html! {
        h1 { (format_count(directory.known.images.len(), "image", "images")) }
        div.scroll tabindex="0" { table {
            tr { th { "Image" } th { "Name" } th { "Location" } th.number { "Size" } th { "Changed" } th { "Digest" } th.number { "Runs on" } }
            @for (id, image) in &directory.known.images {
                tr {
                    td { strong { (id) } }
                    @if let Some(image) = image {
                        td { (image.name) }
                        td { (place(image)) }
                        td.number { @if let Some(file) = files.get(id) { (format_bytes(file.len())) } }
                        td { @if let Some(changed) = files.get(id).and_then(|file| file.modified().ok()) { (show_age(&to_rfc3339(changed))) } }
                        td.mono { (image.digest.as_deref().unwrap_or("none: a URL")) }
                    } @else {
                        td colspan="5" { span.tag.bad { "digest not computed yet, or file unreadable" } }
                    }
                    td.number { (show_use(id, runs(id))) }
                }
            }
        } }
    };
    Ok(page_frame::render_page(&app, &person, "Images", "/images", main))
}

/// Shows the number of machines that run an image, with a link to the list of these machines.
fn show_use(id: &str, machines: usize) -> Markup {
    let count = format_count(machines, "machine", "machines");
    let query = serde_urlencoded::to_string([("q", id)]).unwrap_or_default();
    html! { @if machines == 0 { (count) } @else { a href={ "/?" (query) } { (count) } } }
}

fn to_rfc3339(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

/// `GET /orders`: shows the open orders, and the result of each machine's last reinstall.
pub(crate) async fn get_orders(State(app): State<Arc<AppState>>, person: LoggedIn) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let machines = operator_api::list_machines(&app).await.map_err(refused)?;
    let mut open: Vec<_> = machines.iter().filter_map(|machine| Some((machine, machine.order.as_ref()?))).collect();
    open.sort_by(|one, other| other.1.created.cmp(&one.1.created));
    let mut ended: Vec<_> = machines.iter().filter_map(|machine| Some((machine, machine.outcome.as_ref()?))).collect();
    ended.sort_by(|one, other| other.1.time.cmp(&one.1.time));
    let main = html! {
        h1 { (format_count(open.len(), "open order", "open orders")) }
        @if !open.is_empty() {
            div.scroll tabindex="0" { table {
                tr { th { "Machine" } th { "Image" } th { "Ordered" } th { "Attempts" } th { "State" } }
                @for (machine, order) in &open {
                    tr {
                        td { a href={ "/machines/" (machine.id) } { (machine.name) @if machine.name.is_empty() { (machine.id) } } }
                        td { (order.image) }
                        td { (page_frame::show_age(&order.created)) }
                        td { (order.attempts) " of " (machine.attempts) }
                        td class=[order.given_up.then_some("bad")] { span.word { (match (order.given_up, order.started) {
                            (true, true) => "abandoned: the machine waits at its console",
                            (true, false) => "suspended: the machine boots its disk",
                            (false, true) => "past its point of no return",
                            (false, false) => "waiting for the machine's next boot",
                        }) } }
                    }
                }
            } }
        }
        h2 { "Results" }
        @if ended.is_empty() { p.faint { "none so far" } } @else {
            div.scroll tabindex="0" { table {
                tr { th { "Machine" } th { "Image" } th { "Ended" } th { "Result" } }
                @for (machine, outcome) in &ended {
                    tr {
                        td { a href={ "/machines/" (machine.id) } { (machine.name) @if machine.name.is_empty() { (machine.id) } } }
                        td { (outcome.image) }
                        td { (page_frame::show_age(&outcome.time)) }
                        td class=(if outcome.success { "good" } else { "bad" }) {
                            span.word { (if outcome.success { "done" } else { "failed" }) } " " span.words { (page_frame::reword_message(&outcome.message)) }
                        }
                    }
                }
            } }
        }
    };
    Ok(page_frame::render_page(&app, &person, "Orders", "/orders", main))
}
