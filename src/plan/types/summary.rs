//! What a plan means for the data on the disks: what is there, what is taken apart, how much is lost.

use super::{DiskPlan, Verdict};
use crate::device::KernelName;
use crate::inventory::{Disk, Signature, Table};
use serde::Serialize;

/// What is on a disk now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub table: Option<Table>,
    /// On the whole disk.
    pub signatures: Vec<Signature>,
    /// Samples from all over it are zero. Without that, a disk with nothing known on it may hold anything.
    pub blank: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl Found {
    pub fn on(disk: &Disk) -> Found {
        Found {
            table: disk.table.clone(),
            signatures: disk.signatures.clone(),
            blank: disk.blank,
            unreadable: disk.unreadable.clone(),
        }
    }
}

/// An array, group or filesystem that is taken apart: some of its members are wiped, the others stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Torn {
    /// `md127`, `vg:vg00`, `zfs_member "tank"`.
    pub name: String,
    /// All of it, in words.
    pub whole: String,
    /// The members that are wiped.
    pub wiped: Vec<KernelName>,
    /// The disks with the other members.
    pub stays_on: Vec<KernelName>,
}

/// The plan in a few numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub wiped: Vec<KernelName>,
    /// Disks that are to be kept, and have nothing that could be.
    pub made: Vec<KernelName>,
    pub kept: Vec<KernelName>,
    pub untouched: Vec<KernelName>,
    /// With volumes of Kubernetes, and nothing else of ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<KernelName>,
    /// Of the wiped disks that are not proven blank.
    pub lost_bytes: u64,
}

impl Summary {
    pub fn of(disks: &[DiskPlan]) -> Summary {
        let names = |verdict: Verdict| -> Vec<KernelName> {
            disks.iter().filter(|disk| disk.verdict == verdict).map(|disk| disk.name.clone()).collect()
        };
        let lost = disks.iter().filter(|disk| disk.verdict == Verdict::Wipe && !disk.found.blank);
        Summary {
            wiped: names(Verdict::Wipe),
            made: names(Verdict::Make),
            kept: names(Verdict::Keep),
            untouched: names(Verdict::NotOurs),
            volumes: names(Verdict::Volumes),
            lost_bytes: lost.fold(0, |sum: u64, disk| sum.saturating_add(disk.size_bytes)),
        }
    }
}
