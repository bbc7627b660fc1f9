//! `drophammer inventory`: this machine as JSON.

use crate::error::Result;
use crate::exit::Exit;
use crate::stdout::{json, print};
use crate::survey::{self, Depth};

/// Prints this machine.
///
/// # Errors
/// sysfs cannot be read.
pub fn inventory() -> Result<Exit> {
    print(&(json(&survey::read(Depth::Deep)?)? + "\n"))?;
    Ok(Exit::Good)
}
