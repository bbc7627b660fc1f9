//! Inputs that all types of boot loader need for their installation.

use super::boot_kernel::BootKernel;
use super::machine_boot_requirements::BootRequirements;
use crate::NewRoot;
use crate::chroot::TargetRunner;

/// Inputs of the functions that install a boot loader: target, machine, kernel and command line.
pub(super) struct LoaderContext<'a> {
    pub root: &'a NewRoot,
    pub wants: &'a BootRequirements,
    pub run: &'a dyn TargetRunner,
    pub say: &'a dyn Fn(&str),
    pub kernel: &'a BootKernel,
    /// Complete kernel command line.
    pub line: &'a str,
    /// Kernel command line for the tools of the boot loader, without the arguments for the root filesystem: the tools
    /// add these arguments themselves.
    pub own: &'a str,
}
