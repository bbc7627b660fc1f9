//! The rules a layout must keep before any machine is looked at.

use super::Layout;
use crate::problem::Problem;

/// Every rule that the layout breaks; empty when it can be used.
pub fn validate(_layout: &Layout) -> Vec<Problem> {
    Vec::new()
}
