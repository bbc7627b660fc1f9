//! GRUB for UEFI. A prebuilt image of the distribution is copied to the ESPs with four lines of configuration. If the
//! target contains no prebuilt image, an image is built from the target's modules.

use super::super::efi_names::{expand_names, fallback_path};
use super::super::esp_files::EspFile;
use super::super::file_search::{find_matching, find_program, is_directory};
use super::super::loader_context::LoaderContext;
use super::super::machine_boot_requirements::BootRequirements;
use super::EspInstallation;
use super::grub_common::{self, GrubDirectory, MKIMAGE};
use crate::NewRoot;
use common::bounded_read;
use common::error::{Context, Error, Phase, Result};
use model::architecture::Architecture;
use std::time::Duration;

/// Paths of a distribution's prebuilt GRUB image, and of the programs that are used together with this image. They
/// contain the placeholders of [`expand_names`].
struct PrebuiltGrub {
    /// Paths of shim, which starts GRUB under Secure Boot.
    shim: &'static [&'static str],
    /// Paths of MokManager, with which keys are enrolled for shim.
    manager: &'static [&'static str],
    grub: &'static [&'static str],
    /// File name that shim expects for GRUB.
    name: &'static str,
}

/// Known prebuilt images, signed images first.
const PREBUILT_IMAGES: [PrebuiltGrub; 4] = [
    // Paths in Debian and Ubuntu.
    PrebuiltGrub {
        shim: &["/usr/lib/shim/shim{efi}.efi.signed"],
        manager: &["/usr/lib/shim/mm{efi}.efi.signed", "/usr/lib/shim/mm{efi}.efi"],
        grub: &["/usr/lib/grub/{grub}-signed/grub{efi}.efi.signed"],
        name: "grub{efi}.efi",
    },
    // Paths in Fedora, RHEL and derivatives: the files are in the directory of the packages, or in the directory from
    // which bootupd copies them.
    PrebuiltGrub {
        shim: &[
            "/boot/efi/EFI/*/shim{efi}.efi",
            "/usr/lib/bootupd/updates/EFI/*/shim{efi}.efi",
            "/usr/lib/efi/shim/*/EFI/*/shim{efi}.efi",
        ],
        manager: &[
            "/boot/efi/EFI/*/mm{efi}.efi",
            "/usr/lib/bootupd/updates/EFI/*/mm{efi}.efi",
            "/usr/lib/efi/shim/*/EFI/*/mm{efi}.efi",
        ],
        grub: &[
            "/boot/efi/EFI/*/grub{efi}.efi",
            "/usr/lib/bootupd/updates/EFI/*/grub{efi}.efi",
            "/usr/lib/efi/grub2/*/EFI/*/grub{efi}.efi",
        ],
        name: "grub{efi}.efi",
    },
    // Paths in SUSE's distributions.
    PrebuiltGrub {
        shim: &["/usr/share/efi/{cpu}/shim.efi"],
        manager: &["/usr/share/efi/{cpu}/MokManager.efi"],
        grub: &["/usr/share/efi/{cpu}/grub.efi", "/usr/share/grub2/{grub}/grub.efi"],
        name: "grub.efi",
    },
    // Path of the unsigned image in Debian.
    PrebuiltGrub {
        shim: &[],
        manager: &[],
        grub: &["/usr/lib/grub/{grub}/monolithic/grub{efi}.efi"],
        name: "grub{efi}.efi",
    },
];

const MODULES: [&str; 3] = ["/usr/lib/grub/{grub}", "/usr/lib/grub2/{grub}", "/usr/share/grub2/{grub}"];

/// Additional modules that are built into an image for UEFI.
const ADDITIONAL_MODULES: [&str; 4] = ["all_video", "gfxterm", "efi_gop", "font"];

const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum size of a GRUB image in bytes. Most GRUB images are about four megabytes large.
const MAXIMUM_IMAGE_BYTES: u64 = 64 << 20;

/// Names of directories below `/EFI` that differ from `ID` in os-release.
const VENDOR_DIRECTORIES: [(&str, &str); 2] = [("rhel", "redhat"), ("ol", "redhat")];

pub(crate) fn is_available(root: &NewRoot, wants: &BootRequirements) -> bool {
    PREBUILT_IMAGES.iter().any(|built| find_file(root, wants, built.grub).is_some())
        || (find_modules(root, wants.architecture).is_some() && find_program(root, &MKIMAGE).is_some())
}

/// Returns the files that match these patterns, whose placeholders are replaced.
fn list_files(root: &NewRoot, wants: &BootRequirements, patterns: &[&str]) -> Vec<String> {
    patterns.iter().flat_map(|pattern| find_matching(root, &expand_names(pattern, wants.architecture))).collect()
}

/// Returns the first file of the image that matches one of these patterns.
fn find_file(root: &NewRoot, wants: &BootRequirements, patterns: &[&str]) -> Option<String> {
    list_files(root, wants, patterns).into_iter().find(|path| is_of_image(wants, path))
}

/// Returns whether a file belongs to the image. On a preserved EFI system partition, only the directory of the image's
/// vendor does: the directories of other vendors belong to other systems, whose GRUB would read the configuration of
/// the new system.
fn is_of_image(wants: &BootRequirements, path: &str) -> bool {
    let vendor =
        VENDOR_DIRECTORIES.iter().find(|(id, _)| *id == wants.system).map_or(wants.system.as_str(), |(_, name)| *name);
    let directory = path.rsplit('/').nth(1).unwrap_or_default();
    !wants.preserved_esps.contains(path) || directory.eq_ignore_ascii_case(vendor)
}

/// Returns a message for each GRUB image on a preserved EFI system partition that is not used.
pub(crate) fn describe_skipped_images(root: &NewRoot, wants: &BootRequirements) -> Vec<String> {
    let found = PREBUILT_IMAGES.iter().flat_map(|built| list_files(root, wants, built.grub));
    let skipped = found.filter(|path| !is_of_image(wants, path));
    let describe = |path: String| {
        format!(
            "{path} is not used, because the EFI system partition is preserved, and this directory does not belong to \
             the image's distribution, {system}",
            system = wants.system
        )
    };
    skipped.map(describe).collect()
}

/// Returns the directory of the modules from which an image can be built.
fn find_modules(root: &NewRoot, architecture: Architecture) -> Option<String> {
    let directories = MODULES.iter().map(|directory| expand_names(directory, architecture));
    directories.into_iter().find(|directory| is_directory(root, directory))
}

pub(crate) fn install_grub_uefi(start: &LoaderContext) -> Result<EspInstallation> {
    let (root, architecture) = (start.root, start.wants.architecture);
    let find = |patterns: &[&str]| find_file(root, start.wants, patterns);
    let home = GrubDirectory::locate(start);
    grub_common::write_menu(start, &home, "")?;
    let built = PREBUILT_IMAGES.iter().find_map(|built| Some((built, find(built.grub)?)));
    let (image, name, shim, manager) = match built {
        Some((built, grub)) => {
            let shim = find(built.shim);
            let manager = shim.as_ref().and_then(|_| find(built.manager));
            (grub, expand_names(built.name, architecture), shim, manager)
        }
        None => (build_image(start, &home)?, expand_names("grub{efi}.efi", architecture), None, None),
    };
    let own = read_prefix(root, &image)?;
    let directory = own.clone().unwrap_or_else(|| format!("/EFI/{}", start.wants.system));
    let config = format!(
        "# written by drophammer: the menu is {}/grub.cfg\n{}configfile $prefix/grub.cfg\n",
        home.directory,
        home.search_commands()
    );
    let mut files = vec![EspFile::from_text(format!("{directory}/grub.cfg"), config.clone())];
    // A GRUB image without a built-in directory, such as the image of SUSE, reads its configuration from the directory
    // that contains the GRUB image.
    files.extend(own.is_none().then(|| EspFile::from_text("/EFI/BOOT/grub.cfg", config)));
    let started = match &shim {
        Some(shim) => {
            let shim_name = expand_names(if name == "grub.efi" { "shim.efi" } else { "shim{efi}.efi" }, architecture);
            for dir in [directory.as_str(), "/EFI/BOOT"] {
                files.push(EspFile::from_file(format!("{dir}/{name}"), &image));
                files.extend(manager.as_deref().map(|path| shim_manager_file(dir, path)));
            }
            files.extend([
                EspFile::from_file(fallback_path(architecture), shim),
                EspFile::from_file(format!("{directory}/{shim_name}"), shim),
            ]);
            shim_name
        }
        None => {
            files.extend([
                EspFile::from_file(fallback_path(architecture), &image),
                EspFile::from_file(format!("{directory}/{name}"), &image),
            ]);
            name
        }
    };
    let loader = format!("{directory}/{started}");
    Ok(EspInstallation { files, loader, arguments: String::new() })
}

/// Returns the file of shim's key manager in a directory of the ESP. The name of a signed file is used without
/// `.signed`.
fn shim_manager_file(dir: &str, path: &str) -> EspFile {
    let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".signed");
    EspFile::from_file(format!("{dir}/{name}"), path)
}

/// Returns the directory on the ESP in which a GRUB image searches for its configuration. The path of the directory is
/// built into the GRUB image. Returns `None` if the GRUB image does not contain such a path.
fn read_prefix(root: &NewRoot, image: &str) -> Result<Option<String>> {
    let what = || format!("read the image's {image}");
    let bytes = root.open_file(image).and_then(|file| bounded_read::read_prefix(file, MAXIMUM_IMAGE_BYTES));
    let bytes = bytes.context(Phase::Target, what)?;
    Ok(find_prefix(&bytes))
}

fn find_prefix(bytes: &[u8]) -> Option<String> {
    const BEGIN: &[u8] = b"/EFI/";
    let begins = bytes.windows(BEGIN.len()).enumerate().filter(|(_, window)| *window == BEGIN).map(|(at, _)| at);
    let names = begins.filter_map(|at| {
        let rest = bytes.get(at + BEGIN.len()..)?;
        let name = rest.get(..rest.iter().take(64).position(|byte| *byte == 0)?)?;
        let is_name = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
        // A path to the common fallback directory is ignored, because it is not specific to this GRUB image.
        is_name.then(|| String::from_utf8_lossy(name).into_owned()).filter(|name| !name.eq_ignore_ascii_case("boot"))
    });
    names.into_iter().next().map(|name| format!("/EFI/{name}"))
}

/// Builds a GRUB image from the target's modules, stores the image in the directory that contains the menu, and returns
/// its path. The caller copies the image to the ESPs.
fn build_image(start: &LoaderContext, home: &GrubDirectory) -> Result<String> {
    let (root, architecture) = (start.root, start.wants.architecture);
    let (Some(program), Some(modules)) = (find_program(root, &MKIMAGE), find_modules(root, architecture)) else {
        return Err(Error::new(Phase::Target, "the image does not contain GRUB for UEFI"));
    };
    let image = format!("{}/{}", home.directory, expand_names("grub{efi}.efi", architecture));
    let prefix = format!("/EFI/{}", start.wants.system);
    let names =
        grub_common::available_modules(root, &modules, &[&grub_common::MODULES[..], &ADDITIONAL_MODULES].concat());
    let args =
        [&["-O", architecture.grub_efi_platform(), "-d", &modules, "-p", &prefix, "-o", &image][..], &names].concat();
    start.run.run_program(&program, &args, COMMAND_TIMEOUT).context(Phase::Target, || "build a GRUB image")?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_directory_is_found_in_a_grub_image() {
        for (bytes, found) in [
            (&b"xx/EFI/debian\0yy"[..], Some("/EFI/debian")),
            (b"/EFI/BOOT/fb.efi\0/EFI/boot\0/EFI/red-hat\0", Some("/EFI/red-hat")),
            (b"/EFI/no end", None),
            (b"/EFI/a b\0/EFI/\0", None),
            (b"", None),
        ] {
            assert_eq!(find_prefix(bytes).as_deref(), found);
        }
    }
}
