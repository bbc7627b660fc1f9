//! Options of the commands that plan or order a reinstall.

use api::operator::reinstalls::ReinstallRequest;
use clap::Args;
use std::path::PathBuf;

/// Overrides of a reinstall. An override applies to one order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ReinstallOverrideOptions {
    /// Reinstall even if the disk with / does not contain an install marker of this machine, for example after the disk
    /// was replaced.
    #[arg(long)]
    pub without_marker: bool,
    /// Use the layout of the machine file even if this layout wipes disks that the installed layout preserves.
    #[arg(long)]
    pub change_promise: bool,
    /// Erase the data of the disk with this serial number; may be given several times.
    #[arg(long, value_name = "SERIAL")]
    pub give_up: Vec<String>,
    /// Replace the installation on the disks even if it is newer than the server's record.
    #[arg(long)]
    pub replace_newer: bool,
    /// Apply the allocation of the machine file: hostname, SSH keys, user data and all other fields. Without this
    /// option, only the image changes, and the installed allocation is kept.
    #[arg(long)]
    pub apply_allocation: bool,
}

impl ReinstallOverrideOptions {
    /// Returns the request for a reinstall with these overrides.
    pub(crate) fn to_request(&self, machine: &str, image: &str) -> ReinstallRequest {
        let ReinstallOverrideOptions { without_marker, change_promise, give_up, replace_newer, apply_allocation } =
            self.clone();
        ReinstallRequest {
            id: machine.to_owned(),
            imageid: image.to_owned(),
            without_marker,
            change_promise,
            give_up,
            replace_newer,
            apply_allocation,
            ..ReinstallRequest::default()
        }
    }
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
    /// Save the plan of the reinstall in this file. `drophammer machine reinstall --plan FILE` orders exactly this plan.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// With --out, overwrite a file that is not a plan of this machine.
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Output of `drophammer inventory` on the machine; by default, the inventory with which the machine registered.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ReinstallOrderOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID", required_unless_present = "plan")]
    pub machine: Option<String>,
    /// Id of the new image.
    #[arg(long, required_unless_present_any = ["cancel", "plan"])]
    pub image: Option<String>,
    #[command(flatten)]
    pub overrides: ReinstallOverrideOptions,
    /// Order exactly the plan that `drophammer machine plan --out FILE` has saved, and approve this plan. The order is refused if the
    /// layout, the image, the allocation or the inventory has changed since. If one of them changes after the order, the machine is not
    /// reinstalled. The content of an image is compared only if its digest is known.
    #[arg(long, value_name = "FILE", conflicts_with_all = ORDERED)]
    pub plan: Option<PathBuf>,
    /// Start the reinstall now: set the machine to boot over PXE next and power-cycle it, through the controller in
    /// `bmc:` of its machine file.
    #[arg(long)]
    pub now: bool,
    /// Cancel the reinstall order. This is possible only until the reinstall has started.
    #[arg(long, conflicts_with_all = ORDERED, conflicts_with_all = ["plan", "now"])]
    pub cancel: bool,
}

/// Options that describe an order on the command line.
const ORDERED: [&str; 6] =
    ["image", "without_marker", "change_promise", "give_up", "replace_newer", "apply_allocation"];
