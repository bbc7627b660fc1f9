//! Whether an image can be finished on this machine by what its manifest tells of it. It is judged when the plan is made, where the
//! control plane knows it, and once more by the same rules when the image has answered.

use super::luks::may_be_missing;
use super::returning::mountable;
use super::{Mode, Request};
use crate::allocation::Finish;
use crate::contents::Contents;
use crate::inventory::{Firmware, Inventory};
use crate::layout::{KeySource, Layout};
use crate::problem::Problem;

/// What a tree has to have for this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    way: Finish,
    firmware: Firmware,
    /// The kernel may lie on what stays.
    keeps_kernels: bool,
    has_user_data: bool,
    /// Where something encrypted is mounted that the system cannot do without, and the same of what a TPM opens.
    opens: Option<String>,
    opens_by_tpm: Option<String>,
}

/// What is wrong with the contents of an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// With these the machine would not boot.
    pub refused: Vec<Problem>,
    pub warnings: Vec<String>,
}

/// Where kernels and the first process lie, beside `/`.
const OF_THE_SYSTEM: [&str; 4] = ["/boot", "/usr", "/usr/lib", "/lib"];

const PLACE: &str = "allocation.image";

impl Needs {
    /// None of a raw image: it boots as it was made.
    pub fn of(layout: &Layout, inventory: &Inventory, request: &Request) -> Option<Needs> {
        if layout.disks.iter().any(|disk| disk.image) {
            return None;
        }
        let paths = layout.filesystems.iter().filter_map(|filesystem| filesystem.path.as_deref());
        let needed = layout.filesystems.iter().filter(|filesystem| !may_be_missing(filesystem));
        let opened = needed.filter_map(|filesystem| {
            let group = || layout.encrypted_group(&filesystem.device)?.encrypted;
            Some((mountable(filesystem)?.to_owned(), filesystem.encrypted.or_else(group)?.key))
        });
        let opened: Vec<(String, KeySource)> = opened.collect();
        let allocation = &request.assigned.allocation;
        Some(Needs {
            way: allocation.finish(),
            firmware: inventory.system.firmware,
            keeps_kernels: request.mode == Mode::Reinstall
                && paths.into_iter().any(|path| OF_THE_SYSTEM.contains(&path)),
            has_user_data: allocation.has_user_data(),
            opens: opened.first().map(|(path, _)| path.clone()),
            opens_by_tpm: opened.into_iter().find(|(_, key)| *key == KeySource::Tpm2).map(|(path, _)| path),
        })
    }

    pub fn judge(&self, contents: &Contents) -> Judgement {
        let is_built_in = match self.way {
            Finish::Builtin => true,
            Finish::Auto => contents.installer.is_none(),
            Finish::Image | Finish::None => false,
        };
        let mut judgement = Judgement::default();
        let mut refuse = |why: &str, what_to_do: &str| {
            judgement.refused.push(Problem::new(PLACE, format!("by its manifest the image has {why}: {what_to_do}")));
        };
        if self.way == Finish::Image && contents.installer.is_none() {
            refuse("no installer, and `finish: image` wants one to be run", "say finish: builtin or auto");
        }
        if is_built_in && contents.kernels.is_empty() && !self.keeps_kernels {
            refuse(
                "no kernel in /boot and none in /usr/lib/modules, so that it cannot boot",
                "install a kernel into the tree and pack it again",
            );
        }
        if is_built_in && contents.init.is_none() && !self.keeps_kernels {
            refuse(
                "no init such as /sbin/init, so that it cannot start",
                "install systemd or another init into the tree and pack it again",
            );
        }
        if is_built_in && self.firmware == Firmware::Bios && contents.grub_bios.is_none() {
            refuse(
                "no GRUB for BIOS, by which this machine boots",
                "install it into the tree (Debian's package is grub-pc-bin) and pack it again",
            );
        }
        if let (Some(path), Some([])) = (&self.opens, contents.cryptsetup.as_deref()) {
            refuse(
                &format!(
                    "no cryptsetup and no systemd-cryptsetup, so that it could not mount {path}, which is encrypted"
                ),
                "install one into the tree and pack it again, or say nofail in its mountoptions",
            );
        }
        let has_systemds = |openers: &Vec<String>| openers.iter().any(|opener| opener.ends_with("systemd-cryptsetup"));
        if let (Some(path), Some(openers)) = (&self.opens_by_tpm, &contents.cryptsetup)
            && !openers.is_empty()
            && !has_systemds(openers)
        {
            refuse(
                &format!("no systemd-cryptsetup, which alone asks a TPM 2, so that it could not mount {path}"),
                "install it into the tree (since Debian 13 it is a package of that name) and pack it again, or say nofail in its mountoptions",
            );
        }
        if is_built_in && self.has_user_data && contents.user_data.is_empty() {
            judgement.warnings.push(
                "user data is given, and by its manifest the image has neither cloud-init nor Ignition: it comes to lie in /etc/metal/userdata, \
                 and nothing in the installed system reads it"
                    .to_owned(),
            );
        }
        judgement
    }
}

/// By what the control plane knows of the image.
pub fn judged(layout: &Layout, inventory: &Inventory, request: &Request) -> Judgement {
    let contents = request.assigned.allocation.image.contents.as_ref();
    let judged = contents.and_then(|contents| Some(Needs::of(layout, inventory, request)?.judge(contents)));
    judged.unwrap_or_default()
}
