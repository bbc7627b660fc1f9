//! Style sheet, script and icon of the web pages. These files are served without a login.

use super::page_frame;
use axum::http::header;
use axum::response::{IntoResponse, Response};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const SIGN: &str = include_str!("page.svg");

pub(crate) async fn get_style() -> Response {
    serve_asset("text/css; charset=utf-8", STYLE)
}

pub(crate) async fn get_script() -> Response {
    serve_asset("text/javascript; charset=utf-8", SCRIPT)
}

pub(crate) async fn get_icon() -> Response {
    serve_asset("image/svg+xml", SIGN)
}

/// Returns an asset with a short cache lifetime, because assets differ between versions of the server.
fn serve_asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=60")];
    page_frame::with_headers((headers, text).into_response())
}
