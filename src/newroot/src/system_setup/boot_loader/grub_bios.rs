//! GRUB for BIOS. GRUB's core image is built once and written to every disk that holds the root filesystem, so that the
//! machine can boot from any one of these disks.

use super::super::file_search::{find_first, find_program, is_directory};
use super::super::loader_context::LoaderContext;
use super::grub_bios_gap;
use super::grub_common::{self, GrubDirectory, MKIMAGE};
use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use operations::BootDisk;
use std::time::Duration;

pub(crate) const MODULES: [&str; 3] = ["/usr/lib/grub/i386-pc", "/usr/lib/grub2/i386-pc", "/usr/share/grub2/i386-pc"];

/// Names of the tool that writes boot.img and core.img to a disk. Running grub-install instead takes eight times as
/// long.
const SETUP: [&str; 2] = ["grub-bios-setup", "grub2-bios-setup"];
/// Path of grub-bios-setup in distributions that install this tool outside of PATH.
const SETUP_FALLBACK_PATHS: [&str; 1] = ["/usr/lib/grub/i386-pc/grub-bios-setup"];
/// Names of grub-install, which performs the whole installation of GRUB.
const INSTALL: [&str; 2] = ["grub-install", "grub2-install"];

const COMMAND_TIMEOUT: Duration = Duration::from_secs(5 * 60);

pub(crate) fn find_modules(root: &NewRoot) -> Option<&'static str> {
    MODULES.into_iter().find(|dir| is_directory(root, dir))
}

pub(crate) fn install_grub_bios(start: &LoaderContext) -> Result<()> {
    install_on_disks(start, true)
}

/// Writes GRUB to disks that lack it. GRUB's existing menu is preserved.
///
/// # Errors
/// As for [`install_grub_bios`].
pub(crate) fn reinstall_grub_bios(start: &LoaderContext) -> Result<()> {
    let menu = format!("{}/grub.cfg", GrubDirectory::locate(start).directory);
    install_on_disks(start, !start.root.path_exists(&menu))
}

fn install_on_disks(start: &LoaderContext, with_menu: bool) -> Result<()> {
    let LoaderContext { root, wants, run, .. } = start;
    if wants.disks.is_empty() {
        return Err(Error::new(Phase::Target, "cannot install GRUB: the root filesystem is not on a disk"));
    }
    let home = GrubDirectory::locate(start);
    if with_menu {
        grub_common::write_menu(start, &home, &terminal_commands(&wants.consoles))?;
    }
    let Some(modules) = find_modules(root) else {
        return Err(Error::new(Phase::Target, "the image does not contain GRUB for BIOS"));
    };
    let setup = find_program(root, &SETUP).or_else(|| find_first(root, &SETUP_FALLBACK_PATHS));
    let boot = find_first(root, &[&format!("{modules}/boot.img")]);
    let gap = |disk: &BootDisk| disk.gap.filter(|_| boot.is_some());
    if let Some(mkimage) = find_program(root, &MKIMAGE)
        && wants.disks.iter().all(|disk| gap(disk).is_some() || (setup.is_some() && !disk.partly_kept))
    {
        let directory = build_core_image(start, &home, modules, &mkimage)?;
        for disk in &wants.disks {
            let device = &disk.device;
            match (gap(disk), &boot, &setup) {
                (Some(gap), Some(boot), _) => grub_bios_gap::write_to_gap(start, &directory, boot, device, gap)?,
                (_, _, Some(setup)) => {
                    // `--force` is required if there is no space for core.img before the first partition. The tool then
                    // records the sectors that the file core.img occupies in its filesystem.
                    let args = ["--force", "-d", &directory, device.as_str()];
                    run.run_program(setup, &args, COMMAND_TIMEOUT)
                        .context(Phase::Target, || format!("install GRUB on {device}"))?;
                }
                _ => {}
            }
        }
        return Ok(());
    }
    if let Some(disk) = wants.disks.iter().find(|disk| disk.partly_kept) {
        let message = format!(
            "cannot install GRUB on {device}, which has preserved partitions: the image must contain {modules}/boot.img and one of the \
             programs {programs}",
            device = disk.device,
            programs = MKIMAGE.join(", ")
        );
        return Err(Error::new(Phase::Target, message));
    }
    run_grub_install(start)
}

/// Installs GRUB with the image's own grub-install.
fn run_grub_install(start: &LoaderContext) -> Result<()> {
    let LoaderContext { root, wants, run, .. } = start;
    let Some(install) = find_program(root, &INSTALL) else {
        let looked = [&SETUP[..], &INSTALL].concat().join(", ");
        let what = format!("cannot install GRUB: the image does not contain any of the programs {looked}");
        return Err(Error::new(Phase::Target, what));
    };
    for BootDisk { device, .. } in &wants.disks {
        let args = ["--target=i386-pc", "--force", device.as_str()];
        run.run_program(&install, &args, COMMAND_TIMEOUT)
            .context(Phase::Target, || format!("install GRUB on {device}"))?;
    }
    Ok(())
}

/// Builds core.img, which finds the menu by the UUID of its filesystem and therefore does not depend on disk names.
/// Returns the directory of core.img, from which GRUB also loads further modules.
fn build_core_image(start: &LoaderContext, home: &GrubDirectory, modules: &str, mkimage: &str) -> Result<String> {
    let LoaderContext { root, run, .. } = start;
    let directory = format!("{}/i386-pc", home.directory);
    root.make_directory(&directory)?;
    // The 300 files are copied by one `cp`, because [`NewRoot::write_file`] would sync each file and take longer.
    let copied = run.run_program("cp", &["-r", "--", &format!("{modules}/."), &directory], COMMAND_TIMEOUT);
    copied.context(Phase::Target, || format!("copy GRUB's modules to {directory}"))?;
    let (search, core) = (format!("{directory}/load.cfg"), format!("{directory}/core.img"));
    root.write_file(&search, 0o644, home.search_commands().as_bytes())?;
    let names = grub_common::available_modules(root, modules, &[&["biosdisk"][..], &grub_common::MODULES].concat());
    let prefix = home.to_grub_path(&home.directory);
    let args = [&["-O", "i386-pc", "-d", modules, "-c", &search, "-p", prefix, "-o", &core][..], &names].concat();
    run.run_program(mkimage, &args, COMMAND_TIMEOUT).context(Phase::Target, || "build a GRUB image")?;
    Ok(directory)
}

/// Returns GRUB commands that enable the serial console. Without these commands, GRUB for BIOS uses only the screen,
/// and few servers have a screen.
fn terminal_commands(consoles: &[String]) -> String {
    let serial = consoles.iter().find_map(|console| {
        let (unit, rest) = console.strip_prefix("ttyS")?.split_at_checked(1)?;
        let speed: String = rest.trim_start_matches(',').chars().take_while(char::is_ascii_digit).collect();
        let speed = if speed.is_empty() { "9600".to_owned() } else { speed };
        unit.parse::<u8>().ok().map(|unit| format!("serial --unit={unit} --speed={speed}\n"))
    });
    serial.map_or_else(String::new, |serial| serial + "terminal_input console serial\nterminal_output console serial\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_console_gets_grub_terminal_commands() {
        let lines = |line: &str| format!("{line}\nterminal_input console serial\nterminal_output console serial\n");
        for (console, expected) in [
            ("ttyS1,115200n8", lines("serial --unit=1 --speed=115200")),
            ("ttyS0", lines("serial --unit=0 --speed=9600")),
            ("tty0", String::new()),
            ("ttyS", String::new()),
            ("ttySé", String::new()),
        ] {
            assert_eq!(terminal_commands(&[console.to_owned()]), expected, "{console}");
        }
    }
}
