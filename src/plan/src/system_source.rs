//! Source of the system that is installed: an image, the `create` program of an OS definition, or another machine.

use super::PlanRequest;
use super::filesystem_fate::PlacedFilesystem;
use super::image_stages::ImageSource;
use super::migration_target::MigrationSource;
use super::plan_decisions::PlanDecisions;
use super::preserved_activation::RestorePlan;
use common::diagnostic::Diagnostic;
use model::inventory::Inventory;
use model::layout::Layout;
use model::storage_graph::LayoutMatch;
use operations::{FinishInputs, FstabEntry, Operation, SessionOp, StageName};
use std::borrow::Cow;

/// Parts of an installation that depend on the source of the system. All other parts are the same for all sources.
pub(crate) trait SystemSource {
    /// Returns the layout as adapted to this machine.
    fn adapt_layout<'a>(&self, layout: &'a Layout, inventory: &Inventory) -> Cow<'a, Layout>;

    /// Returns the reasons why the system cannot be installed on this machine.
    fn find_problems(&self, layout: &Layout, inventory: &Inventory, decided: &PlanDecisions) -> Vec<Diagnostic>;

    /// Returns whether the plan contains this operation. Returns false if the operation creates a filesystem, or tries
    /// its creation in memory, and the source supplies this filesystem.
    fn is_created(&self, operation: &Operation) -> bool;

    fn build_stages(&self, inputs: &SourceInputs, finishing: Box<FinishInputs>) -> SystemStages;
}

impl PlanRequest {
    pub(crate) fn source(&self) -> Box<dyn SystemSource + '_> {
        match self.receiving() {
            Some(offer) => Box::new(MigrationSource { request: self, offer }),
            None => Box::new(ImageSource(self)),
        }
    }
}

/// Inputs from which a [`SystemSource`] builds the stages of the installation.
pub(crate) struct SourceInputs<'a> {
    pub layout: &'a Layout,
    pub meant: &'a LayoutMatch<'a>,
    pub decided: &'a PlanDecisions,
    pub filesystems: &'a [PlacedFilesystem<'a>],
    pub returning: &'a RestorePlan<'a>,
    pub fstab: &'a [FstabEntry],
}

pub(crate) type StageOperations = (StageName, Vec<Operation>);

/// Stages and operations that depend on the source of the system.
pub(crate) struct SystemStages {
    pub reach: Option<SessionOp>,
    /// Additional checks that run before anything is written.
    pub checks: Vec<SessionOp>,
    pub first: StageOperations,
    pub second: StageOperations,
    pub installer: Operation,
    pub fstab: Vec<Operation>,
    pub entries: Option<Operation>,
    /// Check that runs immediately before the install marker is written.
    pub before_marker: Option<SessionOp>,
    pub warnings: Vec<String>,
}
