//! Unified kernel images: kernel, initramfs and command line in one EFI program.

use super::super::boot::Start;
use super::super::esp::OnEsp;
use super::super::places::{first, program};
use super::{FALLBACK, OnEsps, systemd_boot};
use crate::error::{Context, Error, Phase, Result};
use crate::target::Root;
use std::time::Duration;

const STUBS: [&str; 1] = ["/usr/lib/systemd/boot/efi/linuxx64.efi.stub"];
const TOOLS: [&str; 1] = ["ukify"];

/// Settings of kernel-install(8), of which it reads the first that exists.
const SETTINGS: [&str; 2] = ["/etc/kernel/install.conf", "/usr/lib/kernel/install.conf"];

const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Path of the image until it is copied to the ESPs.
const MADE: &str = "/boot/drophammer.efi";

const DEADLINE: Duration = Duration::from_secs(5 * 60);

/// Returns whether the target can build a unified kernel image.
pub fn is_in(root: &Root) -> bool {
    program(root, &TOOLS).is_some() && first(root, &STUBS).is_some()
}

/// Returns whether the target is configured for one and can build it.
pub fn is_configured(root: &Root) -> bool {
    is_in(root) && is_wanted(root)
}

fn is_wanted(root: &Root) -> bool {
    let settings = SETTINGS.iter().find_map(|path| root.read(path).ok()).unwrap_or_default();
    settings.lines().any(|line| line.trim() == "layout=uki")
}

/// Returns a warning if the target is configured for a unified kernel image but cannot build it. Debian's signed
/// systemd-boot lacks the stub without any notice.
pub fn wanted_in_vain(root: &Root) -> Option<String> {
    (is_wanted(root) && !is_in(root)).then(|| {
        let lacks = if program(root, &TOOLS).is_none() { TOOLS[0] } else { STUBS[0] };
        format!("WARNING: the image is configured for a unified kernel image (layout=uki), but does not contain {lacks}: none is built")
    })
}

pub fn install(start: &Start) -> Result<OnEsps> {
    let Some(ukify) = program(start.root, &TOOLS) else {
        return Err(Error::new(Phase::Target, "the image does not contain ukify"));
    };
    systemd_boot::keep(start)?;
    let kernel = start.kernel;
    let mut args = vec![
        "build".to_owned(),
        format!("--linux={}", kernel.image),
        format!("--initrd={}", kernel.initrd),
        format!("--cmdline={}", start.line),
        format!("--uname={}", kernel.version),
        format!("--output={MADE}"),
    ];
    args.extend(first(start.root, &OS_RELEASE).map(|path| format!("--os-release=@{path}")));
    args.extend(first(start.root, &STUBS).map(|path| format!("--stub={path}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    start.run.run(&ukify, &args, DEADLINE).context(Phase::Target, || "build a unified kernel image")?;
    let path = format!("/EFI/Linux/{}-{}.efi", start.wants.system, kernel.version);
    let mut files = vec![OnEsp::copy(&path, MADE)];
    match systemd_boot::files(start.root) {
        // systemd-boot finds images in that directory.
        Some(loader) => files.extend(loader),
        None => files.push(OnEsp::copy(FALLBACK, MADE)),
    }
    Ok(OnEsps { files, loader: path, arguments: String::new() })
}

/// Removes the image after it was copied to the ESPs.
pub fn tidy(root: &Root) -> Result<()> {
    root.remove(MADE)
}
