//! Permission to erase data, which an agent requests before its first write.

use super::DOCUMENT_BYTES;
use super::decision_basis::{DecisionBasis, request_repetition};
use crate::AppState;
use crate::install_state_enrichment;
use crate::machine_auth::MachineCaller;
use crate::metrics::OrderEvent;
use crate::migration_requests::machine_requests;
use crate::out_of_band;
use crate::plan_approval_check;
use crate::request_body::read_machine_document;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use control::agent_api_types::PointOfNoReturn;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::server_log::MachineOrigin;
use model::install_marker::attempt_proof::is_secret_digest;
use serde_json::{Value, json};
use site::allocation_resolution::explain_layout_change;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use store::{ATTEMPTS, AttemptStart, FirstStartOutcome, MachineBoot, OrderStart};

/// `POST /v1/machine/{id}/point-of-no-return`: permits an installation to erase data, provided that the installation is
/// still requested.
pub(crate) async fn pass_point_of_no_return(
    State(app): State<Arc<AppState>>,
    MachineCaller { boot, peer, .. }: MachineCaller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let PointOfNoReturn { allocationuuid, order, disks, approved: said, secret_digest, .. } =
        read_machine_document(&app, peer, body, DOCUMENT_BYTES).await?;
    if secret_digest.as_deref().is_some_and(|digest| !is_secret_digest(digest)) {
        let why = "secret_digest: must be `sha256:` followed by 64 lowercase hexadecimal digits";
        return Err(ApiError::bad_request(why));
    }
    let basis = DecisionBasis::read(&app, &boot.machine, &allocationuuid).await?;
    let DecisionBasis { directory, documents: based_on } = basis;
    let start = AttemptStart { by: boot.hash, disks, secret_digest, approved: said.clone(), based_on };
    let changed = |why: String| Err(ApiError::new(StatusCode::CONFLICT, why));
    if let Some(answer) =
        machine_requests::start_copy(&app, &directory, &boot, peer, (&allocationuuid, &start, said.as_deref())).await?
    {
        return answer.map_or_else(changed, |()| Ok(Json(json!({}))));
    }
    let what = (&*allocationuuid, order.as_deref(), said.as_deref());
    if let Err(why) = check_still_wanted(&app, &directory, &boot, what).await? {
        return changed(why);
    }
    let started = match order {
        Some(order) => start_ordered(&app, &directory, (&boot, peer), (&allocationuuid, &order), start).await?,
        None => start_first(&app, &directory, (&boot, peer), &allocationuuid, start).await?,
    };
    started.map_or_else(changed, |()| Ok(Json(json!({}))))
}

/// Starts the first installation of the allocation. The inner error is the reason why it must not start.
async fn start_first(
    app: &AppState,
    directory: &SiteSnapshot,
    (boot, peer): (&MachineBoot, ClientAddress),
    allocation: &str,
    start: AttemptStart,
) -> Result<Result<(), String>, ApiError> {
    let id = &boot.machine;
    let news = match app.state.start_first_install(id, allocation, start).await? {
        FirstStartOutcome::Permitted(news) => news,
        FirstStartOutcome::Rejected(why) => return Ok(Err(why)),
        FirstStartOutcome::Outdated => return Err(request_repetition(app, id).await),
    };
    app.state.record_boot_start(id, boot.hash).await?;
    if news {
        let text = "starts its installation: the disks of its layout are erased";
        app.watch.log_note(format!("{} {text} ({peer})", directory.display_name(id)));
    }
    Ok(Ok(()))
}

/// Starts an attempt of the reinstall order. The inner error is the reason why it must not start.
async fn start_ordered(
    app: &AppState,
    directory: &SiteSnapshot,
    (boot, peer): (&MachineBoot, ClientAddress),
    (allocation, order): (&str, &str),
    start: AttemptStart,
) -> Result<Result<(), String>, ApiError> {
    let id = &boot.machine;
    match app.state.start_order(id, allocation, order, start).await? {
        OrderStart::Permitted(order, news) => {
            app.state.record_boot_start(id, boot.hash).await?;
            if news {
                app.counters.count_order(OrderEvent::Started);
                let text = format!(
                    "started: image {image}, attempt {attempt} of {ATTEMPTS}",
                    image = order.image,
                    attempt = order.attempts
                );
                app.watch.log_reinstall(MachineOrigin::new(id, directory.display_name(id), peer), text);
            }
            Ok(Ok(()))
        }
        OrderStart::NotInForce => {
            Ok(Err(format!("order {order:?} is no longer open: it was canceled, replaced, or completed")))
        }
        OrderStart::Outdated => Err(request_repetition(app, id).await),
        OrderStart::Unapproved => Ok(Err(format!(
            "order {order:?} requires an approved plan with which the agent has not compared its plan: boot the machine \
             again"
        ))),
    }
}

/// Checks that the installation is still requested. The inner error describes how the order or the files have changed
/// since the allocation was sent to the agent.
async fn check_still_wanted(
    app: &AppState,
    directory: &SiteSnapshot,
    boot: &MachineBoot,
    (allocation, order, approved): (&str, Option<&str>, Option<&str>),
) -> Result<Result<(), String>, ApiError> {
    let id = boot.machine.as_str();
    if !out_of_band::is_admitted(app, boot).await? {
        return Ok(Err("the Redfish steps of this installation are not completed".to_owned()));
    }
    // If the machine file now contains another allocation, this installation must not continue.
    let current = directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    match current {
        Some(current) if *current.id != allocation => {
            return Ok(Err(format!(
                "the machine's current allocation is {current}, not {allocation}",
                current = *current.id
            )));
        }
        // An attempt that has already started may continue: the old system is incomplete.
        None if !has_started(app, boot, allocation, order).await? => {
            return Ok(Err(format!("the machine file no longer contains allocation {allocation}")));
        }
        _ => {}
    }
    if let Some(current) = current {
        let install_state = app.state.read_install_state(id, allocation).await?;
        if directory.known.states.installation_blocked(current, &install_state).is_some() {
            return Ok(Err(format!(
                "the image of allocation {allocation} was blacklisted after the allocation was sent"
            )));
        }
    }
    if let Some(machine) = directory.find_machine(id) {
        let install_state = install_state_enrichment::read_full_state(app, machine, &directory.known).await?;
        if let Some(why) = explain_layout_change(machine, &install_state, &directory.known) {
            return Ok(Err(why));
        }
    }
    plan_approval_check::check_compared(app, directory, id, allocation, approved).await
}

/// Returns whether this boot has already started an attempt of the reinstall order.
async fn has_started(
    app: &AppState,
    boot: &MachineBoot,
    allocation: &str,
    order: Option<&str>,
) -> Result<bool, ApiError> {
    let Some(order) = order else { return Ok(false) };
    let open = app.state.read_install_state(&boot.machine, allocation).await?.order;
    Ok(open.is_some_and(|open| open.id == order && open.attempt.is_some_and(|attempt| attempt.by == boot.hash)))
}
