//! The planner: a pure function of layout, inventory and mode, without I/O, clock or randomness.

mod absent;
mod already;
pub mod approved;
mod arrays;
mod begun_attempt;
mod blank_only;
mod booting;
mod capacity;
mod carrying;
mod companions;
mod contents;
mod copies;
mod defining;
mod devices;
mod disks;
mod display;
mod encrypted_groups;
mod entering;
mod erasing;
mod extents;
mod filesystems;
mod finishing;
pub mod firmware;
mod give_up;
mod handing;
mod harmless;
mod identity;
mod identity_words;
mod image;
mod injecting;
pub mod kept;
mod lifting;
pub mod luks;
mod lvm;
mod making;
mod marking;
mod missing;
mod opaque;
mod order_age;
mod persistent;
mod placed;
pub mod pool_disks;
mod pooled;
mod promise;
mod reaching;
mod receiving;
mod recorded;
mod release;
mod retry;
mod returning;
mod same;
mod sectors;
mod stages;
mod staying;
mod steps;
mod together;
mod trying;
mod types;
mod unknown;
mod unremembered;
mod untouched;
mod verdict;
pub mod verdicts;
mod whole;
mod wipe;
mod writing;
mod zero_proofs;

pub use already::is_carried_out;
pub use carrying::carry;
pub use contents::Needs;
pub use entering::enter;
pub use erasing::erase;
pub use extents::{DiskExtents, Extents};
pub use injecting::inject;
use placed::FilesystemFate;
pub use pooled::{Owner, empty, is_installed};
pub use steps::missing as without_steps;
pub use types::*;
pub use verdicts::Verdicts;
pub use whole::is_whole;
pub use writing::write;

use crate::inventory::{Inventory, OpaqueObject};
use crate::layout::Layout;
use crate::marker::AttemptSecret;
use crate::problem::Problem;
use crate::topology::Match;
use uuid::Uuid;

/// A plan that was refused: all reasons at once, and how each disk would have been treated.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    pub mode: Mode,
    pub subject: Subject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    /// Objects whose content could not be inspected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque: Vec<OpaqueObject>,
    pub problems: Vec<Problem>,
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Returns the refusal with each problem located by line and column in the file that the layout was read from.
    pub fn located(mut self, locate: impl Fn(Problem) -> Problem) -> Refusal {
        self.problems = self.problems.into_iter().map(locate).collect();
        self
    }
}

/// Decides what happens to every disk of the machine. `ids` supplies the UUIDs of new objects, so that the plan contains them before the
/// objects exist.
///
/// The layout must be valid ([`crate::layout::validate`]).
///
/// # Errors Returns every reason why the layout does not fit this machine.
pub fn make(
    layout: &Layout,
    inventory: &Inventory,
    request: Request,
    ids: &mut dyn FnMut() -> Uuid,
) -> Result<Plan, Box<Refusal>> {
    let meant = receiving::meant(layout, inventory, &request);
    let layout = &*meant;
    if let Some(marked) = already::marked(layout, inventory, &request) {
        return already::arrange(layout, inventory, request, &marked);
    }
    let mut decided = verdict::decide(layout, inventory, &request, &Default::default(), ids);
    // Objects that an interrupted attempt completed are preserved; only incomplete ones are recreated.
    let remade = retry::disks_to_remake(layout, inventory, &request, &decided.problems);
    if !remade.is_empty() {
        let again = verdict::decide(layout, inventory, &request, &remade, ids);
        let is_better =
            again.problems.is_empty() && retry::changes_only(&Match::new(layout, inventory), &remade, &decided, &again);
        decided = if is_better { again } else { decided };
    }
    decided.problems.extend(steps::missing(&request.steps));
    decided.problems.extend(finishing::refused(layout, inventory, &request));
    decided.problems.extend(firmware::refused(layout, inventory));
    decided.problems.extend(blank_only::refused(&request, inventory, &decided.disks));
    decided.problems.extend(receiving::taken(&request, inventory, &decided));
    decided.secret = Some(AttemptSecret::draw(ids));
    let verdicts = decided.problems.is_empty().then(|| verdicts::of(layout, inventory, &request, &decided));
    // A plan that is refused for other reasons has no verdicts to compare.
    decided.problems.extend(verdicts.iter().flat_map(|verdicts| approved::refused(&request, verdicts)));
    if !decided.problems.is_empty() {
        let Request { mode, subject, .. } = request;
        return Err(Box::new(Refusal {
            mode,
            subject,
            layout: layout.id.clone(),
            disks: decided.disks,
            opaque: opaque::listed(inventory),
            problems: decided.problems,
        }));
    }
    Ok(Plan { verdicts, ..stages::arrange(layout, inventory, request, decided) })
}

#[cfg(test)]
pub mod tests;
