//! Responses to the two machines of a migration about the allocation, and predictions of these before the machines call. Pure.

use super::{Move, MoveState, Present};
use crate::allocation::{Allocation, Approved};
use crate::carried::{Moving, Part};
use crate::marker::AttemptRecord;
use crate::serve::api::told::on_the_wire;
use crate::serve::directory::Directory;
use crate::serve::input::Machine;
use crate::serve::resolve::{Assigned, resolve};
use crate::serve::state::{First, Standing};

/// Response to a machine about an allocation.
pub struct Given {
    pub assigned: Assigned,
    pub standing: Standing,
    pub moving: Option<Moving>,
}

/// Returns the source machine, if its file can be read and has the migrated allocation.
pub fn sender<'d>(directory: &'d Directory, is: &Move) -> Option<&'d Machine> {
    let has_it = |machine: &&Machine| machine.allocation.as_ref().is_some_and(|has| *has.id == is.allocation);
    directory.machine(&is.a).filter(has_it)
}

/// Returns the allocation of the source machine. It is migrated only if it is installed, and no installation of it is pending.
pub fn installed(directory: &Directory, is: &Move, standing: &Standing) -> Option<Assigned> {
    let machine = sender(directory, is)?;
    if !standing.succeeded || standing.order.is_some() {
        return None;
    }
    resolve(machine, standing, &directory.known).ok().flatten().filter(|assigned| !assigned.installs)
}

/// Returns the response to the source machine.
pub fn to_sender(is: Move, now: Present, assigned: Assigned, standing: Standing) -> Given {
    let moving = Moving { carried: None, disks: Vec::new(), ..moving(is, Part::Send, now) };
    Given { assigned, standing, moving: Some(moving) }
}

/// Returns the response to the target machine, with the approval in force for its plan. For the target, this is a first installation.
pub fn to_receiver(
    is: Move,
    now: Present,
    mut assigned: Assigned,
    of_sender: Standing,
    approved: Option<Approved>,
    directory: &Directory,
) -> Given {
    assigned.approved = approved;
    let image = directory.known.images.get(&assigned.image.id).cloned().flatten();
    assigned.image.finish = image.and_then(|image| image.finish);
    let standing = Standing { fencing: is.fencing.clone(), ..received(&is, of_sender) };
    Given { assigned, standing, moving: Some(moving(is, Part::Receive, now)) }
}

fn moving(is: Move, part: Part, now: Present) -> Moving {
    let (peer, awaits_approval) = (is.peer_of(part, now), is.awaits_approval());
    let begun = is.state == MoveState::Copying;
    Moving { order: is.id, part, begun, awaits_approval, peer, carried: is.carried, disks: is.disks }
}

/// Returns the allocation as a first installation of the target machine. The image of the migrated system is not checked.
fn received(is: &Move, of_sender: Standing) -> Standing {
    let begun = is.begun.as_ref();
    let secret_digest = begun.and_then(|begun| begun.secret_digest.clone());
    let first = First {
        disks: begun.map(|begun| begun.disks.clone()).unwrap_or_default(),
        record: secret_digest.map(|secret_digest| AttemptRecord { secret_digest, image: None }),
        ..First::default()
    };
    let former = of_sender.former.into_iter().chain([is.a.clone()]).collect();
    Standing { created: of_sender.created, first: Some(first), former, ..Standing::default() }
}

impl Given {
    /// Returns the allocation as it is sent to an agent. The source needs no secrets, and a target that has started already has them.
    pub fn on_the_wire(self, base: &str, has_not_begun: bool) -> Allocation {
        let Given { assigned, standing, moving } = self;
        let receives = moving.as_ref().is_some_and(|moving| moving.part == Part::Receive);
        Allocation { moving, ..on_the_wire(&assigned, standing, base, has_not_begun && receives) }
    }
}

/// Predicted effect of a migration on a machine that has not called yet.
pub enum Foreseen {
    /// The migration does not affect the machine.
    AsEver,
    /// The disks are not written, for this reason.
    Nothing(String),
    /// Not predictable yet, for this reason.
    Unknown(String),
    /// The machine plans with this response as soon as the source waits in its ramdisk.
    Told(Box<Given>),
}

/// Predicts the effect of a migration on one of its machines. `of_sender` is the state of the allocation on the source machine.
pub fn foreseen(
    is: Move,
    machine: &str,
    of_sender: Standing,
    approved: Option<Approved>,
    directory: &Directory,
) -> Foreseen {
    let (a, b) = (directory.name(&is.a), directory.name(&is.b));
    match (is.part(machine), is.state) {
        (_, MoveState::Done | MoveState::Cancelled | MoveState::Refused) | (Part::Receive, MoveState::Booting) => {
            Foreseen::AsEver
        }
        (Part::Send, state) => {
            Foreseen::Nothing(format!("its system is migrated to {b} ({state}): its disks are read, and not written"))
        }
        (Part::Receive, state) if is.carried.is_none() => Foreseen::Unknown(format!(
            "it receives the system of {a} ({state}), which has not waited in its ramdisk for that yet: its contents are not known before that"
        )),
        (Part::Receive, state) => match installed(directory, &is, &of_sender) {
            None => Foreseen::Unknown(format!(
                "it receives the system of {a} ({state}), whose file cannot be read, or lacks the migrated allocation"
            )),
            Some(assigned) => {
                let given = to_receiver(is, Present::default(), assigned, of_sender, approved, directory);
                Foreseen::Told(Box::new(given))
            }
        },
    }
}
