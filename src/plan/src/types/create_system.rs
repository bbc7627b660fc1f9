//! Systems that a program of the OS definition creates instead of an image.

use super::BurnDisk;
use model::device::DevicePath;
use model::os_definition::SelectedDefinition;
use serde::Serialize;
use std::collections::BTreeMap;

/// Invocation of the `create` program of an OS definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateSystem {
    /// Name of the OS definition, with its variant.
    pub os: String,
    /// Disks that the program may write, in the order of the layout: those that are recreated. Its `/dev` contains no others.
    pub disks: Vec<DevicePath>,
    /// The system disk, and the content that is expected on it afterwards, as after writing a raw image.
    pub onto: BurnDisk,
    /// Environment of the program.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    #[serde(skip)]
    pub chosen: Box<SelectedDefinition>,
}
