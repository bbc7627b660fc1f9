//! Finishing of an image, by the image's installer or by drophammer. Finishing makes the system bootable on this
//! machine and accessible to its owner.

mod array_config;
pub(crate) mod bls_entry;
pub mod boot_contents;
mod boot_kernel;
mod boot_loader;
mod boot_setup;
mod cidata_filesystem;
pub(crate) mod distribution;
#[cfg(test)]
mod distribution_golden_tests;
mod efi_names;
mod esp_files;
pub(crate) mod file_search;
mod filesystem_support;
pub(crate) mod grub_config_reader;
mod host_identity;
mod image_architecture;
mod image_arguments;
mod initramfs;
mod kernel_command_line;
mod loader_context;
mod machine_boot_requirements;
mod metal_os_installer;
mod metal_os_installer_files;
mod metal_os_installer_settings;
mod metal_os_installer_tasks;
mod metal_user;
mod migrated_system;
mod network_config;
mod owner_login;
pub(crate) mod preserved_esps;
pub mod selinux;
pub(crate) mod shell_reader;
mod stale_crypttab;
#[cfg(test)]
mod testing;
mod user_data;

pub(crate) use boot_setup::BootSetup;
pub use migrated_system::{AdaptedBoot, MigratedBoot, adapt_migrated_system};
pub use preserved_esps::PreservedEsps;

use super::boot::boot_info;
use super::chroot::Chroot;
use super::etc_metal_files::decode_user_data;
use super::{NewRoot, fstab, image_installer};
use boot_setup::BootComponents;
use common::error::{Error, Phase, Result};
use distribution::Distribution;
use machine_boot_requirements::BootRequirements;
use metal_os_installer_settings::{OsInstallerSettings, task};
use model::allocation::FinisherChoice;
use operations::FinishInputs;
use owner_login::LoginUsers;
use std::thread;
use time::OffsetDateTime;

/// Callback that receives log lines.
pub(crate) type LogSink<'a> = &'a (dyn Fn(&str) + Sync);

/// Component that finishes the image: the image's installer, drophammer, or no component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishingComponent {
    /// Installer of metal-stack's images until 2026.
    Installer(&'static str),
    /// `os-installer`, the installer of later metal-stack images.
    OsInstaller(&'static str),
    /// Drophammer itself finishes the image.
    Builtin,
    /// The image is not changed.
    Disabled,
}

impl FinishingComponent {
    /// Selects the component that finishes the image: the requested component, or, if none is requested, a component
    /// according to the contents of the image.
    ///
    /// # Errors
    /// Returns an error if the image must be finished by its own installer, but does not contain an installer.
    pub fn choose(root: &NewRoot, way: FinisherChoice) -> Result<FinishingComponent> {
        let installer = || {
            image_installer::find_installer(root)
                .map(FinishingComponent::Installer)
                .or(metal_os_installer::find_os_installer(root).map(FinishingComponent::OsInstaller))
        };
        match way {
            FinisherChoice::Auto => Ok(installer().unwrap_or(FinishingComponent::Builtin)),
            FinisherChoice::Image => installer().ok_or_else(|| {
                let looked = image_installer::INSTALLERS.join(" nor ");
                Error::new(
                    Phase::Target,
                    format!("the image does not contain an installer: neither {looked} nor os-installer"),
                )
            }),
            FinisherChoice::Builtin => Ok(FinishingComponent::Builtin),
            FinisherChoice::None => Ok(FinishingComponent::Disabled),
        }
    }

    /// Returns whether the component reads the console password, in clear text, from `install.yaml`.
    pub fn reads_password(self) -> bool {
        match self {
            FinishingComponent::Installer(_) | FinishingComponent::Disabled => true,
            FinishingComponent::OsInstaller(_) | FinishingComponent::Builtin => false,
        }
    }
}

/// Origin of the installed system's boot information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootRecord {
    /// The image's installer has written the boot information.
    Written,
    /// Drophammer has made the system bootable, and has created the boot information.
    Created(BootSetup),
    Unknown,
}

/// Finishes an image that was unpacked as files. `root_uuid` is the UUID of the root filesystem.
///
/// # Errors
/// Returns an error if a step fails. If a program has failed, the error includes the last lines of its output.
pub fn finish_tree(
    root: &NewRoot,
    finishing: &FinishInputs,
    root_uuid: &str,
    now: OffsetDateTime,
    say: LogSink,
) -> Result<BootRecord> {
    filesystem_support::require_filesystem_support(root, &finishing.fstab, say)?;
    match FinishingComponent::choose(root, finishing.way)? {
        FinishingComponent::Builtin => {
            let overrides = OsInstallerSettings::read_settings(root)?;
            let distribution = Distribution::detect_or_named(root, overrides.system.as_deref());
            say(&match &distribution.doubt {
                Some(doubt) => format!("WARNING: {doubt}"),
                None => {
                    let version = Some(&distribution.version).filter(|version| !version.is_empty());
                    let version = version.map_or_else(String::new, |version| format!(" {version}"));
                    format!(
                        "{distribution}{version}: the image does not contain an installer, so drophammer configures the system",
                        distribution = distribution.id
                    )
                }
            });
            let wants =
                machine_boot_requirements::collect_boot_requirements(finishing, &distribution, &overrides, root_uuid);
            let bootable = boot_setup::find_boot_components(root, &wants, say)?;
            fstab::write_fstab(root, &finishing.fstab)?;
            stale_crypttab::disable_entries(root, say)?;
            let tree = TargetProperties { distribution: &distribution, overrides: &overrides, root_uuid };
            array_config::expose_groups(root, &finishing.groups, say)?;
            let made = apply_settings(root, finishing, &tree, Some((&wants, bootable)), now, say)?;
            Ok(made.map_or(BootRecord::Unknown, BootRecord::Created))
        }
        FinishingComponent::Disabled => {
            say("the image's files are not changed");
            Ok(BootRecord::Unknown)
        }
        who => {
            boot_info::remove_boot_info(root)?;
            run_image_installer(root, finishing, who, root_uuid, say, |chroot| {
                selinux::label_installed_tree(root, &finishing.new_mounts, chroot, say)
            })
        }
    }
}

/// Finishes a raw image, whose boot loader is preserved.
///
/// # Errors
/// As for [`finish_tree`].
pub fn finish_raw_image(
    root: &NewRoot,
    finishing: &FinishInputs,
    root_uuid: &str,
    now: OffsetDateTime,
    say: LogSink,
) -> Result<BootRecord> {
    filesystem_support::require_filesystem_support(root, &finishing.fstab, say)?;
    match FinishingComponent::choose(root, finishing.way)? {
        FinishingComponent::Builtin if finishing.way == FinisherChoice::Auto => {
            say("the image does not contain an installer, and its boot configuration is not changed");
            array_config::expose_groups(root, &finishing.groups, say)?;
            let files = &finishing.files;
            user_data::write_cloud_init_seed(
                root,
                files,
                &decode_user_data(&files.assigned.allocation.user_data),
                say,
            )?;
            if user_data::has_cloud_init(root) {
                network_config::write_cloud_init_network(root, &finishing.network, &files.nics, say)?;
            }
            cidata_filesystem::move_seed(root, finishing.seed.as_ref(), say)?;
            if let Some(unlabeled) = selinux::find_unlabeled(root, &finishing.new_mounts) {
                let chroot = Chroot::open(root, &finishing.devices, say)?;
                unlabeled.label(root, &chroot, say);
                chroot.close()?;
            }
            Ok(BootRecord::Unknown)
        }
        FinishingComponent::Builtin => {
            let overrides = OsInstallerSettings::read_settings(root)?;
            let distribution = Distribution::detect_or_named(root, overrides.system.as_deref());
            let tree = TargetProperties { distribution: &distribution, overrides: &overrides, root_uuid };
            array_config::expose_groups(root, &finishing.groups, say)?;
            apply_settings(root, finishing, &tree, None, now, say)?;
            Ok(BootRecord::Unknown)
        }
        FinishingComponent::Disabled => {
            say("the image's files are not changed");
            Ok(BootRecord::Unknown)
        }
        who => run_image_installer(root, finishing, who, root_uuid, say, |chroot| {
            let unlabeled = selinux::find_unlabeled(root, &finishing.new_mounts);
            unlabeled.iter().for_each(|unlabeled| unlabeled.label(root, chroot, say));
            Ok(())
        }),
    }
}

/// Runs the image's installer, and afterwards `label`, a function that sets the SELinux labels.
fn run_image_installer(
    root: &NewRoot,
    finishing: &FinishInputs,
    who: FinishingComponent,
    root_uuid: &str,
    say: LogSink,
    label: impl FnOnce(&Chroot) -> Result<()>,
) -> Result<BootRecord> {
    array_config::expose_groups(root, &finishing.groups, say)?;
    let chroot = Chroot::open(root, &finishing.devices, say)?.with_environment(&finishing.environment);
    let ran = match who {
        FinishingComponent::Installer(program) => metal_os_installer::write_lvm_settings(root)
            .and_then(|()| image_installer::run_installer(root, program, image_installer::INSTALLER_TIMEOUT, &chroot)),
        FinishingComponent::OsInstaller(program) => metal_os_installer::run_os_installer(
            root,
            program,
            &finishing.files,
            root_uuid,
            image_installer::INSTALLER_TIMEOUT,
            &chroot,
        ),
        FinishingComponent::Builtin | FinishingComponent::Disabled => Ok(()),
    };
    // If both the installer and the cleanup fail, the error of the installer is returned, because the error of the
    // cleanup (a busy mount) is only a consequence.
    let ran = ran.and_then(|()| label(&chroot));
    ran.and(chroot.close())?;
    Ok(BootRecord::Written)
}

/// Properties of the target that most settings depend on.
struct TargetProperties<'a> {
    distribution: &'a Distribution,
    overrides: &'a OsInstallerSettings,
    /// UUID of the target's root filesystem.
    root_uuid: &'a str,
}

/// Applies the settings of the machine and its owner. If `boots` is not `None`, makes the system bootable and returns
/// its boot setup.
fn apply_settings(
    root: &NewRoot,
    finishing: &FinishInputs,
    tree: &TargetProperties,
    boots: Option<(&BootRequirements, BootComponents)>,
    now: OffsetDateTime,
    say: LogSink,
) -> Result<Option<BootSetup>> {
    let TargetProperties { distribution, overrides, .. } = tree;
    let user_data = decode_user_data(&finishing.files.assigned.allocation.user_data);
    overrides.describe_disabled_tasks().iter().for_each(|line| say(line));
    apply_file_settings(root, finishing, tree, &user_data, now, say)?;
    let ignition = Some(()).filter(|()| overrides.is_task_enabled(task::USER_DATA));
    let ignition = ignition.and_then(|()| user_data::find_ignition(root, &user_data, say));
    let needs_keys = host_identity::needs_host_keys(root, distribution, user_data::has_cloud_init(root));
    let script = overrides.script.as_ref().filter(|_| overrides.is_task_enabled(task::SCRIPT));
    let enabling = match overrides.is_task_enabled(task::NETWORK) {
        true => network_config::write_network_config(root, &finishing.network, &finishing.files.nics, say)?,
        false => None,
    };
    cidata_filesystem::move_seed(root, finishing.seed.as_ref(), say)?;
    // In a raw image, a pending relabeling is left to the first boot, because the image may contain filesystems that
    // are not mounted now.
    let policy = selinux::find_policy(root).filter(|_| boots.is_some() || !selinux::is_relabeling_pending(root));
    let needs_programs = boots.is_some() || ignition.is_some() || needs_keys || script.is_some() || enabling.is_some();
    if !needs_programs && policy.as_deref().is_none_or(|policy| !selinux::has_setfiles(root, policy)) {
        policy.iter().try_for_each(|_| selinux::request_relabeling(root, selinux::SETFILES_MISSING, say))?;
        return Ok(None);
    }
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let run = || {
        if let Some(program) = ignition {
            user_data::run_ignition(root, program, &user_data, &chroot, say)?;
        }
        enabling.iter().try_for_each(|enabling| network_config::enable_network(enabling, &chroot))?;
        boots.map(|(wants, found)| boot_setup::make_bootable(root, wants, found, &chroot, say)).transpose()
    };
    let made = if needs_keys { run_while_generating_keys(root, &chroot, run) } else { run() };
    let ran = made.and_then(|booting| {
        script.iter().try_for_each(|script| script.run_script(image_installer::INSTALLER_TIMEOUT, &chroot))?;
        policy.iter().try_for_each(|policy| selinux::label_files(root, policy, &finishing.new_mounts, &chroot, say))?;
        Ok(booting)
    });
    // If both the program and the cleanup fail, the error of the program is returned, because the error of the cleanup
    // (a busy mount) is only a consequence.
    let left = chroot.close();
    ran.and_then(|booting| left.map(|()| booting))
}

/// Runs a function while the SSH host keys are generated, which takes seconds of CPU time. The keys are complete before
/// the custom script of the image runs, because this script may need them.
fn run_while_generating_keys<T>(root: &NewRoot, chroot: &Chroot, run: impl FnOnce() -> Result<T>) -> Result<T> {
    thread::scope(|scope| {
        let keys = scope.spawn(|| host_identity::generate_host_keys(root, chroot));
        let result = run();
        let panicked = |_| Err(Error::new(Phase::Target, "a thread of drophammer panicked; see the console"));
        let keys = keys.join().unwrap_or_else(panicked);
        result.and_then(|result| keys.map(|()| result))
    })
}

/// Applies settings that do not require programs of the image.
fn apply_file_settings(
    root: &NewRoot,
    finishing: &FinishInputs,
    tree: &TargetProperties,
    user_data: &[u8],
    now: OffsetDateTime,
    say: LogSink,
) -> Result<()> {
    let (files, overrides) = (&*finishing.files, tree.overrides);
    let allocation = &files.assigned.allocation;
    let preserved = PreservedEsps::from_esps(&finishing.esps);
    host_identity::reset_identity(root, &allocation.hostname, overrides, &preserved)?;
    if overrides.is_metal {
        metal_os_installer_tasks::perform_os_installer_tasks(root, finishing, tree, now, say)?;
    }
    let owners = LoginUsers::find_users(root, user_data::read_cloud_user(root).as_deref());
    if !allocation.ssh_pub_keys.is_empty() && overrides.is_task_enabled(task::SSH_KEYS) {
        owner_login::authorize_keys(root, &owners.keys, &allocation.ssh_pub_keys)?;
        say(&format!("SSH keys of {}: {}", owners.keys.name, allocation.ssh_pub_keys.len()));
    }
    if !allocation.console_password.is_empty() {
        owner_login::set_password(root, &owners.password, &allocation.console_password, now)?;
        say(&format!("console password set for {user}", user = owners.password.name));
    }
    if overrides.is_task_enabled(task::USER_DATA) {
        user_data::write_cloud_init_seed(root, files, user_data, &|line| say(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
