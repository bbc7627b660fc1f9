//! Options of the commands that plan or order a reinstall.

use agent::cli::EXIT_CODES;
use api::operator_api::reinstalls::ReinstallRequest;
use clap::Args;
use std::path::PathBuf;
use uuid::Uuid;

/// Overrides of a reinstall. An override applies to one order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ReinstallOverrideOptions {
    /// Reinstall even if the disk with the root filesystem (/) does not contain an install marker of this machine, for
    /// example after the disk was replaced.
    #[arg(long)]
    pub without_marker: bool,
    /// Use the layout of the machine file even if this layout wipes disks that the installed layout preserves.
    #[arg(long)]
    pub change_promise: bool,
    /// Erase the data of the disk with this serial number; may be given several times.
    #[arg(long, value_name = "SERIAL")]
    pub give_up: Vec<String>,
    /// Leave the preserved LUKS container with this UUID locked, even if the reinstall erases the only copy of its key;
    /// may be given several times.
    #[arg(long, value_name = "UUID")]
    pub leave_locked: Vec<Uuid>,
    /// Replace the installation on the disks, even if the installation is newer than the server's record.
    #[arg(long)]
    pub replace_newer: bool,
    /// Apply the allocation of the machine file: hostname, SSH keys, user data and all other fields. Without this
    /// option, only the image changes, and the installed allocation is kept.
    #[arg(long)]
    pub apply_allocation: bool,
}

impl ReinstallOverrideOptions {
    /// Returns the request for a reinstall of this machine with this image and these overrides.
    pub(crate) fn to_request(&self, machine: &str, image: &str) -> ReinstallRequest {
        let ReinstallOverrideOptions { without_marker, change_promise, give_up, .. } = self.clone();
        ReinstallRequest {
            id: machine.to_owned(),
            imageid: image.to_owned(),
            without_marker,
            change_promise,
            give_up,
            leave_locked: self.leave_locked.iter().map(Uuid::to_string).collect(),
            replace_newer: self.replace_newer,
            apply_allocation: self.apply_allocation,
            ..ReinstallRequest::default()
        }
    }
}

/// Returns the examples and the exit status of `drophammer machine plan`.
pub(super) fn plan_help() -> String {
    format!(
        "Examples: print the plan of the next boot; print and save the plan of a reinstall\n  \
        drophammer machine plan storage-7\n  \
        drophammer machine plan storage-7 --image debian-13.1.20261101 --out storage-7.plan\n\n{EXIT_CODES}\n\
        With --detailed-exitcode: 0 nothing changes, 3 data would be lost, 4 the machine changes without loss."
    )
}

#[derive(Debug, Args)]
pub struct PlanMachineOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// Preview a reinstall, even if none is ordered.
    #[arg(long)]
    pub reinstall: bool,
    /// Preview a reinstall with this image.
    #[arg(long, value_name = "ID")]
    pub image: Option<String>,
    #[command(flatten)]
    pub overrides: ReinstallOverrideOptions,
    /// Save the plan of the reinstall in this file. `drophammer machine reinstall --plan FILE` orders exactly this
    /// plan.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// With --out, overwrite a file that is not a plan of this machine.
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Output of `drophammer inventory` on the machine; by default, the inventory with which the machine registered.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Let the exit status report the effect: 0 if nothing changes, 3 if data would be lost, 4 if the machine changes
    /// without loss. With this option, a machine that is installed and has no reinstall order is reported as unchanged
    /// (0), not as refused (2).
    #[arg(long)]
    pub detailed_exitcode: bool,
}

#[derive(Debug, Args)]
pub struct ReinstallOrderOptions {
    /// Ids or names of machines. Several machines are reinstalled as a rollout, in this order, which requires --at-most
    /// and a confirmation by the number of machines (--yes).
    #[arg(value_name = "ID", required_unless_present_any = ["plans", "filter"])]
    pub machines: Vec<String>,
    /// Id of the new image.
    #[arg(long, required_unless_present_any = ["cancel", "plans"])]
    pub image: Option<String>,
    #[command(flatten)]
    pub overrides: ReinstallOverrideOptions,
    /// Order exactly the plan that `drophammer machine plan --out FILE` has saved, and approve this plan. The order
    /// is refused if the layout, the image, the allocation or the inventory has changed since. If one of them changes
    /// after the order, the machine is not reinstalled. The content of an image is compared only if its digest is
    /// known.
    ///
    /// A rollout accepts several plans.
    #[arg(long = "plan", value_name = "FILE", conflicts_with_all = ORDERED)]
    pub plans: Vec<PathBuf>,
    #[command(flatten)]
    pub rollout: RolloutLimitOptions,
    /// Start the reinstall now: set the machine to boot over PXE next and power-cycle it, through the controller in
    /// `bmc:` of its machine file. In a rollout, the server does this for each machine as soon as it has ordered the
    /// reinstall of the machine.
    #[arg(long)]
    pub now: bool,
    /// Order the reinstall even if its plan is refused. The server plans the reinstall with the hardware that the
    /// machine has registered last. If the hardware was repaired since, the machine's own plan at its next boot may
    /// succeed.
    #[arg(long, conflicts_with_all = ["at_most", "start", "window", "filter", "stop_after"])]
    pub ignore_plan: bool,
    /// Cancel the reinstall order. This is possible only until the reinstall has started.
    #[arg(long, conflicts_with_all = ORDERED, conflicts_with_all = ["plans", "now", "at_most", "start", "window", "filter", "yes"])]
    pub cancel: bool,
    /// Number of machines that will be reinstalled, which confirms an order for several machines or with --filter.
    /// Without this option, the command prompts for the number.
    #[arg(long, value_name = "COUNT")]
    pub yes: Option<usize>,
}

/// Limits of a rollout. With one of these options, the server itself orders each reinstall when the turn of its machine
/// comes.
#[derive(Debug, Clone, Default, Args)]
pub struct RolloutLimitOptions {
    /// Reinstall at most this number of machines at the same time. The server orders the next reinstall when one has
    /// ended.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub at_most: Option<u32>,
    /// Order no further reinstalls after this number of failures [default: 1].
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub stop_after: Option<u32>,
    /// Order no reinstall before this time: 2026-12-01T02:00Z, or +2h from now, according to the server's clock.
    #[arg(long, value_name = "TIME")]
    pub start: Option<String>,
    /// Order reinstalls only within these hours in UTC, on all days or on some weekdays: 01:00-05:00 or "Sat,Sun
    /// 22:00-04:00".
    #[arg(long, value_name = "HOURS")]
    pub window: Option<String>,
    /// Reinstall all machines with this value, or with one of several values separated by commas, in the order of their
    /// names; can be specified several times, as in `machine list`.
    #[arg(long, value_name = "KEY=VALUE[,VALUE]", conflicts_with_all = ["machines", "plans"])]
    pub filter: Vec<String>,
}

impl ReinstallOrderOptions {
    /// Returns whether the options describe a rollout instead of a single order.
    pub(crate) fn is_rollout(&self) -> bool {
        let RolloutLimitOptions { at_most, stop_after, start, window, filter } = &self.rollout;
        let is_limited = at_most.is_some() || stop_after.is_some() || start.is_some() || window.is_some();
        is_limited || !filter.is_empty() || self.machines.len() > 1 || self.plans.len() > 1
    }
}

/// Names of the options that specify an order on the command line.
const ORDERED: [&str; 8] = [
    "image",
    "without_marker",
    "change_promise",
    "give_up",
    "leave_locked",
    "replace_newer",
    "apply_allocation",
    "ignore_plan",
];
