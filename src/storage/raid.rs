//! mdadm: arrays as the plan says.

use crate::error::Result;
use crate::plan::CreateArray;
use uuid::Uuid;

pub const TOOLS: &[&str] = &["mdadm"];

pub fn create(_array: &CreateArray) -> Result<()> {
    todo!()
}

pub fn assemble(_device: &str, _uuid: Uuid, _members: &[String]) -> Result<()> {
    todo!()
}

pub fn stop(_device: &str) -> Result<()> {
    todo!()
}
