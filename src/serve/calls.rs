//! The calls that speak JSON, in one table: the routers are made of it, and so is `/openapi.json`.

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
use crate::allocation::Machine;
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

/// One place of the router.
pub struct Call {
    pub path: &'static str,
    handler: MethodRouter<Arc<App>>,
    /// Most answer one call, some look at the method or the path themselves.
    pub described: Vec<Described>,
}

/// One call as people and programs read of it.
pub struct Described {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub token: Token,
    pub query: &'static [&'static str],
    pub asks: Option<Schema>,
    pub answers: Vec<(u16, Content)>,
    /// The form of a refusal.
    pub refused: &'static str,
}

/// Which token opens it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Operator,
    /// Or the operator's.
    Metrics,
    Machine,
    None,
}

pub enum Content {
    Nothing,
    Text,
    Json(Schema),
}

/// metal-api's clients write a `/` behind these.
const WITH_SLASH: [&str; 4] = ["/v1/filesystemlayout", "/v1/image", "/v1/machine", "/v1/size"];
const TEMPLATES: [&str; 3] = ["/v1/deploy_templates", "/v1/deploy_templates/", "/v1/deploy_templates/{*path}"];
const PROPOSED: [&str; 3] = ["/v1/deploy-templates", "/v1/deploy-templates/", "/v1/deploy-templates/{*path}"];

pub fn router(calls: Vec<Call>) -> Router<Arc<App>> {
    calls.into_iter().fold(Router::new(), |router, Call { path, handler, .. }| match WITH_SLASH.contains(&path) {
        true => router.route(path, handler.clone()).route(&format!("{path}/"), handler),
        false => router.route(path, handler),
    })
}

/// Those of agents. What firmware loads is no JSON.
pub fn of_machines() -> Vec<Call> {
    let machine = "/v1/machine/{id}";
    let running = get("/boot.json", boot::without_firmware, "What a running machine boots to carry out its reinstall")
        .opened_by(Token::None)
        .query(&["uuid", "mac"])
        .gives(of::<NextBoot>);
    vec![
        post("/v1/machine/register", api::register, "A boot becomes the machine's own")
            .asks(asked::<Register>)
            .gives(nothing),
        get(machine, api::machine, "The agent's own machine, with its allocation").gives(of::<Machine>),
        get("/v1/machine/{id}/wait", api::wait, "Wait until the machine is allocated; 204 when it is not yet")
            .query(&["seconds"])
            .gives(nothing)
            .or(204, Content::Nothing),
        post("/v1/machine/{id}/event", api::event, "Something has happened").asks(asked::<Event>).gives(nothing),
        post("/v1/machine/{id}/log", log::take, "What was said on the console").asks(asked::<LogPart>).gives(nothing),
        post("/v1/machine/{id}/point-of-no-return", api::point_of_no_return, "An installation is about to destroy")
            .asks(asked::<PointOfNoReturn>)
            .gives(nothing),
        post("/v1/machine/{id}/moving", agents::stands, "A machine of a move stands in its ramdisk")
            .asks(asked::<Standing>)
            .gives(nothing),
        post("/v1/machine/{id}/report", api::report, "The end of an installation")
            .asks(asked::<Report>)
            .gives(of::<Acknowledged>),
    ]
    .into_iter()
    .map(|call| call.opened_by(Token::Machine))
    .chain([running])
    .collect()
}

/// Those of operators.
pub fn of_operators() -> Vec<Call> {
    let all = [of_directory(), about_machines(), about_volumes(), about_templates(), about_itself()];
    all.into_iter().flatten().collect()
}

/// metal-api's, for layouts, images and sizes.
fn of_directory() -> Vec<Call> {
    let (layout, one_layout) = ("/v1/filesystemlayout", "/v1/filesystemlayout/{id}");
    let (image, one_image, state) = ("/v1/image", "/v1/image/{id}", "/v1/image/{id}/{state}");
    let (hidden, blacklisted) = ("/v1/image/{id}/hidden", "/v1/image/{id}/blacklisted");
    let (size, one_size) = ("/v1/size", "/v1/size/{id}");
    vec![
        get(layout, layouts::list, "Layouts").gives(list::<Layout>),
        put(layout, layouts::create, "Make a layout").asks(layouts::asked).makes(of::<Layout>),
        post(layout, layouts::update, "Change a layout").asks(layouts::asked).gives(of::<Layout>),
        get(one_layout, layouts::get, "One layout").gives(of::<Layout>),
        delete(one_layout, layouts::delete, "Delete a layout that no machine uses").gives(of::<Layout>),
        post(one_layout, layouts::ask, "The layout that a size and an image get")
            .at("/v1/filesystemlayout/try")
            .asks(asked::<layouts::Try>)
            .gives(of::<Layout>)
            .and("/v1/filesystemlayout/matches", "The layout, when it fits a machine's disks")
            .asks(asked::<layouts::Match>)
            .gives(of::<Layout>),
        get(image, images::list, "Images")
            .query(&["hidden", "blacklisted", "show-usage"])
            .gives(list::<images::ImageShown>),
        put(image, images::create, "Make an image").asks(images::asked).makes(of::<images::ImageShown>),
        post(image, images::update, "Change an image").asks(images::asked).gives(of::<images::ImageShown>),
        get(one_image, images::get, "One image, also a hidden one").gives(of::<images::ImageShown>),
        delete(one_image, images::delete, "Delete an image that no machine uses").gives(of::<images::ImageShown>),
        get("/v1/image-states", states::states, "Which images are hidden or blacklisted").gives(of::<States>),
        put(state, states::set_state, "Hide an image, also one that is not there yet")
            .at(hidden)
            .gives(of::<States>)
            .and(blacklisted, "Blacklist an image, also one that is not there yet")
            .gives(of::<States>),
        delete(state, states::set_state, "Hide an image no longer")
            .at(hidden)
            .gives(of::<States>)
            .and(blacklisted, "Blacklist an image no longer")
            .gives(of::<States>),
        get(size, sizes::list, "Sizes").gives(list::<sizes::SizeShown>),
        put(size, sizes::create, "Make a size").asks(asked::<Size>).makes(of::<sizes::SizeShown>),
        post(size, sizes::update, "Change a size").asks(sizes::asked).gives(of::<sizes::SizeShown>),
        get(one_size, sizes::get, "One size").gives(of::<sizes::SizeShown>),
        delete(one_size, sizes::delete, "Delete a size").gives(of::<sizes::SizeShown>),
        post(one_size, sizes::ask, "Constraints that take one machine alone")
            .at("/v1/size/suggest")
            .asks(asked::<sizes::Suggest>)
            .gives(list::<Constraint>),
    ]
}

fn about_machines() -> Vec<Call> {
    let (machine, reinstall, moves) = ("/v1/machine", "/v1/machine/{id}/reinstall", "/v1/machine/{id}/move");
    vec![
        get(machine, machines::list, "Machines as metal-api shows them").gives(list::<machines::MachineShown>),
        post("/v1/machine/find", machines::find, "Machines of which all of it is true")
            .asks(machines::searched)
            .gives(list::<machines::MachineShown>),
        post("/v1/machine/allocate", machines::allocate, "Give a machine an allocation")
            .asks(machines::asked)
            .gives(of::<machines::MachineShown>),
        delete(
            "/v1/machine/{id}/free",
            machines::free,
            "Take its allocation from a machine; its disks stay as they are",
        )
        .gives(of::<machines::MachineShown>),
        get("/v1/machines", operator::machines, "Machines, what is ordered, and how it ended").gives(list::<Listed>),
        post(reinstall, operator::reinstalls::reinstall, "Order a reinstall")
            .asks(asked::<Reinstall>)
            .gives(of::<Listed>),
        delete(reinstall, operator::reinstalls::cancel, "Take an order back that has not begun").gives(of::<Listed>),
        post("/v1/machine/{id}/adopt", operator::adopt, "A machine is installed, by the operator's word")
            .gives(of::<Listed>),
        post("/v1/machine/{id}/confirm", confirmations::confirm, "Confirm the record of a machine after a restore")
            .gives(of::<Listed>),
        post("/v1/machines/confirm", confirmations::confirm_all, "Confirm the records of all machines after a restore")
            .gives(list::<Listed>),
        post("/v1/machine/{id}/rename", operator::rename, "A machine has another id now")
            .asks(asked::<Rename>)
            .gives(of::<Listed>),
        get(moves, moving::show, "The newest move of a machine").gives(of::<MoveShown>),
        post(moves, moving::place, "Order a move of a machine to another one's hardware")
            .asks(asked::<moving::Ask>)
            .gives(of::<MoveShown>),
        delete(moves, moving::cancel, "Take a move back").query(&["off"]).gives(of::<MoveShown>),
        post("/v1/machine/{id}/move/finish", moving::finish, "The system of a move runs, by the operator's word")
            .gives(of::<MoveShown>),
        post("/v1/machine/{id}/file", adding::add, "Make a file of a machine that has registered")
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
        get("/v1/machine/{id}/preview", preview::preview, "What a plan on a desk needs of a machine")
            .gives(of::<Preview>),
    ]
}

fn about_volumes() -> Vec<Call> {
    vec![
        get("/v1/volumes", volumes::list, "Volumes of Kubernetes of all machines, and how far each is")
            .gives(list::<volumes::VolumeShown>),
        get("/v1/volumes/manifests", volumes::manifests, "PersistentVolumes of those that are available, as YAML")
            .or(200, Content::Text),
        post("/v1/machine/{id}/volumes", volumes::add, "Put volumes and storage classes into a machine's file")
            .asks(volumes::asked)
            .gives(list::<volumes::VolumeShown>),
        delete("/v1/machine/{id}/volumes/{name}", volumes::remove, "Take a volume out of a machine's file")
            .query(&["persistent_volume"])
            .gives(list::<volumes::VolumeShown>),
    ]
}

/// Ironic's, and those of the proposal.
fn about_templates() -> Vec<Call> {
    let one = |method, path, summary| Described { refused: "RefusedAsIronic", ..Described::new(method, path, summary) };
    let group = |paths: [&'static str; 3], one_of_them: &'static str, handler: MethodRouter<Arc<App>>| {
        let all = paths[0];
        let mut calls = paths.map(|path| Call { path, handler: handler.clone(), described: Vec::new() });
        calls[0].described = vec![
            one("GET", all, "Deploy templates").gives(200, Content::Json(templates::listed)),
            one("POST", all, "Make a template").asks(templates::asked).gives(201, Content::Json(templates::schema)),
            one("GET", one_of_them, "One template").gives(200, Content::Json(templates::schema)),
            one("PATCH", one_of_them, "Change a template, by a JSON patch")
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
        get("/metrics", metrics::metrics, "For Prometheus").opened_by(Token::Metrics).or(200, Content::Text),
        get("/livez", metrics::live, "The process answers").opened_by(Token::None).or(200, Content::Text),
        get("/readyz", metrics::ready, "The database answers too").opened_by(Token::None).or(200, Content::Text),
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

/// Each is about the call that was described last.
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

    /// The handler knows this path by itself.
    fn at(self, path: &'static str) -> Call {
        self.last(|described| Described { path, ..described })
    }

    /// And this one too.
    fn and(mut self, path: &'static str, summary: &'static str) -> Call {
        let method = self.described.last().map_or("GET", |last| last.method);
        self.described.push(Described::new(method, path, summary));
        self
    }
}
