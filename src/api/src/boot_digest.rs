//! Digest of kernel, ramdisk and kernel command line. The operator passes it to `drophammer reinstall` on the machine.

use super::operator_api::{OperatorAuth, unknown_machine};
use super::{AppState, netboot};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use control::boot_digest::{ANY_TOKEN, BootDigest};
use http_server::api_error::ApiError;
use pxe::ipxe::{self, RamdiskBoot};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use site::{boot_value_validation, operator_files};
use std::fs::File;
use std::sync::Arc;

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct DigestQuery {
    /// URL at which the machine reaches this server [default: the URL in `--url`].
    server: Option<String>,
}

/// Arguments for `drophammer reinstall` on one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BootDigestResponse {
    /// URL at which the machine reaches this server.
    pub server: String,
    /// Digest of kernel, ramdisk and kernel command line, `sha256:HEX`.
    pub digest: String,
}

/// `GET /v1/machine/{id}/boot-digest`: returns the digest and the URL for this machine.
pub(crate) async fn get_boot_digest(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    Query(query): Query<DigestQuery>,
    _: OperatorAuth,
) -> Result<Json<BootDigestResponse>, ApiError> {
    let id = id.to_lowercase();
    let directory = app.directory();
    let machine = directory.find_machine(&id).ok_or_else(|| unknown_machine(&directory, &id))?;
    let server = query.server.or_else(|| app.url.clone()).ok_or_else(|| {
        let why = "the server's URL is missing, and the digest depends on it: specify the URL at which the machine reaches this server, or start the server with --url";
        ApiError::new(StatusCode::CONFLICT, why)
    })?;
    let url = api_url(&app, &server)?;
    let architecture =
        app.read_inventory(&id).await?.map(|inventory| inventory.system.architecture).unwrap_or_default();
    let consoles = operator_files::consoles_for(machine.consoles.clone(), architecture);
    let initrd = netboot::ramdisk_file(&app, &id, architecture).await;
    let ramdisk = RamdiskBoot {
        url: &url,
        files: &url,
        token: ANY_TOKEN,
        machine: &id,
        consoles: &consoles,
        network: machine.ramdisk_network.as_deref(),
        cmdline: &app.cmdline,
        stop: false,
        architecture,
        initrd,
    };
    let (arguments, folder) = (ramdisk.kernel_arguments(), app.boot.clone());
    let file = move |name: &str| File::open(folder.join(ipxe::boot_file_name(name, architecture)));
    let computed = tokio::task::spawn_blocking(move || {
        BootDigest::compute_from_files(file(ipxe::KERNEL)?, file(initrd)?, &arguments)
    });
    let failed = |why: String| {
        let what =
            format!("cannot compute the digest of kernel and ramdisk in {folder}: {why}", folder = app.boot.display());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, what)
    };
    let digest = computed.await.map_err(|error| failed(error.to_string()))?;
    let digest = digest.map_err(|error| failed(error.to_string()))?.to_string();
    Ok(Json(BootDigestResponse { server, digest }))
}

/// Returns the server's URL in the kernel command line that a machine receives if it requests `/boot.json` from
/// `server`.
fn api_url(app: &AppState, server: &str) -> Result<String, ApiError> {
    let wrong = |why: &str| ApiError::bad_request(format!("server={server}: {why}"));
    let url = Url::parse(server).map_err(|error| wrong(&error.to_string()))?;
    let (scheme, required) = (url.scheme(), if app.https.is_some() { "https" } else { "http" });
    if !matches!(scheme, "http" | "https") || (app.https.is_some() && scheme == "http") {
        return Err(wrong(&format!("must begin with {required}://")));
    }
    if let Some(url) = &app.url {
        return Ok(url.clone());
    }
    let host = url.host_str().unwrap_or_default();
    // `validate_host` expects host and port in the format of the `Host` header.
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    boot_value_validation::validate_host(&host).map_err(|why| wrong(&why))?;
    Ok(format!("{required}://{host}"))
}
