//! Plans that were refused.

use super::{DiskPlan, InstallMode, PlanSubject};
use common::diagnostic::{Diagnostic, summarize_problems};
use common::error_code::ErrorCode;
use model::inventory::OpaqueObject;

/// A plan that was refused, with all reasons for the refusal and the verdict that each disk would have had.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlanRefusal {
    pub mode: InstallMode,
    pub subject: PlanSubject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    /// Objects whose content could not be inspected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque: Vec<OpaqueObject>,
    pub problems: Vec<Diagnostic>,
}

impl std::error::Error for PlanRefusal {}

impl PlanRefusal {
    /// Returns the code of the first problem.
    pub fn code(&self) -> ErrorCode {
        self.problems.first().and_then(|problem| problem.code).unwrap_or(ErrorCode::Plan)
    }

    /// Returns all reasons in one line, each with its code.
    pub fn reasons(&self) -> String {
        summarize_problems(&self.problems)
    }

    /// Returns the refusal after `locate` has added line and column in the layout's file to each problem.
    pub fn located(mut self, locate: impl Fn(Diagnostic) -> Diagnostic) -> PlanRefusal {
        self.problems = self.problems.into_iter().map(locate).collect();
        self
    }
}
