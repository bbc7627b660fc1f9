//! A system that no image brings: a program of the OS definition makes it.

use super::BurnDisk;
use crate::definition::Chosen;
use crate::device::DevicePath;
use serde::Serialize;
use std::collections::BTreeMap;

/// The `create` of an OS definition, and what it gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateSystem {
    /// With its variant.
    pub os: String,
    /// The disks that it may write, in the layout's order: those that are made anew. No others are in its `/dev`.
    pub disks: Vec<DevicePath>,
    /// The disk with the system, and what must be on it afterwards: as of an image that was written there.
    pub onto: BurnDisk,
    /// What it is told.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    #[serde(skip)]
    pub chosen: Box<Chosen>,
}
