//! Initramfs of the target. The initramfs is rebuilt only if it cannot mount the root filesystem of this machine, and
//! its `/usr` if that is a separate filesystem, because rebuilding takes as long as the rest of the installation.

mod content;
mod disk_drivers;

use super::boot_kernel::BootKernel;
use super::machine_boot_requirements::BootRequirements;
use super::{array_config, file_search};
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Error, Phase, Result};
use content::InitramfsContent;
#[cfg(test)]
pub(super) use content::tests::cpio;
use model::layout::{FilesystemFormat, RaidLevel};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Deadline of the tool; under emulation it takes minutes to build an initramfs.
const BUILD_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Tool that builds an initramfs.
struct InitramfsTool {
    name: &'static str,
    program: &'static str,
    /// Arguments of the tool, with placeholders in braces.
    args: &'static [&'static str],
    /// Settings file of the tool. The settings apply to this initramfs and to the initramfs of each later kernel.
    settings: InitramfsSettings,
}

impl InitramfsTool {
    /// Returns the arguments that update the initramfs of this kernel, or create it.
    fn fill_args(&self, kernel: &BootKernel, exists: bool) -> Vec<String> {
        let update = if exists { "-u" } else { "-c" };
        let fill = |arg: &&str| {
            arg.replace("{version}", &kernel.version)
                .replace("{initrd}", &kernel.initrd)
                .replace("{update or create}", update)
        };
        self.args.iter().map(fill).collect()
    }
}

struct InitramfsSettings {
    path: &'static str,
    /// Line that adds drivers; `{}` is replaced by the names of kernel modules.
    drivers: &'static str,
    arrays: &'static str,
    groups: &'static str,
}

/// Supported tools. The first tool that the target contains is used.
const SUPPORTED_TOOLS: [InitramfsTool; 4] = [
    InitramfsTool {
        name: "initramfs-tools",
        program: "update-initramfs",
        args: &["{update or create}", "-k", "{version}"],
        // `arrays` and `groups` are empty, because the hooks of initramfs-tools detect arrays and volume groups by
        // themselves.
        settings: InitramfsSettings { path: "/etc/initramfs-tools/modules", drivers: "{}", arrays: "", groups: "" },
    },
    InitramfsTool {
        name: "dracut",
        program: "dracut",
        // `--no-hostonly` prevents dracut from selecting drivers by the hardware, which dracut cannot detect in the
        // chroot.
        args: &["--force", "--no-hostonly", "--kver", "{version}", "{initrd}"],
        settings: InitramfsSettings {
            path: "/etc/dracut.conf.d/drophammer.conf",
            drivers: "add_drivers+=\" {} \"",
            arrays: "add_dracutmodules+=\" mdraid \"\nmdadmconf=\"yes\"",
            groups: "add_dracutmodules+=\" lvm \"",
        },
    },
    InitramfsTool {
        name: "mkinitcpio",
        program: "mkinitcpio",
        args: &["-k", "{version}", "-g", "{initrd}"],
        settings: InitramfsSettings {
            path: "/etc/mkinitcpio.conf.d/drophammer.conf",
            drivers: "MODULES+=({})",
            arrays: "HOOKS+=(mdadm_udev)",
            groups: "HOOKS+=(lvm2)",
        },
    },
    InitramfsTool {
        name: "mkinitfs",
        program: "mkinitfs",
        args: &["-o", "{initrd}", "{version}"],
        // A shell evaluates the settings file, so an appended line can extend the variable `features`. This variable
        // already contains the features that the image has selected, such as the drivers of filesystems and disks.
        settings: InitramfsSettings {
            path: "/etc/mkinitfs/mkinitfs.conf",
            drivers: "",
            arrays: "features=\"$features raid\"",
            groups: "features=\"$features lvm\"",
        },
    },
];

/// Maximum size of a file that lists modules, in bytes. Most such files are about half a megabyte large.
const MAXIMUM_LIST_BYTES: u64 = 16 << 20;

/// Requirement that an initramfs must meet to find `/` and a separate `/usr`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum InitramfsRequirement {
    Module(String),
    Program(&'static str),
    /// The mdadm.conf in the initramfs lists the array with this UUID, or does not list any array.
    Array(String),
}

impl InitramfsRequirement {
    fn is_met(&self, content: &InitramfsContent) -> bool {
        match self {
            InitramfsRequirement::Module(name) => content.modules.contains(name),
            InitramfsRequirement::Program(name) => content.programs.contains(*name),
            InitramfsRequirement::Array(uuid) => {
                let named = array_config::listed_uuids(content.mdadm_conf.as_deref().unwrap_or_default());
                named.is_empty() || named.contains(uuid)
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            InitramfsRequirement::Module(name) => format!("lacks {name}"),
            InitramfsRequirement::Program(name) => format!("lacks the program {name}"),
            InitramfsRequirement::Array(uuid) => format!("does not start array {uuid}"),
        }
    }
}

/// Ensures that the kernel's initramfs can mount this machine's root filesystem, and rebuilds the initramfs if
/// necessary. Returns whether the initramfs was built by dracut. An existing initramfs that cannot be parsed, and
/// cannot be rebuilt either, is used unchanged.
///
/// # Errors
/// Returns an error if a required rebuild fails: the target lacks the tool or another required program, or the tool
/// fails, exceeds its deadline, or builds an initramfs that still cannot mount the root filesystem. If the existing
/// initramfs cannot be parsed, a failed rebuild is an error only if it has changed the initramfs.
pub(crate) fn ensure_initramfs(
    root: &NewRoot,
    wants: &BootRequirements,
    kernel: &BootKernel,
    run: &dyn TargetRunner,
    say: &dyn Fn(&str),
) -> Result<bool> {
    let drivers = disk_drivers::find_driver_modules(Path::new("/sys"), &wants.initramfs_disks);
    let needs = list_requirements(root, wants, &kernel.version, &drivers);
    let (why, is_unreadable) = match read_content(root, &kernel.initrd) {
        Ok(content) => match describe_missing(&needs, &content) {
            why if why.is_empty() => return Ok(content.is_dracut),
            why => (format!("the image's initramfs {why}"), false),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            ("the image does not contain an initramfs".to_owned(), false)
        }
        Err(error) => (format!("the image's initramfs cannot be read: {error}"), true),
    };
    let before = read_stamp(root, &kernel.initrd);
    match rebuild_initramfs(root, wants, kernel, &needs, &why, run, say) {
        Err(error) if is_unreadable && read_stamp(root, &kernel.initrd) == before => {
            say(&format!(
                "WARNING: {why}; {initrd} is used unchanged, because it cannot be rebuilt: {error}",
                initrd = kernel.initrd
            ));
            // It is unknown whether dracut built the existing initramfs. The arguments for dracut have no effect on
            // other types of initramfs, so they can be used in any case.
            Ok(true)
        }
        built => built,
    }
}

/// Returns size and modification time of a file. The values change when a tool writes the file.
pub(super) fn read_stamp(root: &NewRoot, path: &str) -> Option<(u64, SystemTime)> {
    let metadata = root.open_file(path).and_then(|file| file.metadata()).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

fn rebuild_initramfs(
    root: &NewRoot,
    wants: &BootRequirements,
    kernel: &BootKernel,
    needs: &[InitramfsRequirement],
    why: &str,
    run: &dyn TargetRunner,
    say: &dyn Fn(&str),
) -> Result<bool> {
    let (maker, program) = find_tool(root, kernel, needs, why)?;
    write_settings(root, &maker.settings, wants, needs)?;
    say(&format!(
        "tool {tool} builds the initramfs for kernel {kernel}, because {why}",
        tool = maker.name,
        kernel = kernel.version
    ));
    let began = Instant::now();
    let args = maker.fill_args(kernel, file_search::is_file(root, &kernel.initrd));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let what =
        || format!("build the initramfs for kernel {kernel} with {tool}", kernel = kernel.version, tool = maker.name);
    run.run_program(&program, &args, BUILD_TIMEOUT).context(Phase::Target, what)?;
    say(&format!("{} took {:.1} s", maker.name, began.elapsed().as_secs_f32()));
    let content = match read_content(root, &kernel.initrd) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            say(&format!("WARNING: the contents of {initrd} cannot be verified: {error}", initrd = kernel.initrd));
            return Ok(maker.name == "dracut");
        }
        content => content.context(Phase::Target, || format!("read {} again", kernel.initrd))?,
    };
    match describe_missing(needs, &content) {
        still if still.is_empty() => Ok(content.is_dracut),
        still => Err(Error::new(Phase::Target, format!("the initramfs built by {tool} {still}", tool = maker.name))),
    }
}

/// Returns the tool that builds the initramfs, and the path of its program.
///
/// # Errors
/// Returns an error if the image does not contain a supported tool, or lacks a program that the initramfs must contain.
fn find_tool(
    root: &NewRoot,
    kernel: &BootKernel,
    needs: &[InitramfsRequirement],
    why: &str,
) -> Result<(&'static InitramfsTool, String)> {
    let maker =
        SUPPORTED_TOOLS.iter().find_map(|maker| Some((maker, file_search::find_program(root, &[maker.program])?)));
    let Some(found) = maker else {
        let tools = SUPPORTED_TOOLS.map(|maker| maker.program).join(", ");
        let what = format!(
            "cannot build the initramfs {initrd}: the image does not contain any of the programs {tools}; the initramfs must be built because {why}",
            initrd = kernel.initrd
        );
        return Err(Error::new(Phase::Target, what));
    };
    if let Some(lacking) = needs.iter().find_map(|need| match need {
        InitramfsRequirement::Program(name) if file_search::find_program(root, &[name]).is_none() => Some(name),
        _ => None,
    }) {
        let what = format!(
            "cannot build the initramfs: the root filesystem of this machine requires {lacking}, which the image does not contain"
        );
        return Err(Error::new(Phase::Target, what));
    }
    Ok(found)
}

fn read_content(root: &NewRoot, path: &str) -> std::io::Result<InitramfsContent> {
    content::read_initramfs(root.open_file(path)?)
}

/// Describes the requirements that are not met; empty if all are met.
fn describe_missing(needs: &[InitramfsRequirement], content: &InitramfsContent) -> String {
    let missing: Vec<String> =
        needs.iter().filter(|need| !need.is_met(content)).map(InitramfsRequirement::describe).collect();
    missing.join(", ")
}

/// Returns the requirements that an initramfs of this kernel must meet to mount this root filesystem and a separate
/// `/usr`. Drivers that are not loadable modules of this kernel are omitted, because they are built in or do not exist.
fn list_requirements(
    root: &NewRoot,
    wants: &BootRequirements,
    version: &str,
    drivers: &[String],
) -> Vec<InitramfsRequirement> {
    let mut modules: Vec<String> = drivers.to_vec();
    let mut needs = Vec::new();
    let formats = [wants.root.format].into_iter().chain(wants.usr_format);
    modules.extend(formats.filter_map(filesystem_module).map(str::to_owned));
    for array in wants.arrays.iter().filter(|array| array.is_beneath_system) {
        modules.push(raid_module(array.level).to_owned());
        needs.extend([
            InitramfsRequirement::Program("mdadm"),
            InitramfsRequirement::Array(array_config::uuid_text(array.uuid)),
        ]);
    }
    for group in &wants.groups {
        modules.push("dm_mod".to_owned());
        // dm_raid requests the module of the RAID level from the kernel. modules.dep does not list this dependency.
        modules.extend(group.is_mirrored.then_some(["dm_raid", "raid1"]).into_iter().flatten().map(str::to_owned));
        needs.push(InitramfsRequirement::Program("lvm"));
    }
    let loadable = LoadableModules::read_list(root, version);
    needs.extend(modules.into_iter().filter(|module| loadable.contains(module)).map(InitramfsRequirement::Module));
    let mut once = Vec::new();
    needs.retain(|need| {
        !once.contains(need) && {
            once.push(need.clone());
            true
        }
    });
    needs
}

/// Returns the kernel module for filesystems of this format.
fn filesystem_module(format: FilesystemFormat) -> Option<&'static str> {
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => Some("ext4"),
        FilesystemFormat::Swap | FilesystemFormat::Tmpfs | FilesystemFormat::None => None,
        other => Some(other.name()),
    }
}

/// Returns the kernel module for arrays of this level.
fn raid_module(level: RaidLevel) -> &'static str {
    match level {
        RaidLevel::Raid0 => "raid0",
        RaidLevel::Raid1 => "raid1",
        RaidLevel::Raid5 | RaidLevel::Raid6 => "raid456",
        RaidLevel::Raid10 => "raid10",
    }
}

/// Names of a kernel's loadable modules, with underscores.
struct LoadableModules(Vec<String>);

impl LoadableModules {
    fn read_list(root: &NewRoot, version: &str) -> LoadableModules {
        let lists = ["/usr/lib/modules", "/lib/modules"].map(|dir| format!("{dir}/{version}/modules.dep"));
        let Some(list) = lists.iter().find_map(|list| root.open_file(list).ok()) else {
            return LoadableModules(Vec::new());
        };
        let lines = BufReader::new(list.take(MAXIMUM_LIST_BYTES)).lines().map_while(std::io::Result::ok);
        let name =
            |line: String| Some(line.split(':').next()?.rsplit('/').next()?.split(".ko").next()?.replace('-', "_"));
        LoadableModules(lines.filter_map(name).collect())
    }

    fn contains(&self, module: &str) -> bool {
        self.0.iter().any(|name| name == module)
    }
}

fn write_settings(
    root: &NewRoot,
    settings: &InitramfsSettings,
    wants: &BootRequirements,
    needs: &[InitramfsRequirement],
) -> Result<()> {
    let modules = needs.iter().filter_map(|need| match need {
        InitramfsRequirement::Module(name) => Some(name.as_str()),
        _ => None,
    });
    let is_lines = settings.drivers == "{}";
    let modules = modules.collect::<Vec<_>>().join(if is_lines { "\n" } else { " " });
    let mut lines = vec![settings.drivers.replace("{}", &modules)];
    lines.extend(wants.arrays.iter().any(|array| array.is_beneath_system).then(|| settings.arrays.to_owned()));
    lines.extend((!wants.groups.is_empty()).then(|| settings.groups.to_owned()));
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() {
        return Ok(());
    }
    let own = root.read_text(settings.path).unwrap_or_default();
    let text = format!("{own}# written by drophammer\n{}\n", lines.join("\n"));
    root.write_file(settings.path, 0o644, text.as_bytes())
}

#[cfg(test)]
mod tests;
