//! Table of the JSON endpoints, from which both the routers and `/openapi.json` are built.

use super::adding::{Add, Added};
use super::moves::agents;
use super::moves::calls::{self as moving, MoveShown};
use super::openapi::{Schemas, asked, list, nothing, of, openapi};
use super::operator::confirmations;
use super::operator::reinstalls::Reinstall;
use super::operator::{Listed, Rename};
use super::power::Power;
use super::preview::Preview;
use super::sizes::{Constraint, Size};
use super::states::States;
use super::v1::{images, layouts, machines, sizes, states, volumes};
use super::{App, adding, api, boot, boot_digest, log, metrics, operator, power, preview, templates};
use crate::allocation::{Machine, ReleasedSecrets, SecretsRequest};
use crate::carried::Standing;
use crate::control::Acknowledged;
use crate::control::wire::{LogPart, NextBoot, PointOfNoReturn, Register, Report};
use crate::facts::Event;
use crate::layout::Layout;
use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, any, on};
use serde_json::Value;
use std::sync::Arc;

pub type Schema = fn(&mut Schemas) -> Value;

/// A route of the router.
pub struct Call {
    pub path: &'static str,
    handler: MethodRouter<Arc<App>>,
    /// Operations of the route. Most routes have one; some dispatch on method or path themselves.
    pub described: Vec<Described>,
}

/// Description of an operation.
pub struct Described {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub token: Token,
    pub query: &'static [&'static str],
    pub asks: Option<Schema>,
    pub answers: Vec<(u16, Content)>,
    /// Name of the schema of its error responses.
    pub refused: &'static str,
}

/// Token that authorizes an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Operator,
    /// The token for metrics, or the operator's.
    Metrics,
    Machine,
    None,
}

pub enum Content {
    Nothing,
    Text,
    Json(Schema),
}

/// Paths that metal-api's clients also use with a trailing `/`.
const WITH_SLASH: [&str; 4] = ["/v1/filesystemlayout", "/v1/image", "/v1/machine", "/v1/size"];
const TEMPLATES: [&str; 3] = ["/v1/deploy_templates", "/v1/deploy_templates/", "/v1/deploy_templates/{*path}"];
const PROPOSED: [&str; 3] = ["/v1/deploy-templates", "/v1/deploy-templates/", "/v1/deploy-templates/{*path}"];

pub fn router(calls: Vec<Call>) -> Router<Arc<App>> {
    calls.into_iter().fold(Router::new(), |router, Call { path, handler, .. }| match WITH_SLASH.contains(&path) {
        true => router.route(path, handler.clone()).route(&format!("{path}/"), handler),
        false => router.route(path, handler),
    })
}

/// Endpoints for agents. Files loaded by firmware are not included, as they are not JSON.
pub fn of_machines() -> Vec<Call> {
    let machine = "/v1/machine/{id}";
    let running = get(
        "/boot.json",
        boot::without_firmware,
        "Boot information for a running machine that carries out its reinstall",
    )
    .opened_by(Token::None)
    .query(&["uuid", "mac"])
    .gives(of::<NextBoot>);
    vec![
        post("/v1/machine/register", api::register, "Register a boot of the machine")
            .asks(asked::<Register>)
            .gives(nothing),
        get(machine, api::machine, "The machine of the agent, with its allocation").gives(of::<Machine>),
        post(
            "/v1/machine/{id}/secrets",
            api::secrets::release,
            "Secrets of the allocation, as soon as the installation needs them",
        )
        .asks(asked::<SecretsRequest>)
        .gives(of::<ReleasedSecrets>),
        get("/v1/machine/{id}/wait", api::wait, "Wait until the machine is allocated; 204 if it is not yet")
            .query(&["seconds"])
            .gives(nothing)
            .or(204, Content::Nothing),
        post("/v1/machine/{id}/event", api::event, "Record an event").asks(asked::<Event>).gives(nothing),
        post("/v1/machine/{id}/log", log::take, "Console output").asks(asked::<LogPart>).gives(nothing),
        post("/v1/machine/{id}/point-of-no-return", api::point_of_no_return, "Request permission to erase data")
            .asks(asked::<PointOfNoReturn>)
            .gives(nothing),
        post("/v1/machine/{id}/moving", agents::stands, "Report that a machine of a migration is ready in its ramdisk")
            .asks(asked::<Standing>)
            .gives(nothing),
        post("/v1/machine/{id}/report", api::report, "Report the end of an installation")
            .asks(asked::<Report>)
            .gives(of::<Acknowledged>),
    ]
    .into_iter()
    .map(|call| call.opened_by(Token::Machine))
    .chain([running])
    .collect()
}

/// Endpoints for operators.
pub fn of_operators() -> Vec<Call> {
    let all = [of_directory(), about_machines(), about_volumes(), about_templates(), about_itself()];
    all.into_iter().flatten().collect()
}

/// Endpoints of metal-api for layouts, images and sizes.
fn of_directory() -> Vec<Call> {
    let (layout, one_layout) = ("/v1/filesystemlayout", "/v1/filesystemlayout/{id}");
    let (image, one_image, state) = ("/v1/image", "/v1/image/{id}", "/v1/image/{id}/{state}");
    let (hidden, blacklisted) = ("/v1/image/{id}/hidden", "/v1/image/{id}/blacklisted");
    let (size, one_size) = ("/v1/size", "/v1/size/{id}");
    vec![
        get(layout, layouts::list, "Layouts").gives(list::<Layout>),
        put(layout, layouts::create, "Create a layout").asks(layouts::asked).makes(of::<Layout>),
        post(layout, layouts::update, "Update a layout").asks(layouts::asked).gives(of::<Layout>),
        get(one_layout, layouts::get, "One layout").gives(of::<Layout>),
        delete(one_layout, layouts::delete, "Delete a layout that is not in use").gives(of::<Layout>),
        post(one_layout, layouts::ask, "The layout for a size and an image")
            .at("/v1/filesystemlayout/try")
            .asks(asked::<layouts::Try>)
            .gives(of::<Layout>)
            .and("/v1/filesystemlayout/matches", "The layout, if it fits a machine's disks")
            .asks(asked::<layouts::Match>)
            .gives(of::<Layout>),
        get(image, images::list, "Images")
            .query(&["hidden", "blacklisted", "show-usage"])
            .gives(list::<images::ImageShown>),
        put(image, images::create, "Create an image").asks(images::asked).makes(of::<images::ImageShown>),
        post(image, images::update, "Update an image").asks(images::asked).gives(of::<images::ImageShown>),
        get(one_image, images::get, "One image, even if hidden").gives(of::<images::ImageShown>),
        delete(one_image, images::delete, "Delete an image that is not in use").gives(of::<images::ImageShown>),
        get("/v1/image-states", states::states, "Hidden and blacklisted images").gives(of::<States>),
        put(state, states::set_state, "Hide an image, which need not exist yet")
            .at(hidden)
            .gives(of::<States>)
            .and(blacklisted, "Blacklist an image, which need not exist yet")
            .gives(of::<States>),
        delete(state, states::set_state, "Unhide an image")
            .at(hidden)
            .gives(of::<States>)
            .and(blacklisted, "Remove an image from the blacklist")
            .gives(of::<States>),
        get(size, sizes::list, "Sizes").gives(list::<sizes::SizeShown>),
        put(size, sizes::create, "Create a size").asks(asked::<Size>).makes(of::<sizes::SizeShown>),
        post(size, sizes::update, "Update a size").asks(sizes::asked).gives(of::<sizes::SizeShown>),
        get(one_size, sizes::get, "One size").gives(of::<sizes::SizeShown>),
        delete(one_size, sizes::delete, "Delete a size").gives(of::<sizes::SizeShown>),
        post(one_size, sizes::ask, "Constraints that match only one machine")
            .at("/v1/size/suggest")
            .asks(asked::<sizes::Suggest>)
            .gives(list::<Constraint>),
    ]
}

fn about_machines() -> Vec<Call> {
    let (machine, reinstall, moves) = ("/v1/machine", "/v1/machine/{id}/reinstall", "/v1/machine/{id}/move");
    vec![
        get(machine, machines::list, "Machines in metal-api's format").gives(list::<machines::MachineShown>),
        post("/v1/machine/find", machines::find, "Machines that match all criteria")
            .asks(machines::searched)
            .gives(list::<machines::MachineShown>),
        post("/v1/machine/allocate", machines::allocate, "Allocate a machine")
            .asks(machines::asked)
            .gives(of::<machines::MachineShown>),
        delete("/v1/machine/{id}/free", machines::free, "Free a machine; its disks are unchanged")
            .gives(of::<machines::MachineShown>),
        get("/v1/machines", operator::machines, "Machines with their orders and results").gives(list::<Listed>),
        post(reinstall, operator::reinstalls::reinstall, "Order a reinstall")
            .asks(asked::<Reinstall>)
            .gives(of::<Listed>),
        delete(reinstall, operator::reinstalls::cancel, "Cancel an order that has not started").gives(of::<Listed>),
        post("/v1/machine/{id}/adopt", operator::adopt, "Record a machine as installed").gives(of::<Listed>),
        post("/v1/machine/{id}/confirm", confirmations::confirm, "Confirm the record of a machine after a restore")
            .gives(of::<Listed>),
        post("/v1/machines/confirm", confirmations::confirm_all, "Confirm the records of all machines after a restore")
            .gives(list::<Listed>),
        post("/v1/machine/{id}/rename", operator::rename, "Change the id of a machine")
            .asks(asked::<Rename>)
            .gives(of::<Listed>),
        get(moves, moving::show, "The newest migration of a machine").gives(of::<MoveShown>),
        post(moves, moving::place, "Order the migration of a machine to another one's hardware")
            .asks(asked::<moving::Ask>)
            .gives(of::<MoveShown>),
        delete(moves, moving::cancel, "Cancel a migration").query(&["off"]).gives(of::<MoveShown>),
        post("/v1/machine/{id}/move/approve", moving::approve, "Approve the certificates of a migration")
            .asks(asked::<moving::Approve>)
            .gives(of::<MoveShown>),
        post("/v1/machine/{id}/move/finish", moving::finish, "Finish a migration whose system runs on the target")
            .gives(of::<MoveShown>),
        post("/v1/machine/{id}/file", adding::add, "Create the file of a machine that has registered")
            .asks(asked::<Add>)
            .gives(of::<Added>),
        post("/v1/machine/{id}/power", power::power, "Switch a machine").asks(asked::<Power>).gives(of::<Power>),
        get(
            "/v1/machine/{id}/boot-digest",
            boot_digest::boot_digest,
            "Digest of what the machine boots for `drophammer reinstall`",
        )
        .query(&["server"])
        .gives(of::<boot_digest::BootDigestShown>),
        get("/v1/machine/{id}/preview", preview::preview, "Inputs for planning a machine").gives(of::<Preview>),
    ]
}

fn about_volumes() -> Vec<Call> {
    vec![
        get("/v1/volumes", volumes::list, "Kubernetes volumes of all machines, with their states")
            .gives(list::<volumes::VolumeShown>),
        get("/v1/volumes/manifests", volumes::manifests, "PersistentVolumes of available volumes, as YAML")
            .or(200, Content::Text),
        post("/v1/machine/{id}/volumes", volumes::add, "Add volumes and storage classes to a machine's file")
            .asks(volumes::asked)
            .gives(list::<volumes::VolumeShown>),
        delete("/v1/machine/{id}/volumes/{name}", volumes::remove, "Remove a volume from a machine's file")
            .query(&["persistent_volume"])
            .gives(list::<volumes::VolumeShown>),
    ]
}

/// Endpoints of Ironic for deploy templates, and those of metal-stack's proposal.
fn about_templates() -> Vec<Call> {
    let one = |method, path, summary| Described { refused: "RefusedAsIronic", ..Described::new(method, path, summary) };
    let group = |paths: [&'static str; 3], one_of_them: &'static str, handler: MethodRouter<Arc<App>>| {
        let all = paths[0];
        let mut calls = paths.map(|path| Call { path, handler: handler.clone(), described: Vec::new() });
        calls[0].described = vec![
            one("GET", all, "Deploy templates").gives(200, Content::Json(templates::listed)),
            one("POST", all, "Create a template").asks(templates::asked).gives(201, Content::Json(templates::schema)),
            one("GET", one_of_them, "One template").gives(200, Content::Json(templates::schema)),
            one("PATCH", one_of_them, "Update a template with a JSON Patch")
                .asks(templates::patched)
                .gives(200, Content::Json(templates::schema)),
            one("DELETE", one_of_them, "Delete a template").gives(204, Content::Nothing),
        ];
        calls
    };
    let ironic = group(TEMPLATES, "/v1/deploy_templates/{ident}", any(templates::ironic));
    let proposed = group(PROPOSED, "/v1/deploy-templates/{ident}", any(templates::proposed));
    ironic.into_iter().chain(proposed).collect()
}

fn about_itself() -> Vec<Call> {
    vec![
        get("/metrics", metrics::metrics, "Metrics for Prometheus").opened_by(Token::Metrics).or(200, Content::Text),
        get("/livez", metrics::live, "Liveness of the process").opened_by(Token::None).or(200, Content::Text),
        get("/readyz", metrics::ready, "Readiness, including the database")
            .opened_by(Token::None)
            .or(200, Content::Text),
        get("/openapi.json", openapi, "This document").opened_by(Token::None).gives(anything),
    ]
}

fn anything(_: &mut Schemas) -> Value {
    serde_json::json!({"type": "object"})
}

impl Described {
    fn new(method: &'static str, path: &'static str, summary: &'static str) -> Described {
        let (token, refused) = (Token::Operator, "Refused");
        Described { method, path, summary, token, query: &[], asks: None, answers: Vec::new(), refused }
    }

    fn asks(self, schema: Schema) -> Described {
        Described { asks: Some(schema), ..self }
    }

    fn gives(mut self, status: u16, content: Content) -> Described {
        self.answers.push((status, content));
        self
    }
}

fn call<H: Handler<T, Arc<App>>, T: 'static>(
    (method, filter): (&'static str, MethodFilter),
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> Call {
    Call { path, handler: on(filter, handler), described: vec![Described::new(method, path, summary)] }
}

fn get<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, handler: H, summary: &'static str) -> Call {
    call(("GET", MethodFilter::GET), path, handler, summary)
}

fn put<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, handler: H, summary: &'static str) -> Call {
    call(("PUT", MethodFilter::PUT), path, handler, summary)
}

fn post<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, handler: H, summary: &'static str) -> Call {
    call(("POST", MethodFilter::POST), path, handler, summary)
}

fn delete<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, handler: H, summary: &'static str) -> Call {
    call(("DELETE", MethodFilter::DELETE), path, handler, summary)
}

/// Builder methods, which change the operation that was added last.
impl Call {
    fn last(mut self, change: impl FnOnce(Described) -> Described) -> Call {
        let last = self.described.pop().map(change);
        self.described.extend(last);
        self
    }

    fn asks(self, schema: Schema) -> Call {
        self.last(|described| described.asks(schema))
    }

    fn gives(self, schema: Schema) -> Call {
        self.or(200, Content::Json(schema))
    }

    fn makes(self, schema: Schema) -> Call {
        self.or(201, Content::Json(schema))
    }

    fn or(self, status: u16, content: Content) -> Call {
        self.last(|described| described.gives(status, content))
    }

    fn query(self, query: &'static [&'static str]) -> Call {
        self.last(|described| Described { query, ..described })
    }

    fn opened_by(self, token: Token) -> Call {
        self.last(|described| Described { token, ..described })
    }

    /// Documents a concrete path of a route that dispatches on the path.
    fn at(self, path: &'static str) -> Call {
        self.last(|described| Described { path, ..described })
    }

    /// Documents another concrete path of the same route.
    fn and(mut self, path: &'static str, summary: &'static str) -> Call {
        let method = self.described.last().map_or("GET", |last| last.method);
        self.described.push(Described::new(method, path, summary));
        self
    }
}
