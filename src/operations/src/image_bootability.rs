//! Requirements for an image on this machine. They are compared with the boot contents in the image's manifest. The
//! planner makes this comparison if the control plane has recorded the boot contents. The executor repeats the
//! comparison after it has received the manifest from the image's server.

use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::FinisherChoice;
use model::architecture::Architecture;
use model::image_boot_contents::BootContents;
use model::inventory::FirmwareType;

/// Requirements of this machine for a root tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageNeeds {
    pub finisher: FinisherChoice,
    pub architecture: Architecture,
    pub firmware: FirmwareType,
    /// True if the kernel may be on a preserved filesystem.
    pub may_preserve_kernel: bool,
    pub has_user_data: bool,
    /// True if the allocation describes the network of the installed system.
    pub has_network: bool,
    /// Mount point of an encrypted filesystem that the system requires at boot; `None` if there is no such filesystem.
    pub opens: Option<String>,
    /// Mount point of an encrypted filesystem that the system requires at boot, and whose key is in the TPM; `None` if
    /// there is no such filesystem.
    pub unlocked_by_tpm: Option<String>,
}

/// Deficiencies of an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImageFindings {
    /// Deficiencies that would prevent the machine from booting.
    pub refused: Vec<Diagnostic>,
    pub warnings: Vec<String>,
}

const IMAGE_FIELD: &str = "allocation.image";

/// Returns the reason why an image for `image` cannot be installed on a machine of the architecture `machine`. Returns
/// `None` if the architectures are equal, or the image's architecture is unknown. `source` is the document that
/// specifies the image's architecture.
pub fn explain_mismatch(image: Option<Architecture>, machine: Architecture, source: &str) -> Option<Diagnostic> {
    let image = image.filter(|image| *image != machine)?;
    let why = format!(
        "according to {source}, the image is for {image}, but this machine is {machine}; select an image for {machine}"
    );
    Some(Diagnostic::new(IMAGE_FIELD, why).with_code(ErrorCode::ArchitectureMismatch))
}

impl ImageNeeds {
    /// Returns the deficiencies of an image with these contents.
    pub fn find_image_deficiencies(&self, contents: &BootContents) -> ImageFindings {
        let is_built_in = match self.finisher {
            FinisherChoice::Builtin => true,
            FinisherChoice::Auto => contents.installer.is_none(),
            FinisherChoice::Image | FinisherChoice::None => false,
        };
        let mut judgement = ImageFindings::default();
        judgement.refused.extend(explain_mismatch(contents.architecture, self.architecture, "its manifest"));
        let mut refuse = |why: &str, what_to_do: &str| {
            judgement.refused.push(
                Diagnostic::new(IMAGE_FIELD, format!("according to its manifest, the image has {why}; {what_to_do}"))
                    .with_code(ErrorCode::ImageNotBootable),
            );
        };
        if self.finisher == FinisherChoice::Image && contents.installer.is_none() {
            refuse("no installer, which `finish: image` requires", "set `finish` to `builtin` or `auto`");
        }
        if is_built_in && contents.kernels.is_empty() && !self.may_preserve_kernel {
            refuse(
                "no kernel in /boot or /usr/lib/modules, so the system cannot boot",
                "install a kernel into the directory tree of the image and pack the tree again",
            );
        }
        if is_built_in && contents.init.is_none() && !self.may_preserve_kernel {
            refuse(
                "no init program such as /sbin/init, so the system cannot start",
                "install systemd or another init program into the directory tree of the image and pack the tree again",
            );
        }
        if is_built_in && self.firmware == FirmwareType::Bios && contents.grub_bios.is_none() {
            refuse(
                "no GRUB for BIOS, which this machine needs to boot",
                "install GRUB into the directory tree of the image (Debian's package is grub-pc-bin) and pack the tree again",
            );
        }
        if is_built_in {
            self.check_network_manager(contents, &mut refuse);
        }
        self.check_cryptsetup_programs(contents, &mut refuse);
        if is_built_in && self.has_user_data && contents.user_data.is_empty() {
            judgement.warnings.push(
                "the allocation has user data, but according to its manifest the image has neither cloud-init nor Ignition: the data is \
                 written to /etc/metal/userdata, and nothing in the installed system reads it"
                    .to_owned(),
            );
        }
        judgement
    }

    /// Refuses an image with an unsupported network manager if the allocation describes the network.
    fn check_network_manager(&self, contents: &BootContents, refuse: &mut impl FnMut(&str, &str)) {
        if let (true, Some(name)) = (self.has_network, &contents.unsupported_network) {
            refuse(
                &format!("only {name} to configure its network, but drophammer does not support {name}"),
                "install NetworkManager or systemd-networkd into the directory tree of the image and pack the tree again, or remove `network` from the allocation",
            );
        }
    }

    /// Refuses an image if it lacks the programs that open the encrypted filesystems of the layout.
    fn check_cryptsetup_programs(&self, contents: &BootContents, refuse: &mut impl FnMut(&str, &str)) {
        if let (Some(path), Some([])) = (&self.opens, contents.cryptsetup.as_deref()) {
            refuse(
                &format!(
                    "neither cryptsetup nor systemd-cryptsetup, so the system could not mount {path}, which is encrypted"
                ),
                "install one of the two programs into the directory tree of the image and pack the tree again, or add nofail to the \
                    mountoptions of the filesystem",
            );
        }
        let has_systemds = |openers: &Vec<String>| openers.iter().any(|opener| opener.ends_with("systemd-cryptsetup"));
        if let (Some(path), Some(openers)) = (&self.unlocked_by_tpm, &contents.cryptsetup)
            && !openers.is_empty()
            && !has_systemds(openers)
        {
            refuse(
                &format!(
                    "no systemd-cryptsetup, the only program that unlocks with a TPM 2, so the system could not mount {path}"
                ),
                "install the program into the directory tree of the image (since Debian 13 it is in a package of the same name) and pack the \
                    tree again, or add nofail to the mountoptions of the filesystem",
            );
        }
    }
}
