//! Reinstall from the page: options, then the plan with data lost and preserved, then confirmation by typing the machine's name.

use super::form::Form;
use super::outlook::{self, Outlook};
use super::session::Person;
use super::shell;
use crate::assigned::preview::Planned;
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::base::Base;
use crate::serve::input::Machine;
use crate::serve::operator::Operator;
use crate::serve::operator::reinstalls::{self, Orderable, Reinstall};
use crate::serve::peers::Peer;
use crate::serve::rack::ordered;
use crate::serve::state::Standing;
use crate::serve::wanted;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use std::sync::Arc;

/// Reads the reinstall options from the fields of a form.
fn asked(id: &str, form: &Form) -> Reinstall {
    let serials = form.get("give_up").split(',').map(str::trim).filter(|serial| !serial.is_empty());
    Reinstall {
        id: id.to_owned(),
        imageid: form.get("image").to_owned(),
        without_marker: !form.get("without_marker").is_empty(),
        change_promise: !form.get("change_promise").is_empty(),
        give_up: serials.map(str::to_owned).collect(),
        replace_newer: !form.get("replace_newer").is_empty(),
    }
}

/// Returns the plan of the reinstall, if it can be ordered.
async fn foreseen(app: &App, base: &Base, asked: &Reinstall) -> Result<Outlook, ApiError> {
    let Orderable { machine, standing, words, .. } = reinstalls::orderable(app, asked).await?;
    let Some(allocation) = &machine.allocation else { return Err(ApiError::bad("it is no longer allocated")) };
    if let Some(begun) = standing.order.as_ref().filter(|order| order.begun && !order.given_up) {
        return Err(reinstalls::begun(begun));
    }
    let mut standing = wanted::standing(app, &machine.id, allocation, &app.directory().known).await?;
    let earlier = standing.order.take().filter(|order| order.begun);
    standing.order = Some(ordered(asked.imageid.clone(), words, earlier));
    outlook::of(app, base, &machine, standing, false).await
}

/// Returns a digest of the plan. An order is only valid for the plan that was shown.
fn digest(planned: &Planned) -> String {
    planned.verdicts.as_ref().map_or("nothing".to_owned(), |verdicts| verdicts.digest())
}

/// Returns the name that must be typed to confirm.
fn name(machine: &Machine) -> &str {
    if machine.name.is_empty() { &machine.id } else { &machine.name }
}

fn machine(app: &App, id: &str) -> Result<Machine, ApiError> {
    let unknown = || ApiError::not_found(format!("machines/ contains no machine {id}"));
    app.directory().machine(id).cloned().ok_or_else(unknown)
}

/// `GET /machines/{id}/reinstall`: the options and, once submitted, the plan. It does not change anything.
pub async fn ask(
    State(app): State<Arc<App>>,
    base: Base,
    person: Person,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let refused = |error: ApiError| shell::refused(&app, Some(&person), error);
    let machine = machine(&app, &id.to_lowercase()).map_err(refused)?;
    let asked = asked(&machine.id, &Form::of_query(query.as_deref()));
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string()).unwrap_or_default();
    let standing = app.state.standing(&machine.id, &allocation).await.map_err(|error| refused(error.into()))?;
    let (status, plan) = match asked.imageid.is_empty() {
        true => (StatusCode::OK, html! {}),
        false => match foreseen(&app, &base, &asked).await {
            Ok(outlook) => (StatusCode::OK, confirm(&person, &machine, &asked, &outlook)),
            Err(error) => {
                let (status, why) = error.parts();
                (status, html! { p.problem.words role="alert" { strong { "Refused: " } (why) } })
            }
        },
    };
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (name(&machine)) } }
        h1 { "Reinstall " (name(&machine)) }
        (questions(&app, &machine, &asked, &standing))
        (plan)
    };
    let mut response = shell::page(&app, &person, &format!("Reinstall {}", name(&machine)), "", main);
    *response.status_mut() = status;
    Ok(response)
}

fn questions(app: &App, machine: &Machine, asked: &Reinstall, standing: &Standing) -> Markup {
    let directory = app.directory();
    let made = machine.allocation.as_ref().and_then(|allocation| allocation.definition.creates());
    let images: Vec<String> = match made {
        Some(os) => vec![os.to_string()],
        None => directory.known.images.keys().cloned().collect(),
    };
    html! {
        form.stack method="get" {
            label for="image" { "Image" @if let Some(image) = &standing.image { span.faint { " (installed: " (image) ")" } } }
            select #image name="image" required {
                option value="" { "select" }
                @for image in &images { option value=(image) selected[*image == asked.imageid] { (image) } }
            }
            details open[asked.without_marker || asked.change_promise || asked.replace_newer || !asked.give_up.is_empty()] {
                summary { "More options" }
                p { label { input type="checkbox" name="without_marker" value="yes" checked[asked.without_marker]; " The disk with / was replaced: proceed without its install marker" } }
                p { label { input type="checkbox" name="change_promise" value="yes" checked[asked.change_promise]; " Use the layout of its file, even if it wipes a disk that was preserved so far" } }
                p { label { input type="checkbox" name="replace_newer" value="yes" checked[asked.replace_newer]; " Replace the installation on the disks even if it is newer than the server's record" } }
                p { label { "Disks whose data may be erased, by serial number, separated by commas " input name="give_up" value=(asked.give_up.join(", ")); } }
            }
            button { "Show plan" }
        }
        p.faint { "Nothing is ordered yet." }
    }
}

/// Shows the plan with the order button below it, or the reason why there is none.
fn confirm(person: &Person, machine: &Machine, asked: &Reinstall, outlook: &Outlook) -> Markup {
    match outlook {
        Outlook::Refused(why) => html! {
            h2 { "Plan refused" }
            pre.problem tabindex="0" role="alert" { (why) }
            p { "This reinstall cannot be ordered." }
        },
        Outlook::Unknown(why) => html! {
            p.problem role="alert" { "The plan is unknown: " (why) "." }
            p { "Without a plan, a reinstall can only be ordered on the command line: "
                code { "drophammer machine reinstall " (name(machine)) " --image " (asked.imageid) } }
        },
        Outlook::Planned(planned, registered) => html! {
            (outlook::made_of(registered))
            (outlook::markup(planned))
            (button(person, machine, asked, planned))
        },
    }
}

/// Passes the options of the first form on, with the digest of the plan that was shown for them.
fn button(person: &Person, machine: &Machine, asked: &Reinstall, planned: &Planned) -> Markup {
    let said = |is_so: bool| if is_so { "yes" } else { "" }.to_owned();
    let fields = [
        ("image", asked.imageid.clone()),
        ("without_marker", said(asked.without_marker)),
        ("change_promise", said(asked.change_promise)),
        ("replace_newer", said(asked.replace_newer)),
        ("give_up", asked.give_up.join(", ")),
        ("shown", digest(planned)),
    ];
    html! {
        form.stack method="post" {
            (shell::form_token(person))
            @for (field, value) in &fields { input type="hidden" name=(field) value=(value); }
            label for="name" { "Type " strong { (name(machine)) } " to confirm" }
            input #name name="name" data-name=(name(machine)) autocomplete="off" autocapitalize="off" spellcheck="false" required;
            button.danger { "Reinstall " (name(machine)) " with " (asked.imageid) }
        }
    }
}

/// `POST /machines/{id}/reinstall`: orders the reinstall with the API's checks, for the plan that was shown.
pub async fn order(
    State(app): State<Arc<App>>,
    base: Base,
    person: Person,
    Path(id): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let done = async {
        let form = Form::of(&app, &person, peer, &headers, body).await?;
        let machine = machine(&app, &id.to_lowercase())?;
        let asked = asked(&machine.id, &form);
        if form.get("name").trim() != name(&machine) {
            let typed = form.get("name");
            return Err(ApiError::bad(format!(
                "nothing was ordered: {typed:?} was typed, but the machine is named {:?}",
                name(&machine)
            )));
        }
        let outlook = foreseen(&app, &base, &asked).await?;
        let is_shown = matches!(&outlook, Outlook::Planned(planned, _) if digest(planned) == form.get("shown"));
        if !is_shown {
            let why = "nothing was ordered: the plan has changed since it was shown. Go back and review it";
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        reinstalls::order(&app, peer, &asked).await.map(|listed| listed.id)
    };
    match done.await {
        Ok(id) => Redirect::to(&format!("/machines/{id}")).into_response(),
        Err(error) => shell::refused(&app, Some(&person), error),
    }
}

/// `POST /machines/{id}/cancel`.
pub async fn cancel(
    State(app): State<Arc<App>>,
    person: Person,
    Path(id): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let done = async {
        Form::of(&app, &person, peer, &headers, body).await?;
        reinstalls::cancel(State(app.clone()), Path(id), Operator, peer).await.map(|listed| listed.0.id)
    };
    match done.await {
        Ok(id) => Redirect::to(&format!("/machines/{id}")).into_response(),
        Err(error) => shell::refused(&app, Some(&person), error),
    }
}
