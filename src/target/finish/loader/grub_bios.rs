//! GRUB for BIOS: its image is built once, and written to every disk beneath the root filesystem, so that each can
//! boot alone.

use super::super::boot::Start;
use super::super::places::{first, is_directory, program};
use super::grub::{self, Home, MKIMAGE};
use super::grub_gap;
use crate::error::{Context, Error, Phase, Result};
use crate::plan::BootDisk;
use crate::target::Root;
use std::time::Duration;

pub const MODULES: [&str; 3] = ["/usr/lib/grub/i386-pc", "/usr/lib/grub2/i386-pc", "/usr/share/grub2/i386-pc"];

/// Tool that writes two images to a disk. The complete grub-install takes eight times as long.
const SETUP: [&str; 2] = ["grub-bios-setup", "grub2-bios-setup"];
const SETUP_BESIDE: [&str; 1] = ["/usr/lib/grub/i386-pc/grub-bios-setup"];
const INSTALL: [&str; 2] = ["grub-install", "grub2-install"];

const DEADLINE: Duration = Duration::from_secs(5 * 60);

pub fn modules(root: &Root) -> Option<&'static str> {
    MODULES.into_iter().find(|dir| is_directory(root, dir))
}

pub fn install(start: &Start) -> Result<()> {
    put(start, true)
}

/// Writes GRUB to disks that lack it. An existing menu is preserved.
///
/// # Errors
/// As for [`install`].
pub fn renew(start: &Start) -> Result<()> {
    let menu = format!("{}/grub.cfg", Home::of(start).directory);
    put(start, !start.root.has(&menu))
}

fn put(start: &Start, with_menu: bool) -> Result<()> {
    let Start { root, wants, run, .. } = start;
    if wants.disks.is_empty() {
        return Err(Error::new(Phase::Target, "cannot install GRUB: the root filesystem does not lie on a disk"));
    }
    let home = Home::of(start);
    if with_menu {
        grub::write_menu(start, &home, &terminal(&wants.consoles))?;
    }
    let Some(modules) = modules(root) else {
        return Err(Error::new(Phase::Target, "the image does not contain GRUB for BIOS"));
    };
    let setup = program(root, &SETUP).or_else(|| first(root, &SETUP_BESIDE));
    let boot = first(root, &[&format!("{modules}/boot.img")]);
    let gap = |disk: &BootDisk| disk.gap.filter(|_| boot.is_some());
    if let Some(mkimage) = program(root, &MKIMAGE)
        && (setup.is_some() || wants.disks.iter().all(|disk| gap(disk).is_some()))
    {
        let directory = make(start, &home, modules, &mkimage)?;
        for disk in &wants.disks {
            let device = &disk.device;
            match (gap(disk), &boot, &setup) {
                (Some(gap), Some(boot), _) => grub_gap::put(start, &directory, boot, device, gap)?,
                (_, _, Some(setup)) => {
                    // Without space for its image, GRUB records the sectors of the file, which requires --force.
                    let args = ["--force", "-d", &directory, device.as_str()];
                    run.run(setup, &args, DEADLINE).context(Phase::Target, || format!("install GRUB on {device}"))?;
                }
                _ => {}
            }
        }
        return Ok(());
    }
    let Some(install) = program(root, &INSTALL) else {
        let looked = [&SETUP[..], &INSTALL].concat().join(", ");
        let what = format!("cannot install GRUB: the image contains none of {looked}");
        return Err(Error::new(Phase::Target, what));
    };
    for BootDisk { device, .. } in &wants.disks {
        let args = ["--target=i386-pc", "--force", device.as_str()];
        run.run(&install, &args, DEADLINE).context(Phase::Target, || format!("install GRUB on {device}"))?;
    }
    Ok(())
}

/// Builds the image, which finds the menu by the filesystem's UUID, regardless of disk names. Returns its directory,
/// in which GRUB also searches for further modules.
fn make(start: &Start, home: &Home, modules: &str, mkimage: &str) -> Result<String> {
    let Start { root, run, .. } = start;
    let directory = format!("{}/i386-pc", home.directory);
    root.make_directory(&directory)?;
    // A single cp copies 300 files faster than we could write them with a flush each.
    let copied = run.run("cp", &["-r", "--", &format!("{modules}/."), &directory], DEADLINE);
    copied.context(Phase::Target, || format!("copy GRUB's modules to {directory}"))?;
    let (search, core) = (format!("{directory}/load.cfg"), format!("{directory}/core.img"));
    root.write(&search, 0o644, home.search().as_bytes())?;
    let names = grub::modules(root, modules, &[&["biosdisk"][..], &grub::MODULES].concat());
    let prefix = home.seen(&home.directory);
    let args = [&["-O", "i386-pc", "-d", modules, "-c", &search, "-p", prefix, "-o", &core][..], &names].concat();
    run.run(mkimage, &args, DEADLINE).context(Phase::Target, || "build a GRUB image")?;
    Ok(directory)
}

/// Returns commands for a serial terminal: on BIOS, GRUB only uses the screen, which few servers have.
fn terminal(consoles: &[String]) -> String {
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
    fn a_serial_console_shows_the_menu() {
        let lines = |line: &str| format!("{line}\nterminal_input console serial\nterminal_output console serial\n");
        for (console, expected) in [
            ("ttyS1,115200n8", lines("serial --unit=1 --speed=115200")),
            ("ttyS0", lines("serial --unit=0 --speed=9600")),
            ("tty0", String::new()),
            ("ttyS", String::new()),
            ("ttySé", String::new()),
        ] {
            assert_eq!(terminal(&[console.to_owned()]), expected, "{console}");
        }
    }
}
