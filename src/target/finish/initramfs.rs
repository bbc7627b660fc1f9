//! Initramfs of the target. It is rebuilt only if it cannot find the root filesystem of this machine, since that
//! takes as long as the rest of the installation.

mod content;
mod drivers;

use super::boot::BootWants;
use super::kernel::Kernel;
use super::{arrays, places};
use crate::error::{Context, Error, Phase, Result};
use crate::layout::{Format, RaidLevel};
use crate::target::Root;
use crate::target::chroot::InTree;
use content::Content;
#[cfg(test)]
pub(super) use content::tests::cpio;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Deadline: under emulation it takes minutes.
const DEADLINE: Duration = Duration::from_secs(10 * 60);

/// Tool that builds an initramfs.
struct Maker {
    name: &'static str,
    program: &'static str,
    /// Arguments, with placeholders in braces.
    args: &'static [&'static str],
    /// Settings for this and later initramfs: path, and a line for each type.
    settings: Settings,
}

struct Settings {
    path: &'static str,
    /// Line for drivers; `{}` is replaced by the kernel modules.
    drivers: &'static str,
    arrays: &'static str,
    groups: &'static str,
}

/// Supported tools; the first one in the target is used.
const MAKERS: [Maker; 4] = [
    Maker {
        name: "initramfs-tools",
        program: "update-initramfs",
        args: &["{update or create}", "-k", "{version}"],
        // Its hooks detect arrays and groups.
        settings: Settings { path: "/etc/initramfs-tools/modules", drivers: "{}", arrays: "", groups: "" },
    },
    Maker {
        name: "dracut",
        program: "dracut",
        // Not hostonly, since the hardware is not visible from the chroot.
        args: &["--force", "--no-hostonly", "--kver", "{version}", "{initrd}"],
        settings: Settings {
            path: "/etc/dracut.conf.d/drophammer.conf",
            drivers: "add_drivers+=\" {} \"",
            arrays: "add_dracutmodules+=\" mdraid \"\nmdadmconf=\"yes\"",
            groups: "add_dracutmodules+=\" lvm \"",
        },
    },
    Maker {
        name: "mkinitcpio",
        program: "mkinitcpio",
        args: &["-k", "{version}", "-g", "{initrd}"],
        settings: Settings {
            path: "/etc/mkinitcpio.conf.d/drophammer.conf",
            drivers: "MODULES+=({})",
            arrays: "HOOKS+=(mdadm_udev)",
            groups: "HOOKS+=(lvm2)",
        },
    },
    Maker {
        name: "mkinitfs",
        program: "mkinitfs",
        args: &["-o", "{initrd}", "{version}"],
        // Read by a shell. Filesystem and disk drivers are in the image's own feature list.
        settings: Settings {
            path: "/etc/mkinitfs/mkinitfs.conf",
            drivers: "",
            arrays: "features=\"$features raid\"",
            groups: "features=\"$features lvm\"",
        },
    },
];

/// Maximum size of a list of modules, which is usually about half a megabyte.
const MOST_LIST_BYTES: u64 = 16 << 20;

/// Requirement for finding the root filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Need {
    Module(String),
    Program(&'static str),
    /// The initramfs' mdadm.conf lists this array, or no array.
    Array(String),
}

impl Need {
    fn is_met(&self, content: &Content) -> bool {
        match self {
            Need::Module(name) => content.modules.contains(name),
            Need::Program(name) => content.programs.contains(*name),
            Need::Array(uuid) => {
                let named = arrays::named(content.mdadm_conf.as_deref().unwrap_or_default());
                named.is_empty() || named.contains(uuid)
            }
        }
    }

    fn in_words(&self) -> String {
        match self {
            Need::Module(name) => format!("lacks {name}"),
            Need::Program(name) => format!("lacks the program {name}"),
            Need::Array(uuid) => format!("does not start array {uuid}"),
        }
    }
}

/// Ensures that the kernel's initramfs can mount this machine's root filesystem. Returns whether it was built by
/// dracut.
///
/// # Errors
/// It must be rebuilt but the target has no tool for that or lacks a required program, or the tool fails, exceeds its
/// deadline, or builds an insufficient one.
pub fn ensure(root: &Root, wants: &BootWants, kernel: &Kernel, run: &dyn InTree, say: &dyn Fn(&str)) -> Result<bool> {
    let disks: Vec<_> = wants.disks.iter().map(|disk| disk.device.clone()).collect();
    let needs = needs(root, wants, &kernel.version, &drivers::of(Path::new("/sys"), &disks));
    let why = match read(root, &kernel.initrd) {
        Ok(content) => match missing(&needs, &content) {
            why if why.is_empty() => return Ok(content.is_dracut),
            why => format!("the image's initramfs {why}"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "the image does not contain one".to_owned(),
        Err(error) => format!("the image's initramfs cannot be read: {error}"),
    };
    let maker = MAKERS.iter().find_map(|maker| Some((maker, places::program(root, &[maker.program])?)));
    let Some((maker, program)) = maker else {
        let tools = MAKERS.map(|maker| maker.program).join(", ");
        let what = format!(
            "cannot build the initramfs {}: the image contains none of {tools}; it must be built because {why}",
            kernel.initrd
        );
        return Err(Error::new(Phase::Target, what));
    };
    if let Some(lacking) = needs.iter().find_map(|need| match need {
        Need::Program(name) if places::program(root, &[name]).is_none() => Some(name),
        _ => None,
    }) {
        let what = format!("the root filesystem of this machine requires {lacking}, which the image does not contain");
        return Err(Error::new(Phase::Target, what));
    }
    write_settings(root, &maker.settings, wants, &needs)?;
    say(&format!("{} builds the initramfs of {}, because {why}", maker.name, kernel.version));
    let began = Instant::now();
    let update = if places::is_file(root, &kernel.initrd) { "-u" } else { "-c" };
    let fill = |arg: &&str| {
        arg.replace("{version}", &kernel.version)
            .replace("{initrd}", &kernel.initrd)
            .replace("{update or create}", update)
    };
    let args: Vec<String> = maker.args.iter().map(fill).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let what = || format!("build the initramfs of {} with {}", kernel.version, maker.name);
    run.run(&program, &args, DEADLINE).context(Phase::Target, what)?;
    say(&format!("{} took {:.1} s", maker.name, began.elapsed().as_secs_f32()));
    let content = read(root, &kernel.initrd).context(Phase::Target, || format!("read {} again", kernel.initrd))?;
    match missing(&needs, &content) {
        still if still.is_empty() => Ok(content.is_dracut),
        still => Err(Error::new(Phase::Target, format!("the initramfs built by {} {still}", maker.name))),
    }
}

fn read(root: &Root, path: &str) -> std::io::Result<Content> {
    content::read(root.open_file(path)?)
}

/// Describes the requirements that are not met.
fn missing(needs: &[Need], content: &Content) -> String {
    let missing: Vec<String> = needs.iter().filter(|need| !need.is_met(content)).map(Need::in_words).collect();
    missing.join(", ")
}

/// Returns the requirements of this root filesystem for an initramfs of this kernel. Drivers built into the kernel
/// are excluded, and modules that the kernel does not have.
fn needs(root: &Root, wants: &BootWants, version: &str, drivers: &[String]) -> Vec<Need> {
    let mut modules: Vec<String> = drivers.to_vec();
    let mut needs = Vec::new();
    modules.extend(match wants.root.format {
        Format::Ext3 | Format::Ext4 => Some("ext4".to_owned()),
        Format::Swap | Format::Tmpfs | Format::None => None,
        other => Some(other.name().to_owned()),
    });
    for array in wants.arrays.iter().filter(|array| array.is_beneath_root) {
        modules.push(personality(array.level).to_owned());
        needs.extend([Need::Program("mdadm"), Need::Array(arrays::uuid_text(array.uuid))]);
    }
    if let Some(group) = &wants.group {
        modules.push("dm_mod".to_owned());
        modules.extend(group.is_mirrored.then(|| "dm_raid".to_owned()));
        needs.push(Need::Program("lvm"));
    }
    let loadable = Loadable::of(root, version);
    needs.extend(modules.into_iter().filter(|module| loadable.has(module)).map(Need::Module));
    let mut once = Vec::new();
    needs.retain(|need| {
        !once.contains(need) && {
            once.push(need.clone());
            true
        }
    });
    needs
}

/// Returns the kernel module of an array's level.
fn personality(level: RaidLevel) -> &'static str {
    match level {
        RaidLevel::Raid0 => "raid0",
        RaidLevel::Raid1 => "raid1",
        RaidLevel::Raid5 | RaidLevel::Raid6 => "raid456",
        RaidLevel::Raid10 => "raid10",
    }
}

/// Loadable modules of a kernel.
struct Loadable(Vec<String>);

impl Loadable {
    fn of(root: &Root, version: &str) -> Loadable {
        let lists = ["/usr/lib/modules", "/lib/modules"].map(|dir| format!("{dir}/{version}/modules.dep"));
        let Some(list) = lists.iter().find_map(|list| root.open_file(list).ok()) else { return Loadable(Vec::new()) };
        let lines = BufReader::new(list.take(MOST_LIST_BYTES)).lines().map_while(std::io::Result::ok);
        let name =
            |line: String| Some(line.split(':').next()?.rsplit('/').next()?.split(".ko").next()?.replace('-', "_"));
        Loadable(lines.filter_map(name).collect())
    }

    fn has(&self, module: &str) -> bool {
        self.0.iter().any(|name| name == module)
    }
}

fn write_settings(root: &Root, settings: &Settings, wants: &BootWants, needs: &[Need]) -> Result<()> {
    let modules = needs.iter().filter_map(|need| match need {
        Need::Module(name) => Some(name.as_str()),
        _ => None,
    });
    let is_lines = settings.drivers == "{}";
    let modules = modules.collect::<Vec<_>>().join(if is_lines { "\n" } else { " " });
    let mut lines = vec![settings.drivers.replace("{}", &modules)];
    lines.extend(wants.arrays.iter().any(|array| array.is_beneath_root).then(|| settings.arrays.to_owned()));
    lines.extend(wants.group.is_some().then(|| settings.groups.to_owned()));
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() {
        return Ok(());
    }
    let own = root.read(settings.path).unwrap_or_default();
    let text = format!("{own}# written by drophammer\n{}\n", lines.join("\n"));
    root.write(settings.path, 0o644, text.as_bytes())
}

#[cfg(test)]
mod tests;
