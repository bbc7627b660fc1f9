//! SELinux labels. The ramdisk's kernel does not use SELinux, so the image's `setfiles` is run to label the unpacked
//! files. With unlabeled files, a system with enforcing SELinux would fail to boot before it could label the files
//! itself.

use super::LogSink;
use super::file_search::find_program;
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::Result;
use model::install_report::BootInfo;
use model::kernel_command_line::{parameter_name, split_words};
use std::time::Duration;

const CONFIG: &str = "/etc/selinux/config";

/// File that makes the system label all its files at the next boot.
const RELABEL: &str = "/.autorelabel";

/// Message with the reason why files are labeled only at the first boot.
pub(crate) const SETFILES_MISSING: &str = "the image does not contain setfiles";

const LABELING_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Special filesystems of the chroot, which do not belong to the installed system.
const EXCLUDED: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Returns the name of the policy of a system that uses SELinux.
pub(crate) fn find_policy(root: &NewRoot) -> Option<String> {
    let text = root.read_text(CONFIG).ok()?;
    let value = |key: &str| {
        let mut values = text.lines().rev().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        values.next().map(|value| value.trim().to_ascii_lowercase())
    };
    let is_enabled = value("SELINUX").is_some_and(|mode| ["enforcing", "permissive"].contains(&mode.as_str()));
    let name = value("SELINUXTYPE").unwrap_or_else(|| "targeted".to_owned());
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    (is_enabled && is_name).then_some(name)
}

/// Returns whether the system labels its files at its next boot.
pub(crate) fn is_relabeling_pending(root: &NewRoot) -> bool {
    root.path_exists(RELABEL)
}

/// Returns the boot information for the next boot. If the system labels its files at this boot, SELinux is permissive,
/// because an enforcing system cannot read files without labels.
pub fn add_relabeling_arguments(root: &NewRoot, boot: &BootInfo) -> BootInfo {
    let is_set = split_words(&boot.cmdline).any(|word| parameter_name(word) == "enforcing");
    if is_set || !is_relabeling_pending(root) {
        return boot.clone();
    }
    BootInfo { cmdline: format!("{} enforcing=0", boot.cmdline), ..boot.clone() }
}

/// Labels the files of a system that uses this policy: all files on its root filesystem, and on the filesystems at
/// `mounts`. If a filesystem cannot be labeled, the system labels all its files at its first boot.
///
/// # Errors
/// Returns an error if the file that requests the labeling cannot be written or removed.
pub(crate) fn label_files(
    root: &NewRoot,
    policy: &str,
    mounts: &[String],
    run: &dyn TargetRunner,
    say: LogSink,
) -> Result<()> {
    let contexts = contexts_path(policy);
    let Some(program) = find_setfiles(root, policy) else { return request_relabeling(root, SETFILES_MISSING, say) };
    let mut args = vec!["-F", "-m"];
    args.extend(EXCLUDED.iter().flat_map(|path| ["-e", path]));
    args.extend([contexts.as_str(), "/"]);
    // setfiles never descends into other filesystems, so each filesystem is passed as a separate argument.
    let mounts: Vec<String> = mounts.iter().map(|path| escape_pattern(path)).collect();
    args.extend(mounts.iter().map(String::as_str));
    match run.run_program(&program, &args, LABELING_TIMEOUT) {
        Ok(_) => {
            say("SELinux: files were labeled by the image's setfiles");
            root.remove(RELABEL)
        }
        Err(error) => request_relabeling(root, &format!("WARNING: the image's setfiles failed: {error}"), say),
    }
}

/// Labels all files of a tree after the image's installer has run. Does nothing if the installer requested the
/// labeling at the first boot.
///
/// # Errors
/// As for [`label_files`].
pub(crate) fn label_installed_tree(
    root: &NewRoot,
    mounts: &[String],
    run: &dyn TargetRunner,
    say: LogSink,
) -> Result<()> {
    match find_policy(root).filter(|_| !is_relabeling_pending(root)) {
        Some(policy) => label_files(root, &policy, mounts, run, say),
        None => Ok(()),
    }
}

/// Returns the mount points whose filesystems have no labels although the system uses SELinux. Returns `None` if there
/// are none, or if the system labels all files at its first boot anyway.
pub(crate) fn find_unlabeled(root: &NewRoot, mounts: &[String]) -> Option<UnlabeledFilesystems> {
    let policy = find_policy(root).filter(|_| !is_relabeling_pending(root))?;
    let mounts = mounts.iter().filter(|path| root.read_label(path).is_ok_and(|label| label.is_none()));
    let mounts: Vec<String> = mounts.cloned().collect();
    (!mounts.is_empty()).then_some(UnlabeledFilesystems { policy, mounts })
}

/// New filesystems, mounted in the system of a raw image, that have no SELinux labels yet. The files of the raw image
/// already have labels.
pub(crate) struct UnlabeledFilesystems {
    policy: String,
    mounts: Vec<String>,
}

impl UnlabeledFilesystems {
    /// Labels the filesystems with the image's `setfiles`. A failure is only reported, because the system boots without
    /// these labels.
    pub(crate) fn label(&self, root: &NewRoot, run: &dyn TargetRunner, say: LogSink) {
        let mounts = self.mounts.join(", ");
        let contexts = contexts_path(&self.policy);
        let labeled = match find_setfiles(root, &self.policy) {
            None => Err(SETFILES_MISSING.to_owned()),
            Some(program) => {
                let paths: Vec<String> = self.mounts.iter().map(|path| escape_pattern(path)).collect();
                let args = ["-F", "-m", &contexts].into_iter().chain(paths.iter().map(String::as_str));
                let run = run.run_program(&program, &args.collect::<Vec<_>>(), LABELING_TIMEOUT);
                run.map(drop).map_err(|error| format!("the image's setfiles failed: {error}"))
            }
        };
        match labeled {
            Ok(()) => say(&format!("SELinux: {mounts} were labeled by the image's setfiles")),
            Err(why) => say(&format!(
                "WARNING: SELinux: {mounts} have no labels, because {why}; run `restorecon -R` in the installed system"
            )),
        }
    }
}

/// Escapes a path for setfiles, which expands arguments as glob(7) patterns with braces.
fn escape_pattern(path: &str) -> String {
    let escaped = |c: char| if "*?[]{}".contains(c) { vec!['\\', c] } else { vec![c] };
    path.chars().flat_map(escaped).collect()
}

fn contexts_path(policy: &str) -> String {
    format!("/etc/selinux/{policy}/contexts/files/file_contexts")
}

fn find_setfiles(root: &NewRoot, policy: &str) -> Option<String> {
    find_program(root, &["setfiles"]).filter(|_| root.open_file(&contexts_path(policy)).is_ok())
}

/// Returns whether the image can label files of this policy.
pub(crate) fn has_setfiles(root: &NewRoot, policy: &str) -> bool {
    find_setfiles(root, policy).is_some()
}

/// Makes the system label all files at its next boot.
///
/// # Errors
/// Returns an error if the file that requests the labeling cannot be written.
pub(crate) fn request_relabeling(root: &NewRoot, why: &str, say: LogSink) -> Result<()> {
    root.write_file(RELABEL, 0o644, b"-F\n")?;
    say(&format!(
        "SELinux: {why}; the first boot labels all files, which takes longer than usual, and then the machine reboots once"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Programs, capture_log, tree};
    use super::*;

    const ENFORCING: (&str, &str) = ("etc/selinux/config", "# SELINUX=\nSELINUX=enforcing\nSELINUXTYPE=targeted\n");
    const CONTEXTS: (&str, &str) = ("etc/selinux/targeted/contexts/files/file_contexts", "");

    #[test]
    fn selinux_policy_is_read_from_the_configuration() {
        for (text, policy) in [
            ("SELINUX=enforcing\nSELINUXTYPE=mls\n", Some("mls")),
            ("SELINUX=Permissive\n", Some("targeted")),
            ("SELINUX=disabled\nSELINUXTYPE=targeted\n", None),
            ("SELINUX=enforcing\nSELINUXTYPE=../../x\n", None),
            ("", None),
        ] {
            assert_eq!(find_policy(&tree(&[("etc/selinux/config", text)]).1).as_deref(), policy, "{text}");
        }
        assert_eq!(find_policy(&tree(&[]).1), None);
    }

    #[test]
    fn files_are_labeled_before_the_first_boot_by_setfiles() {
        let (_dir, root) = tree(&[ENFORCING, CONTEXTS, ("usr/sbin/setfiles", ""), (".autorelabel", "")]);
        let command = "/usr/sbin/setfiles -F -m -e /proc -e /sys -e /dev -e /run \
                       /etc/selinux/targeted/contexts/files/file_contexts /";
        for (mounts, more) in
            [(&[][..], ""), (&["/boot", "/var"], " /boot /var"), (&["/srv/{a}*[1]?~"], r" /srv/\{a\}\*\[1\]\?~")]
        {
            let programs = Programs::saying("");
            let mounts: Vec<String> = mounts.iter().map(|path| (*path).to_owned()).collect();
            capture_log(|say| label_files(&root, "targeted", &mounts, &programs, say)).0.unwrap();
            assert_eq!(programs.ran(), [format!("{command}{more}")]);
        }
        assert!(!is_relabeling_pending(&root));
    }

    #[test]
    fn installed_tree_is_labeled_unless_relabeling_is_pending() {
        let files = [ENFORCING, CONTEXTS, ("usr/sbin/setfiles", ""), (".autorelabel", "")];
        for (files, runs) in [(&files[..3], 1), (&files[..], 0), (&files[1..3], 0)] {
            let (_dir, root) = tree(files);
            let programs = Programs::saying("");
            capture_log(|say| label_installed_tree(&root, &["/boot".to_owned()], &programs, say)).0.unwrap();
            assert_eq!(programs.ran().len(), runs, "{files:?}");
        }
    }

    #[test]
    fn new_filesystems_next_to_a_raw_image_are_labeled() {
        let mounts = ["/srv".to_owned(), "/data".to_owned()];
        let setfiles = ("usr/sbin/setfiles", "");
        let with = |files: &[(&str, &str)]| tree(&[files, &[("srv/x", ""), ("data/x", "")]].concat());
        let (_dir, root) = with(&[ENFORCING, CONTEXTS, setfiles]);
        let found = find_unlabeled(&root, &mounts).unwrap();
        let programs = Programs::saying("");
        assert_eq!(
            capture_log(|say| found.label(&root, &programs, say)).1,
            ["SELinux: /srv, /data were labeled by the image's setfiles"]
        );
        assert_eq!(
            programs.ran(),
            ["/usr/sbin/setfiles -F -m /etc/selinux/targeted/contexts/files/file_contexts /srv /data"]
        );
        let (_dir, bare) = with(&[ENFORCING]);
        for (root, programs) in [(&root, Programs::failing()), (&bare, Programs::saying(""))] {
            let lines = capture_log(|say| found.label(root, &programs, say)).1;
            assert!(lines[0].starts_with("WARNING: SELinux: /srv, /data have no labels, because "), "{lines:?}");
        }
        for files in [&[CONTEXTS, setfiles][..], &[ENFORCING, CONTEXTS, setfiles, (".autorelabel", "")]] {
            assert!(find_unlabeled(&with(files).1, &mounts).is_none());
        }
        assert!(find_unlabeled(&root, &[]).is_none());
    }

    #[test]
    fn files_are_labeled_at_the_first_boot_without_setfiles() {
        let setfiles = ("usr/sbin/setfiles", "");
        for files in [&[ENFORCING][..], &[ENFORCING, setfiles], &[ENFORCING, CONTEXTS, setfiles]] {
            let (_dir, root) = tree(files);
            let (done, lines) = capture_log(|say| label_files(&root, "targeted", &[], &Programs::failing(), say));
            done.unwrap();
            assert!(
                lines[0].starts_with("SELinux: ") && lines[0].contains("the first boot labels all files"),
                "{lines:?}"
            );
            assert_eq!(root.read_text(RELABEL).unwrap(), "-F\n");
            for (line, first) in [("root=UUID=1 ro", "root=UUID=1 ro enforcing=0"), ("enforcing=1", "enforcing=1")] {
                let boot = BootInfo {
                    kernel: "/k".into(),
                    initrd: String::new(),
                    cmdline: line.into(),
                    bootloader_id: String::new(),
                };
                assert_eq!(add_relabeling_arguments(&root, &boot).cmdline, first);
                assert_eq!(add_relabeling_arguments(&tree(&[]).1, &boot), boot);
            }
        }
    }
}
