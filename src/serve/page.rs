//! The operator's web page: server-side HTML that works without JavaScript, for clients with the operator's token.
//!
//! `session` contains logins, `form` parses submitted forms, `shell` builds the frame of every page. `machines` is the list and `machine` a
//! single one, with `disks`, `history`, and `outlook` for its plan; `reinstall` orders reinstalls. `lists` shows layouts, images and
//! orders. `phase` summarizes a machine in one word, `live` sends events, `assets` are style, script and icon.

mod assets;
mod disks;
mod form;
mod history;
mod lists;
pub mod live;
mod machine;
mod machines;
mod outlook;
mod phase;
mod reinstall;
pub mod session;
pub mod shell;
mod volumes;

use super::App;
use super::base::Base;
use super::log;
use super::templates;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use session::{Person, Sessions};
use std::sync::Arc;

/// State of the pages.
#[derive(Default)]
pub struct Page {
    pub sessions: Sessions,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(root))
        .route("/login", get(session::ask).post(session::login))
        .route("/logout", post(session::logout))
        .route("/events", get(live::events))
        .route("/machines/{id}", get(machine::machine))
        .route("/machines/{id}/log", get(log::show))
        .route("/machines/{id}/row", get(machines::row))
        .route("/machines/{id}/reinstall", get(reinstall::ask).post(reinstall::order))
        .route("/machines/{id}/cancel", post(reinstall::cancel))
        .route("/layouts", get(lists::layouts))
        .route("/layouts/{id}/picture.svg", get(lists::picture))
        .route("/images", get(lists::images))
        .route("/orders", get(lists::orders))
        .route("/page.css", get(assets::style))
        .route("/page.js", get(assets::script))
        .route("/page.svg", get(assets::sign))
}

/// Serves `/`: the page for browsers, and the versions of the API for OpenStack clients.
async fn root(
    app: State<Arc<App>>,
    base: Base,
    person: Result<Person, Response>,
    query: RawQuery,
    headers: HeaderMap,
) -> Response {
    if !shell::is_for_browser(&headers) {
        return templates::root(headers, base).await;
    }
    match person {
        Ok(person) => machines::machines(app, person, query).await.into_response(),
        Err(response) => response,
    }
}
