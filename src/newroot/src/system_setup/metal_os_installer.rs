//! metal-stack's `os-installer` in the image, and the image's custom script.

use super::metal_os_installer_files;
use super::metal_os_installer_settings::SETTINGS;
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Phase, Result};
use operations::MachineFiles;
use std::time::Duration;

const PROGRAMS: [&str; 5] = [
    "/os-installer",
    "/usr/local/bin/os-installer",
    "/usr/local/sbin/os-installer",
    "/usr/bin/os-installer",
    "/usr/sbin/os-installer",
];
/// Shell script that runs a program in a directory: its arguments are directory and program.
const IN_DIRECTORY: &str = "cd \"$0\" && exec \"$1\"";

/// LVM settings for the chroot. With these settings, LVM does not wait for udev, which does not run in the chroot, and
/// does not examine the devices below arrays and mappings that the ramdisk has assembled.
const LVM: &str = "/etc/lvm/lvmlocal.conf";
const LVM_LOCAL: &str = "\
# written by drophammer
activation {
\tudev_sync = 0
\tudev_rules = 0
}
devices {
\tmultipath_component_detection = 0
\tmd_component_detection = 0
\tobtain_device_list_from_udev = 0
}
";

/// Returns the path of os-installer in the image.
pub(crate) fn find_os_installer(root: &NewRoot) -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| root.open_file(program).is_ok())
}

/// Writes the files of os-installer in `/etc/metal`, and runs os-installer. Afterwards the password is removed from
/// these files.
///
/// # Errors
/// Returns an error if os-installer fails or exceeds its deadline, or a file cannot be written.
pub(crate) fn run_os_installer(
    root: &NewRoot,
    program: &str,
    files: &MachineFiles,
    root_uuid: &str,
    deadline: Duration,
    run: &dyn TargetRunner,
) -> Result<()> {
    write_lvm_settings(root)?;
    let password = &files.assigned.allocation.console_password;
    metal_os_installer_files::write_machine_files(root, files, root_uuid, password)?;
    let ran = run.run_program(program, &[], deadline);
    // The files are written again without the password, because os-installer makes them world-readable.
    let cleaned = metal_os_installer_files::write_machine_files(root, files, root_uuid, "");
    ran.context(Phase::Target, || format!("run the image's installer {program}"))?;
    cleaned
}

/// Writes local LVM settings if the target contains LVM but no local settings.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write_lvm_settings(root: &NewRoot) -> Result<()> {
    match root.path_exists("/etc/lvm") && !root.path_exists(LVM) {
        true => root.write_file(LVM, 0o644, LVM_LOCAL.as_bytes()),
        false => Ok(()),
    }
}

/// Custom script of the image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CustomScript {
    pub program: String,
    pub directory: String,
}

impl CustomScript {
    /// Runs the script.
    ///
    /// # Errors
    /// Returns an error if the script fails, or exceeds its deadline.
    pub(crate) fn run_script(&self, deadline: Duration, run: &dyn TargetRunner) -> Result<()> {
        let CustomScript { program, directory } = self;
        let ran = match directory.as_str() {
            "" => run.run_program(program, &[], deadline),
            directory => run.run_program("/bin/sh", &["-c", IN_DIRECTORY, directory, program], deadline),
        };
        ran.map(drop).context(Phase::Target, || format!("run {program}, which the image's {SETTINGS} specifies"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::{Programs, tree};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn os_installer_receives_its_files_and_leaves_no_password() {
        let (_dir, root) = tree(&[("usr/local/bin/os-installer", ""), ("etc/lvm/lvm.conf", "")]);
        let mut files = MachineFiles::default();
        files.assigned.allocation.console_password = "secret".into();
        for programs in [Programs::saying(""), Programs::failing()] {
            let ran = run_os_installer(&root, find_os_installer(&root).unwrap(), &files, "r-uuid", MINUTE, &programs);
            assert_eq!(programs.ran(), ["/usr/local/bin/os-installer"]);
            assert_eq!(ran.is_ok(), programs.is_good(), "{ran:?}");
            assert!(root.read_text("/etc/metal/machine-details.yaml").unwrap().contains("password: \"\"\n"));
            assert!(root.path_exists("/etc/metal/machine-allocation.yaml"));
            assert!(root.read_text(LVM).unwrap().contains("udev_sync = 0"));
        }
        // Local settings of the image are preserved.
        root.write_file(LVM, 0o644, b"own").unwrap();
        run_os_installer(&root, "/x", &files, "", MINUTE, &Programs::saying("")).unwrap();
        assert_eq!(root.read_text(LVM).unwrap(), "own");
        assert_eq!(find_os_installer(&tree(&[]).1), None);
    }

    #[test]
    fn custom_script_runs_in_its_directory() {
        for (directory, expected) in [("", "/opt/own"), ("/opt", "/bin/sh -c cd \"$0\" && exec \"$1\" /opt /opt/own")] {
            let script = CustomScript { program: "/opt/own".to_owned(), directory: directory.to_owned() };
            let programs = Programs::saying("");
            script.run_script(MINUTE, &programs).unwrap();
            assert_eq!(programs.ran(), [expected]);
            let error = script.run_script(MINUTE, &Programs::failing()).unwrap_err().to_string();
            assert!(
                error.starts_with("run /opt/own, which the image's /etc/metal/os-installer.yaml specifies: "),
                "{error}"
            );
        }
    }
}
