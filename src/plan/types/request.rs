//! What is asked for: the mode, and whose installation it is.

use crate::marker::{MarkedDisk, Marker};
use serde::{Deserialize, Serialize};

/// Fresh install, or a new image on a machine that keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Install,
    Reinstall,
}

/// How thoroughly a disk is erased before it is made anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(feature = "desk", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Erase {
    /// What takes seconds: throw away keys, discard. At least every place where signatures live is zero.
    #[default]
    Quick,
    /// Nothing of the old content can be read again, or the install fails.
    Secure,
    /// Only the places where signatures live.
    None,
}

/// What is asked for, beside the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub mode: Mode,
    pub erase: Erase,
    pub subject: Subject,
    /// Whose installation this is; nobody's on a desk.
    pub claim: Option<Claim>,
}

/// What the control plane says about the machine's installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    pub machine: String,
    pub allocation: String,
    /// Of a reinstall; empty for an install.
    pub order: String,
    /// The last finished installation, as the control plane remembers it.
    pub installed: Option<Marker>,
    pub waiver: Option<Waiver>,
    /// The disks of the last attempt that has begun.
    pub begun_on: Vec<MarkedDisk>,
    /// Serial numbers of disks whose content the operator gives up.
    pub give_up: Vec<String>,
}

/// Why a reinstall may go on without a marker on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiver {
    /// The operator has replaced the disk that had it.
    Operator,
    /// An earlier attempt has passed the point of no return.
    Begun,
}

/// Which machine gets which image; for the title of the plan and for the image's steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Subject {
    pub machine: String,
    pub name: String,
    pub image: String,
    pub url: String,
}
