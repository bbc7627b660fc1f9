//! Sender of a migration (see [`crate::carried`]). Its disks are made read-only before they are assembled, and no stage of a plan runs
//! here.
//!
//! | response of the control plane | action |
//! |---|---|
//! | the receiver has not begun | checks its certificate and waits; refuses a certificate that is not trusted |
//! | the receiver has begun, with this address and certificate | sends everything, once per boot of the receiver |
//! | `booting`: the receiver has everything | waits |
//! | `done` | waits: this machine is free, and reboots for another allocation |
//! | `cancelled`, `refused`, or another migration | reboots: its disks are intact, and the control plane decides what it boots |
//! | the migration continues, but has no instructions for this machine | waits: its file cannot be read |
//! | no information about the migration | waits, as limited by [`Silence`], then reboots to ask again, which ends nothing |

use super::Agent;
use super::approval::waiting_for_approval;
use super::ending::Failure;
use crate::allocation::{Allocation, Machine};
use crate::assigned::request;
use crate::carried::{Carried, Moving, Part, Peer, Said, Standing};
use crate::console::say;
use crate::device::KernelName;
use crate::error::{Error, Phase, Result};
use crate::facts::EventName;
use crate::inventory::Inventory;
use crate::moving::whole::{self, Device, Incoming, Own, SECRET_FILE, Silence, Silent};
use crate::plan::{self, FromDevice};
use crate::topology::Stack;
use crate::{problem, ready, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Polling interval of the control plane.
pub(super) const PAUSE: Duration = Duration::from_secs(3);

/// Delay before a failed transfer is retried.
const AGAIN: Duration = Duration::from_secs(15);

impl Agent {
    /// Sends the disks as long as the control plane requests it. Then the machine reboots.
    pub(super) fn give(&self, machine: &Machine, allocation: &Allocation, moving: &Moving) -> Result<(), Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        ready::require_tools().map_err(at("tools"))?;
        let refuse = |problems: &[_]| Error::refusal(Phase::Plan, problem::lines(problems));
        let layout = allocation.layout().map_err(|problems| at("move.carry")(refuse(&problems)))?.layout;
        ready::late_disks(&layout).map_err(at("move.carry"))?;
        // The locks are never released: the disks stay read-only until the machine reboots.
        let (inventory, _locks) = ready::locked_inventory().map_err(at("move.carry"))?;

        let claim = request(machine, &self.machine, allocation, &[]).claim.unwrap_or_default();
        let carried = plan::carry(&layout, &inventory, &claim);
        let (carried, from) = carried.map_err(|problems| at("move.carry")(refuse(&problems)))?;
        let own = Own::make(Path::new(SECRET_FILE)).map_err(at("move.carry"))?;
        say(&format!(
            "\nThe disks of this machine will be sent to another one. They are only read.\n{}\n{}\n",
            own.trust(),
            in_words(&from, &carried)
        ));
        let standing = Standing {
            order: moving.order.clone(),
            certificate: own.certificate().to_owned(),
            port: None,
            carried: Some(carried),
            words: None,
            has_secret: own.has_secret(),
        };
        self.control.moving(&standing).map_err(at("control.move"))?;
        self.reporter.phase(EventName::Waiting, "for the receiving machine of the migration");
        self.send(&own, &standing, &side_by_side(&inventory, &from)).map_err(at("move.peer"))
    }

    /// Sends the devices until the migration ends.
    ///
    /// # Errors
    /// Refuses a receiver, which has not erased anything yet, if its certificate is not trusted.
    fn send(&self, own: &Own, standing: &Standing, groups: &[Vec<FromDevice>]) -> Result<()> {
        let (order, told) = (standing.order.as_str(), Mutex::new(String::new()));
        // Reports to the control plane, which shows it to operators. Repeated messages are not sent.
        let tell = |words: &str| {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if *told != words {
                words.clone_into(&mut told);
                let standing = Standing { words: Some(words.to_owned()), ..standing.clone() };
                if let Err(error) = self.control.moving(&standing) {
                    self.reporter.say(&format!("{error}"));
                }
            }
        };
        let (mut sent_to, mut waits_for, mut silence) = (String::new(), String::new(), Silence::default());
        let mut wait = |what: &str| {
            if waits_for != what {
                what.clone_into(&mut waits_for);
                self.reporter.phase(EventName::Waiting, what);
            }
        };
        loop {
            thread::sleep(PAUSE);
            let machine = match self.control.machine() {
                Ok(machine) => machine,
                // A token expires after a day.
                Err(error) if error.is_refusal() => {
                    self.say_reboot(&format!("for a new token: {error}"));
                    return Ok(());
                }
                Err(error) => {
                    silence.is_broken();
                    self.reporter.say(&format!("{error}"));
                    continue;
                }
            };
            let moving = match next(&machine, order, &mut silence) {
                Next::Sends(moving) => moving,
                Next::Waits(what) => {
                    wait(&what);
                    continue;
                }
                Next::BootsAgain(why) => {
                    self.say_reboot(why);
                    return Ok(());
                }
            };
            let Some(peer) = receiver(own, &moving, &sent_to)? else {
                if moving.awaits_approval {
                    wait(&waiting_for_approval(own));
                }
                continue;
            };
            self.reporter.say(&format!("to {}", peer.address));
            let groups: Vec<Vec<Device>> = groups.iter().map(|group| group.iter().map(device).collect()).collect();
            let (say, fails) = (|line: &str| self.reporter.say(line), |error: &Error| tell(&error.to_string()));
            match whole::send(own, peer, order, &groups, &say, &fails) {
                Ok(()) => {
                    sent_to.clone_from(&peer.certificate);
                    tell("");
                    wait("for the receiving machine: everything was sent and acknowledged");
                }
                Err(error) => {
                    // May repeat an error that was reported for a group.
                    fails(&error);
                    self.reporter.say(&format!("{error}; the transfer will be resumed"));
                    thread::sleep(AGAIN);
                }
            }
        }
    }

    /// Opens the receiving end of a migration, and reports it to the control plane.
    pub(super) fn stand(&self, allocation: &Allocation) -> Result<Option<Incoming>> {
        let Some(moving) = allocation.moving.as_ref().filter(|moving| moving.part == Part::Receive) else {
            return Ok(None);
        };
        let incoming = Incoming::open(Own::make(Path::new(SECRET_FILE))?, moving.carried.clone())?;
        say(&format!(
            "\nThis machine replaces another one, whose disks it receives over TLS: {}",
            incoming.own().trust()
        ));
        if let Some(peer) = &moving.peer {
            incoming.hear(peer)?;
        }
        let certificate = incoming.own().certificate().to_owned();
        let (order, has_secret) = (moving.order.clone(), incoming.own().has_secret());
        let standing = Standing { order, certificate, port: incoming.port(), carried: None, words: None, has_secret };
        self.control.moving(&standing)?;
        Ok(Some(incoming))
    }
}

/// Returns the receiver to which everything must be sent now. Before it has erased its disks, only its certificate is checked. Nothing is
/// sent to a machine whose certificate is neither approved nor signed with the secret, regardless of the control plane.
fn receiver<'m>(own: &Own, moving: &'m Moving, sent_to: &str) -> Result<Option<&'m Peer>> {
    let Some(peer) = moving.peer.as_ref().filter(|peer| own.may_trust(peer)) else { return Ok(None) };
    if !moving.begun {
        own.check(peer)?;
    }
    Ok(Some(peer).filter(|peer| moving.begun && peer.certificate != sent_to))
}

/// Next action of the sender.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Sends(Box<Moving>),
    Waits(String),
    BootsAgain(&'static str),
}

fn next(machine: &Machine, order: &str, silence: &mut Silence) -> Next {
    let said = machine.says_of(order);
    if said != Said::Nothing {
        silence.is_broken();
    }
    let waits = |what: &str| Next::Waits(what.to_owned());
    match said {
        Said::Part(moving) => Next::Sends(Box::new(moving.clone())),
        Said::Waits("booting") => {
            waits("for the receiving machine, which has everything; whether it runs the system is not confirmed yet")
        }
        Said::Waits(state) => waits(&format!(
            "for the control plane: the migration is {state}, without instructions for this machine; its file may not be readable"
        )),
        Said::Done if machine.allocation.is_some() => Next::BootsAgain("for another allocation of this machine"),
        Said::Done => waits("the migration is complete, and this machine is free"),
        Said::Over => Next::BootsAgain("the migration has ended, and the disks of this machine are unchanged"),
        Said::Nothing => match silence.heard() {
            Silent::Ends => Next::BootsAgain("the control plane no longer reports the migration"),
            _ => waits("for the control plane, which does not report the migration, for at most ten minutes"),
        },
    }
}

fn device(from: &FromDevice) -> Device {
    Device { name: from.name.to_string(), path: from.device.clone() }
}

/// Groups devices so that devices of different groups have no disk in common.
fn side_by_side(inventory: &Inventory, from: &[FromDevice]) -> Vec<Vec<FromDevice>> {
    let stack = Stack::new(inventory);
    let mut groups: Vec<(BTreeSet<KernelName>, Vec<FromDevice>)> = Vec::new();
    for device in from {
        let disks = stack.disks(&stack.name(&device.device));
        let (same, others) = groups.into_iter().partition(|(below, _)| !below.is_disjoint(&disks));
        groups = others;
        let mut group = (disks, Vec::new());
        for (below, devices) in same as Vec<(BTreeSet<KernelName>, Vec<FromDevice>)> {
            group.0.extend(below);
            group.1.extend(devices);
        }
        group.1.push(device.clone());
        groups.push(group);
    }
    groups.into_iter().map(|(_, devices)| devices).collect()
}

fn in_words(from: &[FromDevice], carried: &Carried) -> String {
    let size = |from: &FromDevice| {
        let found = carried.filesystems.iter().find(|filesystem| filesystem.device == from.name);
        found.map_or_else(String::new, |filesystem| text::bytes(filesystem.size_bytes))
    };
    let line =
        |from: &FromDevice| format!("  {:<24} {:<6} {:>10}  {}", from.name, from.format, size(from), from.device);
    from.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carried::Newest;
    use crate::inventory::Disk;
    use crate::layout::Format;

    fn answer(newest: Option<(&str, &str)>, allocation: Option<Allocation>) -> Machine {
        let newest = newest.map(|(order, state)| Newest { order: order.to_owned(), state: state.to_owned() });
        Machine { newest_move: newest, allocation, ..Machine::default() }
    }

    /// A file that is not readable for a moment, or an earlier control plane, takes no system from anybody.
    #[test]
    fn a_missing_answer_is_waited_for_and_an_end_is_said() {
        let moving = Moving {
            order: "o1".to_owned(),
            part: Part::Send,
            begun: true,
            awaits_approval: false,
            peer: None,
            carried: None,
            disks: Vec::new(),
        };
        let sends = Allocation { moving: Some(moving.clone()), ..Allocation::default() };
        let other = Allocation { id: "a9".to_owned(), ..Allocation::default() };
        let mut silence = Silence::default();
        let mut after = |newest, allocation| next(&answer(newest, allocation), "o1", &mut silence);
        assert_eq!(after(Some(("o1", "copying")), Some(sends.clone())), Next::Sends(Box::new(moving.clone())));
        assert_eq!(after(None, Some(sends)), Next::Sends(Box::new(moving)), "a control plane of an earlier version");
        for (newest, words) in [
            (Some(("o1", "copying")), "the migration is copying"),
            (Some(("o1", "booting")), "not confirmed yet"),
            (Some(("o1", "done")), "this machine is free"),
            (None, "does not report the migration"),
        ] {
            let Next::Waits(what) = after(newest, None) else { panic!("{newest:?}") };
            assert!(what.contains(words), "{what}");
        }
        for (newest, allocation) in [
            (Some(("o1", "cancelled")), None),
            (Some(("o1", "refused")), Some(other.clone())),
            (Some(("o2", "ordered")), None),
            (Some(("o1", "done")), Some(other.clone())),
        ] {
            assert!(matches!(after(newest, allocation), Next::BootsAgain(_)), "{newest:?}");
        }
        // Of an earlier version, when it is over: that is waited for too.
        assert!(matches!(after(None, Some(other)), Next::Waits(_)));
    }

    /// The attack: a machine that impersonates the receiver asks for the disks. The control plane may have been deceived, or be deceiving.
    #[test]
    fn nothing_is_sent_to_a_machine_that_nobody_vouches_for() {
        let own = Own::make(Path::new("/there/is/no/secret")).unwrap();
        let certificate = Own::make(Path::new("/there/is/no/secret")).unwrap().certificate().to_owned();
        for (approved, begun, is_sent_to) in
            [(false, true, false), (false, false, false), (true, false, false), (true, true, true)]
        {
            let peer = Some(Peer { certificate: certificate.clone(), address: String::new(), approved });
            let (order, part) = ("o1".to_owned(), Part::Send);
            let moving = Moving { order, part, begun, awaits_approval: false, peer, carried: None, disks: Vec::new() };
            assert_eq!(receiver(&own, &moving, "").unwrap().is_some(), is_sent_to, "{approved} {begun}");
        }
        // The signature with the secret takes the place of the approval.
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "the secret of both ramdisks\n").unwrap();
        let (own, other) = (Own::make(secret.path()).unwrap(), Own::make(secret.path()).unwrap());
        for (certificate, is_good) in [(other.certificate(), true), (certificate.as_str(), false)] {
            let peer = Peer { certificate: certificate.to_owned(), address: String::new(), approved: false };
            assert_eq!(own.check(&peer).is_ok(), is_good);
        }
    }

    /// Once the other machine has erased its disks, a refusal ends nothing any more.
    #[test]
    fn a_certificate_is_looked_at_before_the_other_machine_has_begun() {
        let own = Own::make(Path::new("/there/is/no/secret")).unwrap();
        let good = Own::make(Path::new("/there/is/no/secret")).unwrap().certificate().to_owned();
        let of = |certificate: &str, begun| {
            let peer = Some(Peer { certificate: certificate.to_owned(), address: String::new(), approved: true });
            let (order, part) = ("o1".to_owned(), Part::Send);
            let moving = Moving { order, part, begun, awaits_approval: false, peer, carried: None, disks: Vec::new() };
            receiver(&own, &moving, "sent").map(|peer| peer.map(|peer| peer.certificate.clone()))
        };
        assert_eq!(of(&good, false).unwrap(), None);
        assert_eq!(of(&good, true).unwrap(), Some(good.clone()));
        assert_eq!(of("sent", true).unwrap(), None);
        assert_eq!(of("none", true).unwrap(), Some("none".to_owned()), "that fails with words, and is tried again");
        let refused = of("none", false).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().contains("certificate of the other machine"), "{refused}");
    }

    #[test]
    fn what_shares_a_disk_is_read_one_after_the_other() {
        let disk =
            |name: &str| Disk { name: name.into(), device: format!("/dev/{name}").as_str().into(), ..Disk::default() };
        let inventory = Inventory { disks: vec![disk("sda"), disk("sdb")], ..Inventory::default() };
        let from = |device: &str| FromDevice { name: device.into(), device: device.into(), format: Format::Ext4 };
        let groups = side_by_side(&inventory, &[from("/dev/sda"), from("/dev/sdb"), from("/dev/sda")]);
        let names: Vec<Vec<&str>> =
            groups.iter().map(|group| group.iter().map(|from| from.device.as_str()).collect()).collect();
        assert_eq!(names, [vec!["/dev/sdb"], vec!["/dev/sda", "/dev/sda"]]);
    }
}
