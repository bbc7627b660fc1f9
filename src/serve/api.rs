//! The agent's API, as [`crate::control::wire`] has it, and the iPXE scripts that open it.

use super::directory::{Assigned, Machine};
use super::input::{self, Location};
use super::state::Standing;
use super::{App, ipxe, token};
use crate::allocation;
use crate::control::wire::{ErrorBody, Event, EventName, Register, Report};
use crate::error::Error;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const MAX_WAIT_SECONDS: u64 = 300;
/// A machine that takes longer to say what it has to say is gone.
const BODY_PATIENCE: Duration = Duration::from_secs(30);
const EVENT_BYTES: usize = 64 << 10;
/// Inventories and reports with plans are text; the largest server has some ten thousand bytes of it.
const DOCUMENT_BYTES: usize = 4 << 20;

/// An answer that is not 2xx.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody { statuscode: self.status.as_u16(), message: self.message };
        (self.status, Json(body)).into_response()
    }
}

/// The machine in the path, proven by its token. A handler that has one is authorised.
pub struct Caller(String);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Caller, ApiError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(id) = path.map_err(|error| ApiError::bad(error.to_string()))?;
        authorize(app, &parts.headers, &id).await
    }
}

async fn authorize(app: &App, headers: &HeaderMap, id: &str) -> Result<Caller, ApiError> {
    let refuse = || {
        ApiError::new(
            StatusCode::UNAUTHORIZED,
            format!("the bearer token is missing, not that of machine {id:?}, or older than its last PXE boot"),
        )
    };
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).ok_or_else(refuse)?;
    let (scheme, given) = value.split_once(' ').ok_or_else(refuse)?;
    let id = id.to_lowercase();
    let known = app.state.token(&id).await?;
    match known.is_some_and(|known| token::same(&known, &token::hash(given.trim()))) {
        true if scheme.eq_ignore_ascii_case("bearer") => Ok(Caller(id)),
        _ => Err(refuse()),
    }
}

/// The server's base URL as this client reaches it.
pub struct Base(String);

impl FromRequestParts<Arc<App>> for Base {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Base, ApiError> {
        if let Some(url) = &app.url {
            return Ok(Base(url.clone()));
        }
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        ipxe::host(host).map_err(|why| ApiError::bad(format!("the request's Host header: {why}")))?;
        Ok(Base(format!("http://{host}")))
    }
}

pub async fn start_script(Base(base): Base) -> String {
    ipxe::start(&base)
}

#[derive(Deserialize)]
pub struct BootQuery {
    #[serde(default)]
    uuid: String,
    #[serde(default)]
    mac: String,
}

/// The script of one machine, with a token that makes its earlier ones worthless.
pub async fn boot_script(
    State(app): State<Arc<App>>,
    Base(base): Base,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<String, ApiError> {
    if method == Method::HEAD {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "a HEAD would waste the machine's token"));
    }
    let Query(query) = query.map_err(|error| ApiError::bad(error.to_string()))?;
    let optional = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let uuid = optional(&query.uuid).map(|uuid| ipxe::uuid(&uuid)).transpose().map_err(ApiError::bad)?.flatten();
    let mac = optional(&query.mac).map(|mac| ipxe::mac(&mac)).transpose().map_err(ApiError::bad)?;
    let directory = app.directory();
    let by_uuid = uuid.as_deref().and_then(|uuid| directory.machine(uuid));
    let machine = by_uuid.or_else(|| directory.machine_by_mac(mac.as_deref()?));
    let Some(id) = machine.map(|machine| machine.described.id.clone()).or(uuid) else {
        let seen = format!("a machine without a usable UUID and with the unknown MAC {mac:?} asks for its boot script");
        app.watch.problem(format!("{seen}: give it a file in machines/ with this MAC"));
        return Err(ApiError::bad("no usable uuid, and no machine is known by that mac"));
    };
    if let Some(machine) = machine
        && is_installed(&app, machine).await?
    {
        tell(&app, &id, EventName::PxeBooting, "is installed, boots its disk").await?;
        return Ok(ipxe::local_disk(&id));
    }
    let (token, hash) = token::fresh()?;
    app.state.new_token(&id, hash).await?;
    tell(&app, &id, EventName::PxeBooting, "gets kernel and ramdisk").await?;
    let consoles = machine.map_or_else(input::default_consoles, |machine| machine.described.consoles.clone());
    let boot = ipxe::Ramdisk { url: &base, token: &token, machine: &id, consoles: &consoles, cmdline: &app.cmdline };
    Ok(ipxe::ramdisk(&boot))
}

async fn is_installed(app: &App, machine: &Machine) -> Result<bool, ApiError> {
    // Also while its image is being digested: what is installed stays installed.
    let Some(allocation) = &machine.described.allocation else { return Ok(false) };
    let standing = app.state.standing(&machine.described.id, &allocation.id).await?;
    Ok(standing.succeeded && (standing.reinstalled || !allocation.reinstall))
}

async fn tell(app: &App, id: &str, event: EventName, message: &str) -> Result<(), ApiError> {
    let event = Event { event, message: message.to_owned(), step: None, seconds: None, progress: None };
    app.state.event(id, &event).await?;
    app.watch.event(id, app.directory().name(id), event);
    Ok(())
}

pub async fn register(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Json<Value>, ApiError> {
    let register: Register = read(body, DOCUMENT_BYTES).await?;
    let Caller(id) = authorize(&app, &headers, &register.uuid).await?;
    let directory = app.directory();
    app.state.register(&id, directory.name(&id), &register).await?;
    if directory.machine(&id).is_none() {
        let hardware = &register.hardware;
        let macs: Vec<&str> = hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
        app.watch.note(format!(
            "unknown machine {id}: {} cores, {} MiB, {} disks, MACs {}; a file in machines/ with this id allocates it",
            hardware.cpu_cores,
            hardware.memory >> 20,
            hardware.disks.len(),
            macs.join(" ")
        ));
    }
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
pub struct WaitQuery {
    #[serde(default)]
    seconds: u64,
}

/// Answers as soon as the machine is allocated: a waiting machine is a socket and a place in the directory's list of
/// those to wake, nothing else.
pub async fn wait(
    State(app): State<Arc<App>>,
    Caller(id): Caller,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(WaitQuery { seconds }) = query.map_err(|error| ApiError::bad(error.to_string()))?;
    let mut directory = app.directory.clone();
    let mut closing = app.closing.clone();
    let allocated = directory.wait_for(|directory| directory.assigned(&id).is_some());
    let patience = tokio::time::sleep(Duration::from_secs(seconds.min(MAX_WAIT_SECONDS)));
    tokio::select! {
        biased;
        Ok(_) = allocated => Ok(Json(json!({})).into_response()),
        _ = closing.wait_for(|closing| *closing) => Ok(StatusCode::NO_CONTENT.into_response()),
        () = patience => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

pub async fn machine(
    State(app): State<Arc<App>>,
    Base(base): Base,
    Caller(id): Caller,
) -> Result<Json<allocation::Machine>, ApiError> {
    let directory = app.directory();
    let described = directory.machine(&id).map(|machine| &machine.described);
    let allocation = match directory.assigned(&id) {
        Some(assigned) => {
            let standing = app.state.handed_out(&id, &assigned.allocation.id, &assigned.layout_id).await?;
            Some(on_the_wire(assigned, standing, &base))
        }
        None => None,
    };
    Ok(Json(allocation::Machine {
        name: described.map(|machine| machine.name.clone()).unwrap_or_default(),
        size: described.and_then(|machine| machine.size.clone()).map(|id| allocation::Named { id }),
        allocation,
        id,
    }))
}

fn on_the_wire(assigned: &Assigned, standing: Standing, base: &str) -> allocation::Allocation {
    let Assigned { allocation, image, layout, .. } = assigned;
    let passed_on = |name: &str| allocation.passed_on.get(name).cloned().unwrap_or_default();
    allocation::Allocation {
        id: allocation.id.to_string(),
        created: standing.created,
        name: allocation.name.clone(),
        project: allocation.project.clone(),
        hostname: allocation.hostname.clone(),
        role: allocation.role.clone(),
        image: allocation::Image {
            id: image.id.clone(),
            name: image.name.clone(),
            url: match &image.at {
                Location::Url(url) => url.clone(),
                Location::File(file) => format!("{base}/images/{}", percent_encoded(file)),
            },
            digest: image.digest.clone(),
        },
        filesystemlayout: layout.clone(),
        networks: passed_on("networks"),
        ssh_pub_keys: allocation.ssh_pub_keys.clone(),
        user_data: allocation.user_data.clone(),
        console_password: allocation.console_password.clone(),
        dns_servers: passed_on("dns_servers"),
        ntp_servers: passed_on("ntp_servers"),
        firewall_rules: passed_on("firewall_rules"),
        vpn: passed_on("vpn"),
        reinstall: allocation.reinstall && !standing.reinstalled,
        order: None,
        installed: None,
        erase: allocation.erase,
        succeeded: standing.succeeded,
    }
}

pub async fn event(State(app): State<Arc<App>>, Caller(id): Caller, body: Body) -> Result<Json<Value>, ApiError> {
    let event: Event = read(body, EVENT_BYTES).await?;
    // Progress comes every second and is only of interest now.
    if event.progress.is_none() {
        app.state.event(&id, &event).await?;
    }
    app.watch.event(&id, app.directory().name(&id), event);
    Ok(Json(json!({})))
}

pub async fn report(State(app): State<Arc<App>>, Caller(id): Caller, body: Body) -> Result<Json<Value>, ApiError> {
    let mut report: Report = read(body, DOCUMENT_BYTES).await?;
    let directory = app.directory();
    let current = directory.machine(&id).and_then(|machine| machine.described.allocation.as_ref());
    if let Some(current) = current
        && report.allocationuuid.is_empty()
    {
        report.allocationuuid = current.id.to_string();
    }
    let reinstall = current.is_some_and(|current| current.reinstall && *current.id == report.allocationuuid);
    let is_new = app.state.report(&id, &report.allocationuuid, &report, reinstall).await?;
    if is_new {
        app.watch.report(&id, directory.name(&id), &report);
    }
    Ok(Json(json!({})))
}

async fn read<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, ApiError> {
    let bytes = tokio::time::timeout(BODY_PATIENCE, to_bytes(body, limit)).await;
    let bytes = bytes.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))?;
    let bytes = bytes.map_err(|error| {
        let message = format!("the body did not arrive, or has more than {limit} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad(format!("the body: {error}")))
}

/// A path for a URL.
fn percent_encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

pub async fn no_such_call() -> ApiError {
    ApiError::not_found("there is no such call")
}

pub async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this call has another method")
}
