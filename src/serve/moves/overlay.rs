//! Which machine's file gives an allocation that moves: the database says it, whatever the files say in between. Pure.

use super::Move;
use crate::carried::Part;
use crate::serve::input::{Allocation, Machine};

/// A machine's file as it counts while moves are open, or the files are behind them.
pub struct Overlay<'a> {
    moves: &'a [Move],
    /// The files as they are.
    files: Vec<Machine>,
}

impl<'a> Overlay<'a> {
    pub fn new(moves: &'a [Move], files: impl Iterator<Item = Machine>) -> Overlay<'a> {
        let files = if moves.is_empty() { Vec::new() } else { files.collect() };
        Overlay { moves, files }
    }

    /// The machine as it counts, and what has to be said of its file.
    pub fn of(&self, machine: &Machine) -> (Machine, Option<String>) {
        let Some(is) = self.moves.iter().find(|is| is.a == machine.id || is.b == machine.id) else {
            return (machine.clone(), None);
        };
        let own = machine.allocation.as_ref();
        let has_it = own.is_some_and(|own| *own.id == is.allocation);
        let owns = is.part(&machine.id) == is.state.owner();
        let other = own.filter(|_| !has_it);
        let said = other.map(|other| {
            format!(
                "its allocation {} does not count: the machine is part of a move of {} to {} ({})",
                *other.id, is.a, is.b, is.state
            )
        });
        let counts = match (owns, is.part(&machine.id), is.state.is_open()) {
            (true, ..) if has_it => own.cloned(),
            (true, Part::Send, true) => own.cloned(),
            (true, ..) => self.of_file(is.other(&machine.id), &is.allocation),
            // What has ended says nothing of other allocations.
            (false, _, false) => other.cloned(),
            (false, ..) => None,
        };
        let is_left = counts.as_ref().map(|counts| &*counts.id) == other.map(|other| &*other.id);
        (Machine { allocation: counts, ..machine.clone() }, said.filter(|_| !is_left))
    }

    fn of_file(&self, machine: &str, allocation: &str) -> Option<Allocation> {
        let file = self.files.iter().find(|file| file.id == machine)?;
        file.allocation.clone().filter(|own| *own.id == allocation)
    }
}
