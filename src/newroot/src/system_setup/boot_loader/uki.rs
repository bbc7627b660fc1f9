//! Unified kernel images: kernel, initramfs and command line in one EFI program.

use super::super::efi_names::{expand_names, fallback_path, find_first_for};
use super::super::esp_files::EspFile;
use super::super::file_search::{find_first, find_program};
use super::super::loader_context::LoaderContext;
use super::{EspInstallation, systemd_boot};
use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use model::architecture::Architecture;
use std::time::Duration;

const STUBS: [&str; 1] = ["/usr/lib/systemd/boot/efi/linux{efi}.efi.stub"];
const TOOLS: [&str; 1] = ["ukify"];

/// Settings files of kernel-install(8), which reads only the first existing file.
const SETTINGS: [&str; 2] = ["/etc/kernel/install.conf", "/usr/lib/kernel/install.conf"];

const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Path at which the image is built before it is copied to the ESPs.
const BUILT_IMAGE_PATH: &str = "/boot/drophammer.efi";

const COMMAND_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Returns whether the target can build a unified kernel image.
pub(crate) fn is_available(root: &NewRoot, architecture: Architecture) -> bool {
    find_program(root, &TOOLS).is_some() && find_first_for(root, &STUBS, architecture).is_some()
}

/// Returns whether the target is configured for a unified kernel image and can build it.
pub(crate) fn is_configured(root: &NewRoot, architecture: Architecture) -> bool {
    is_available(root, architecture) && is_wanted(root)
}

fn is_wanted(root: &NewRoot) -> bool {
    let settings = SETTINGS.iter().find_map(|path| root.read_text(path).ok()).unwrap_or_default();
    settings.lines().any(|line| line.trim() == "layout=uki")
}

/// Returns a warning if the target is configured for a unified kernel image but cannot build it. For example, the
/// build requires a stub, which Debian's signed systemd-boot package does not contain.
pub(crate) fn describe_missing_tools(root: &NewRoot, architecture: Architecture) -> Option<String> {
    (is_wanted(root) && !is_available(root, architecture)).then(|| {
        let lacks = if find_program(root, &TOOLS).is_none() { TOOLS[0].to_owned() } else { expand_names(STUBS[0], architecture) };
        format!("WARNING: the image is configured for a unified kernel image (layout=uki), but no such kernel image is built, because the image does not contain {lacks}")
    })
}

pub(crate) fn install_uki(start: &LoaderContext) -> Result<EspInstallation> {
    let Some(ukify) = find_program(start.root, &TOOLS) else {
        return Err(Error::new(Phase::Target, "the image does not contain ukify"));
    };
    systemd_boot::configure_kernel_install(start)?;
    let (kernel, architecture) = (start.kernel, start.wants.architecture);
    let mut args = vec![
        "build".to_owned(),
        format!("--linux={}", kernel.image),
        format!("--initrd={}", kernel.initrd),
        format!("--cmdline={}", start.line),
        format!("--uname={}", kernel.version),
        format!("--output={BUILT_IMAGE_PATH}"),
    ];
    args.extend(find_first(start.root, &OS_RELEASE).map(|path| format!("--os-release=@{path}")));
    args.extend(find_first_for(start.root, &STUBS, architecture).map(|path| format!("--stub={path}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    start.run.run_program(&ukify, &args, COMMAND_TIMEOUT).context(Phase::Target, || "build a unified kernel image")?;
    let path = format!("/EFI/Linux/{}-{}.efi", start.wants.system, kernel.version);
    let mut files = vec![EspFile::from_file(&path, BUILT_IMAGE_PATH)];
    match systemd_boot::loader_files(start.root, architecture) {
        // With systemd-boot, no boot entry is written, because systemd-boot finds unified kernel images in /EFI/Linux
        // by itself.
        Some(loader) => files.extend(loader),
        None => files.push(EspFile::from_file(fallback_path(architecture), BUILT_IMAGE_PATH)),
    }
    Ok(EspInstallation { files, loader: path, arguments: String::new() })
}

/// Removes the image from the path at which it was built.
pub(crate) fn remove_built_image(root: &NewRoot) -> Result<()> {
    root.remove(BUILT_IMAGE_PATH)
}
