//! `drophammer inventory`: this machine as JSON.

use super::{Outcome, json};
use crate::error::Result;

/// Prints this machine.
///
/// # Errors
/// sysfs cannot be read.
pub fn inventory() -> Result<Outcome> {
    println!("{}", json(&crate::inventory::read()?)?);
    Ok(Outcome::Good)
}
