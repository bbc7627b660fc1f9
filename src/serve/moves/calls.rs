//! Requests of the operator about a migration: order, show, approve, cancel and finish. All objections to an order are reported at once,
//! before anything is stored.

use super::agents::in_words;
use super::approval::{ApprovedCertificates, CertificateShown};
use super::{End, Move, MoveState, Word, pairing};
use crate::allocation::Allocation;
use crate::carried::Part;
use crate::marker::{MarkedDisk, Marker};
use crate::problem;
use crate::serve::App;
use crate::serve::api::bodies::EVENT_BYTES;
use crate::serve::api_error::ApiError;
use crate::serve::input::Machine;
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use crate::serve::state::boots::QUIET;
use crate::serve::state::{MoveHeard, Placed, now};
use crate::serve::v1::{Change, Refused, Turn};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Request body: order of a migration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Id of the target machine.
    pub to: String,
    /// Disks of the target by the disk names of the layout: serial numbers, or device names of the target.
    #[serde(default)]
    pub disks: BTreeMap<String, String>,
    /// Copy without the operator's approval of the certificates: any machine that impersonates one of the two takes part.
    #[serde(default)]
    pub allow_unapproved: bool,
}

/// Certificates that the operator compared with the consoles of their machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approve {
    /// Fingerprints, or at least their first 16 hexadecimal digits.
    pub fingerprints: Vec<String>,
}

/// Migration as shown to the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MoveShown {
    /// Id of the order.
    pub id: String,
    /// Id of the source machine.
    pub from: String,
    /// Id of the target machine.
    pub to: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MoveState,
    /// Time of the order, RFC 3339 in UTC.
    pub created: String,
    /// Disk of the target for each disk name of the layout.
    pub disks: Vec<MarkedDisk>,
    /// True if the source waits in its ramdisk, and has called recently.
    pub from_stands: bool,
    /// True if the target waits in its ramdisk, and has called recently.
    pub to_stands: bool,
    /// Number of boots that started to receive and failed.
    pub failures: u32,
    /// Last problem that the source reported.
    pub from_says: String,
    /// Last problem that the target reported.
    pub to_says: String,
    /// Certificate of the source, if it waits in its ramdisk.
    #[serde(default)]
    pub from_certificate: Option<CertificateShown>,
    /// Certificate of the target, if it waits in its ramdisk.
    #[serde(default)]
    pub to_certificate: Option<CertificateShown>,
}

/// Role of a machine in a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PartOfMove {
    /// Id of the order.
    pub id: String,
    pub part: Part,
    /// Id of the other machine.
    pub other: String,
    pub state: MoveState,
    /// Certificate of the machine's last boot for the migration, while it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateShown>,
}

impl PartOfMove {
    pub fn of(machine: &str, is: Move) -> PartOfMove {
        let part = is.part(machine);
        let certificate = is.certificate(part);
        PartOfMove { part, other: is.other(machine).to_owned(), id: is.id, state: is.state, certificate }
    }

    /// Describes the role in a few words. `name` is that of the other machine.
    pub fn in_words(&self, name: &str) -> String {
        let way = match self.part {
            Part::Send => "migrates to",
            Part::Receive => "receives",
        };
        format!("{way} {name}, {}", self.state)
    }
}

async fn shown(app: &App, is: Move) -> Result<MoveShown, ApiError> {
    let now = app.state.present(&is).await?;
    let is_heard = |end: &End| app.state.heard.since(&end.boot) < QUIET;
    let stands = |part| is.state.is_open() && is.peer(part, now).is_some_and(is_heard);
    let certificate = |part| is.peer(part, now).and_then(|_| is.certificate(part));
    Ok(MoveShown {
        from_certificate: certificate(Part::Send),
        to_certificate: certificate(Part::Receive),
        from_stands: stands(Part::Send),
        to_stands: stands(Part::Receive),
        id: is.id,
        from: is.a,
        to: is.b,
        allocation: is.allocation,
        state: is.state,
        created: is.created,
        disks: is.disks,
        failures: is.failures,
        from_says: is.words_a,
        to_says: is.words_b,
    })
}

fn no_move(id: &str) -> ApiError {
    ApiError::not_found(format!("machine {id} is not part of a migration"))
}

/// Handles `GET /v1/machine/{id}/move`: returns the open migration, or else the newest one.
pub async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
) -> Result<Json<MoveShown>, ApiError> {
    let id = id.to_lowercase();
    let is = app.state.last_move(&id).await?.ok_or_else(|| no_move(&id))?;
    shown(&app, is).await.map(Json)
}

/// Handles `POST /v1/machine/{id}/move`.
pub async fn place(
    Path(id): Path<String>,
    Change { asked, turn }: Change<Ask, EVENT_BYTES>,
) -> Result<Json<MoveShown>, Refused> {
    let Turn { app, peer, .. } = &turn;
    let new = judged(&turn, &id.to_lowercase(), &asked).await.map_err(Refused::from)?;
    match app.state.place_move(new.clone()).await? {
        Placed::Yes => {}
        Placed::No(why) => return Err(Refused::taken(format!("not migrated: {why}"))),
    }
    app.watch.note(format!("{peer} ordered the migration {}", in_words(&app.directory(), &new)));
    app.state_has_changed();
    Ok(Json(shown(app, new).await?))
}

/// Returns the order, unless there are objections.
async fn judged(turn: &Turn, id: &str, asked: &Ask) -> Result<Move, ApiError> {
    let Turn { app, directory, .. } = turn;
    let (to, mut problems) = (asked.to.to_lowercase(), Vec::new());
    let unknown = |id: &str| ApiError::not_found(format!("machine {id} not found in machines/"));
    let a = directory.machine(id).ok_or_else(|| unknown(id))?;
    let b = directory.machine(&to).ok_or_else(|| unknown(&to))?;
    if a.id == b.id {
        return Err(ApiError::bad("not migrated: source and target are the same machine"));
    }
    for machine in [a, b] {
        problems.extend(machine.locked.as_ref().map(|why| format!("machine {} is locked: {why}", machine.id)));
        problems
            .extend(app.state.live_move(&machine.id).await?.map(|is| crate::serve::state::in_a_move(&machine.id, &is)));
    }
    if let Some(allocation) = &b.allocation {
        problems.push(format!("the file of machine {to} contains allocation {}: remove it first", *allocation.id));
    }
    let inventory = app.inventory(&to).await?;
    if inventory.is_none() {
        problems.push(format!("machine {to} has not registered its hardware: boot it over PXE once"));
    }
    let Some(allocation) = &a.allocation else {
        problems.push(format!("the file of machine {id} does not contain an allocation"));
        return Err(refused(&problems));
    };
    let standing = app.state.standing(id, &allocation.id).await?;
    if !standing.succeeded {
        problems
            .push(format!("allocation {} of machine {id} is not installed according to this server", *allocation.id));
    }
    if standing.order.is_some() {
        problems.push(format!("a reinstall of machine {id} is ordered"));
    }
    if has_volumes(a) || !standing.volumes.is_empty() {
        problems.push(format!("allocation {} has Kubernetes volumes, which cannot be migrated", *allocation.id));
    }
    let marker = standing.marker.clone();
    if standing.succeeded && marker.is_none() {
        problems.push(format!(
            "this server lacks the install marker of machine {id}, which the machine reports with its next installation"
        ));
    }
    let disks = match (&standing.layout, inventory) {
        (Some(layout), Some(inventory)) => {
            let layout = layout.clone();
            let of = Allocation { filesystemlayout: layout, ..Allocation::default() };
            match of.layout() {
                Ok(parsed) => {
                    let raw = parsed.layout.disks.iter().filter(|disk| disk.image);
                    problems.extend(raw.map(|disk| {
                        format!(
                            "layout {} writes a raw image to {}, whose partitions are not known",
                            parsed.layout.id, disk.device
                        )
                    }));
                    if parsed.layout.encrypted().next().is_some() {
                        problems.push(format!(
                            "layout {} has encrypted filesystems or volume groups, whose keys would not be migrated: decrypt them first",
                            parsed.layout.id
                        ));
                    }
                    pairing::pair(&parsed.layout, &inventory.disks, &asked.disks).unwrap_or_else(|wrong| {
                        problems.extend(wrong.into_iter().map(|wrong| format!("machine {to}: {wrong}")));
                        Vec::new()
                    })
                }
                Err(wrong) => {
                    problems.push(format!("the layout of machine {id} is invalid: {}", problem::lines(&wrong)));
                    Vec::new()
                }
            }
        }
        (None, _) => {
            problems.extend(
                standing
                    .succeeded
                    .then(|| format!("this server lacks the layout with which machine {id} was installed")),
            );
            Vec::new()
        }
        (_, None) => Vec::new(),
    };
    problems.extend(disks.iter().filter_map(|disk| its_own(disk, marker.as_ref()?, id, &to)));
    if !problems.is_empty() {
        return Err(refused(&problems));
    }
    Ok(Move {
        id: uuid::Uuid::new_v4().to_string(),
        a: a.id.clone(),
        b: b.id.clone(),
        allocation: allocation.id.to_string(),
        state: MoveState::Ordered,
        created: now(),
        fencing: None,
        marker,
        disks,
        carried: None,
        sender: None,
        receiver: None,
        begun: None,
        failures: 0,
        failed: None,
        words_a: String::new(),
        words_b: String::new(),
        files: false,
        allow_unapproved: asked.allow_unapproved,
        approved: ApprovedCertificates::default(),
    })
}

/// Returns a problem if a disk of the target is also a disk of the source.
fn its_own(disk: &MarkedDisk, of_sender: &Marker, from: &str, to: &str) -> Option<String> {
    let (there, by) = of_sender.disks.iter().find_map(|there| Some((there, there.is_one_with(disk)?)))?;
    Some(format!(
        "machine {to}: its disk for {} has the same {by} as {} of machine {from}: both machines are connected to that disk, or it was moved. Put it back, or choose another disk",
        disk.device, there.device
    ))
}

fn has_volumes(machine: &Machine) -> bool {
    let volumes = machine.allocation.as_ref().and_then(|allocation| allocation.passed_on.get("volumes"));
    volumes.and_then(Value::as_array).is_some_and(|all| !all.is_empty())
}

fn refused(problems: &[String]) -> ApiError {
    let lines: Vec<String> = problems.iter().map(|problem| format!("not migrated: {problem}")).collect();
    ApiError::new(axum::http::StatusCode::CONFLICT, lines.join("\n"))
}

#[derive(Deserialize)]
pub struct Cancelling {
    #[serde(default)]
    off: Option<String>,
}

/// Handles `DELETE /v1/machine/{id}/move`. Once the target may run the system, `off` must name it: the operator confirms that it is
/// switched off.
pub async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
    query: Result<Query<Cancelling>, QueryRejection>,
) -> Result<Json<MoveShown>, ApiError> {
    let Query(Cancelling { off }) = query.map_err(|error| ApiError::bad(error.to_string()))?;
    let id = id.to_lowercase();
    let is = app.state.live_move(&id).await?.ok_or_else(|| no_move(&id))?;
    let off = off.map(|off| off.to_lowercase());
    if let Some(other) = off.as_ref().filter(|off| **off != is.b) {
        return Err(ApiError::bad(format!("machine {} must be switched off, not {other}", is.b)));
    }
    hears(&app, &is, Word::Cancel { off: off.is_some() }, peer).await
}

/// Handles `POST /v1/machine/{id}/move/finish`: the operator confirms that the system runs on the target.
pub async fn finish(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
) -> Result<Json<MoveShown>, ApiError> {
    let id = id.to_lowercase();
    let is = app.state.last_move(&id).await?.ok_or_else(|| no_move(&id))?;
    if is.state == MoveState::Done {
        return shown(&app, is).await.map(Json);
    }
    hears(&app, &is, Word::Finish, peer).await
}

/// Handles `POST /v1/machine/{id}/move/approve`: the operator compared the fingerprints with the consoles of both machines.
pub async fn approve(
    Path(id): Path<String>,
    Change { asked, turn }: Change<Approve, EVENT_BYTES>,
) -> Result<Json<MoveShown>, Refused> {
    let Turn { app, peer, .. } = &turn;
    let id = id.to_lowercase();
    let is = app.state.live_move(&id).await?.ok_or_else(|| no_move(&id))?;
    let now = app.state.present(&is).await?;
    let word = Word::Approves { fingerprints: asked.fingerprints, now };
    Ok(hears(app, &is, word, *peer).await?)
}

async fn hears(app: &App, is: &Move, word: Word, peer: Peer) -> Result<Json<MoveShown>, ApiError> {
    let heard = app.state.move_hears(&is.a, &is.id, word).await?.ok_or_else(|| no_move(&is.a))?;
    let conflict = |why| ApiError::new(axum::http::StatusCode::CONFLICT, why);
    let MoveHeard { is, news } = heard.map_err(conflict)?;
    if news {
        app.watch.note(format!("the migration {}, on request of {peer}", in_words(&app.directory(), &is)));
        app.state_has_changed();
    }
    shown(app, is).await.map(Json)
}
