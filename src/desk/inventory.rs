//! `drophammer inventory`: this machine as JSON.

use super::{Outcome, json, print};
use crate::error::Result;

/// Prints this machine.
///
/// # Errors
/// sysfs cannot be read.
pub fn inventory() -> Result<Outcome> {
    print(&(json(&crate::inventory::read()?)? + "\n"))?;
    Ok(Outcome::Good)
}
