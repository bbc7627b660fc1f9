//! LVM: volume groups and logical volumes as the plan says.

use crate::error::Result;
use crate::plan::{CreateGroup, CreateVolume};

pub const TOOLS: &[&str] = &["lvm"];

pub fn create_group(_group: &CreateGroup) -> Result<()> {
    todo!()
}

pub fn create_volume(_volume: &CreateVolume) -> Result<()> {
    todo!()
}

pub fn activate(_name: &str, _devices: &[String]) -> Result<()> {
    todo!()
}

pub fn deactivate(_name: &str, _devices: &[String]) -> Result<()> {
    todo!()
}
