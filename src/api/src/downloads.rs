//! Kernel, ramdisk and images over HTTP, with support for Range, If-Range and ETag.
//!
//! Clients can request only files that the server has listed, so path traversal is impossible. Symbolic links are
//! followed only to targets within the directory.

use super::AppState;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_server::api_error::ApiError;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use tower_http::services::ServeFile;
use tower_http::services::fs::ServeFileSystemResponseBody;

/// `/images/PATH`: the file, manifest or signature of an image in `images/`.
pub async fn serve_image(
    State(app): State<Arc<AppState>>,
    Path(served): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    let file = app.directory().find_image_file(&served);
    let file =
        file.ok_or_else(|| ApiError::not_found(format!("the file {served:?} does not belong to an image in images/")))?;
    send_file(&resolve_within(&app, &app.images, &file).await?, method, headers).await
}

/// `/boot/NAME`: a file directly in the boot directory.
pub async fn serve_boot_file(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    serve_from_folder(&app, &app.boot, &name, method, headers).await
}

/// `/ipxe/NAME`: iPXE, for firmware that boots over HTTP.
pub async fn serve_ipxe(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    let none = || ApiError::not_found("this server does not serve iPXE: start it with `drophammer serve --pxe NIC`");
    serve_from_folder(&app, app.ipxe.as_deref().ok_or_else(none)?, &name, method, headers).await
}

/// Sends a file that is directly in the directory. Files in subdirectories are not served.
async fn serve_from_folder(
    app: &AppState,
    folder: &FilePath,
    name: &str,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.starts_with('.') || !name.bytes().all(plain) {
        return Err(ApiError::not_found(format!("{name:?} is not the name of a boot file")));
    }
    send_file(&resolve_within(app, folder, &folder.join(name)).await?, method, headers).await
}

/// Resolves symbolic links. Refuses a file outside of the directory, so that a link cannot expose files that are not
/// meant to be served.
async fn resolve_within(app: &AppState, directory: &FilePath, file: &FilePath) -> Result<PathBuf, ApiError> {
    let name = file.file_name().unwrap_or_default().display().to_string();
    let gone = |_| ApiError::not_found(format!("{name} does not exist"));
    let directory = tokio::fs::canonicalize(directory).await.map_err(gone)?;
    let real = tokio::fs::canonicalize(file).await.map_err(gone)?;
    if real.starts_with(&directory) {
        return Ok(real);
    }
    app.log_rate_limited(format!(
        "refused to serve {link}: the symbolic link points to a file outside of {folder}",
        link = file.display(),
        folder = directory.display()
    ));
    Err(ApiError::not_found(format!("{name} is a symbolic link to a file outside of its directory")))
}

/// Sends the file. Also implements If-Range, which tower-http does not support: if the value of If-Range does not
/// match the file, a Range request is answered with the whole file (RFC 9110, 13.1.5).
async fn send_file(
    file: &std::path::Path,
    method: Method,
    mut headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    let if_range = headers.remove(header::IF_RANGE);
    let response = serve_file(file, method.clone(), headers.clone()).await?;
    let Some(if_range) = if_range.filter(|_| headers.contains_key(header::RANGE)) else {
        return Ok(response);
    };
    // A response with status 416 lacks ETag and Last-Modified, so they are determined by a separate request.
    let validators = match response.headers().contains_key(header::ETAG) {
        true => response.headers().clone(),
        false => serve_file(file, Method::HEAD, HeaderMap::new()).await?.headers().clone(),
    };
    let known = [header::ETAG, header::LAST_MODIFIED].map(|name| validators.get(name).cloned());
    if known.contains(&Some(if_range)) {
        return Ok(response);
    }
    headers.remove(header::RANGE);
    serve_file(file, method, headers).await
}

async fn serve_file(
    file: &std::path::Path,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<ServeFileSystemResponseBody>, ApiError> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.headers_mut() = headers;
    let name = file.file_name().unwrap_or_default().display();
    let response = ServeFile::new(file).ignore_multi_range_requests(true).try_call(request).await;
    let response = response.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ApiError::not_found(format!("{name} does not exist")),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("read {name}: {error}")),
    })?;
    match response.status() {
        StatusCode::NOT_FOUND => Err(ApiError::not_found(format!("{name} does not exist"))),
        _ => Ok(response),
    }
}
