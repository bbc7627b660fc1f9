//! Kernel command line, composed of the image's arguments and those required by this machine.

use super::boot_kernel::BootKernel;
use super::boot_requirements::BootRequirements;
use super::file_search::{find_matching, find_program};
use super::{array_config, bls};
use crate::NewRoot;
use common::error::{Error, Phase, Result};
use std::collections::BTreeMap;

/// Files from which kernel-install(8) takes the command line; it reads only the first existing one.
const KERNEL_INSTALL: [&str; 2] = ["/etc/kernel/cmdline", "/usr/lib/kernel/cmdline"];

const GRUB_DEFAULTS: [&str; 2] = ["/etc/default/grub", "/etc/default/grub.d/*.cfg"];

/// Variables with kernel arguments, in the order in which grub-mkconfig concatenates them.
const GRUB_VARIABLES: [&str; 2] = ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"];

/// Names of arguments that are not taken from the image, because they are specific to the machine on which it was
/// built, or are set here.
const NOT_KEPT: [&str; 14] = [
    "root",
    "rootfstype",
    "rootflags",
    "resume",
    "BOOT_IMAGE",
    "initrd",
    "ro",
    "rw",
    "rd.md.uuid",
    "rd.lvm.vg",
    "rd.lvm.lv",
    "rd.luks.uuid",
    "rd.luks.name",
    "systemd.machine_id",
];

/// Tools whose initramfs mounts the root filesystem only if the command line contains the type of this filesystem.
const WANTS_TYPE: [&str; 1] = ["mkinitfs"];

/// Kernel command line in two parts: arguments for the root filesystem, and others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelCommandLine {
    root: Vec<String>,
    own: Vec<String>,
}

impl KernelCommandLine {
    pub(crate) fn to_full_line(&self) -> String {
        [&self.root[..], &self.own].concat().join(" ")
    }

    /// Returns the command line without the arguments for the root filesystem.
    pub(crate) fn to_line_without_root(&self) -> String {
        self.own.join(" ")
    }
}

/// Composes the command line.
///
/// # Errors
/// An argument of the allocation contains a control character.
pub(crate) fn build_command_line(
    root: &NewRoot,
    wants: &BootRequirements,
    kernel: &BootKernel,
    is_dracut: bool,
) -> Result<KernelCommandLine> {
    if let Some(bad) = wants.arguments.iter().find(|argument| argument.contains(char::is_control)) {
        return Err(Error::new(Phase::Target, format!("the kernel argument {bad:?} contains a control character")));
    }
    let mut own: Vec<String> = Vec::new();
    let kept =
        read_image_arguments(root, kernel).into_iter().filter(|word| is_preserved(word, !wants.consoles.is_empty()));
    let consoles = wants.consoles.iter().map(|console| format!("console={console}"));
    let needed = if is_dracut { dracut_arguments(wants) } else { Vec::new() };
    for word in kept.chain(needed).chain(consoles).chain(wants.arguments.iter().cloned()) {
        if !own.contains(&word) {
            own.push(word);
        }
    }
    let mut words = vec![format!("root=UUID={}", wants.root.uuid), "ro".to_owned()];
    if find_program(root, &WANTS_TYPE).is_some() {
        words.push(format!("rootfstype={}", wants.root.format.name()));
    }
    Ok(KernelCommandLine { root: words, own })
}

/// Returns arguments for dracut, which starts only the arrays and groups that the command line lists.
fn dracut_arguments(wants: &BootRequirements) -> Vec<String> {
    let arrays = wants.arrays.iter().filter(|array| array.is_beneath_root);
    let arrays = arrays.map(|array| format!("rd.md.uuid={}", array_config::uuid_text(array.uuid)));
    arrays.chain(wants.group.iter().map(|group| format!("rd.lvm.vg={}", group.name))).collect()
}

fn is_preserved(word: &str, has_consoles: bool) -> bool {
    let name = word.split('=').next().unwrap_or_default();
    let is_given_anew = NOT_KEPT.contains(&name) || (has_consoles && name == "console");
    !is_given_anew
}

/// Returns the image's kernel arguments from the first existing source: kernel-install's file, GRUB's settings, the
/// kernel's boot entry.
fn read_image_arguments(root: &NewRoot, kernel: &BootKernel) -> Vec<String> {
    for path in KERNEL_INSTALL {
        if let Ok(text) = root.read_text(path) {
            return bls::parse_options(&text).collect();
        }
    }
    let files = GRUB_DEFAULTS.iter().flat_map(|pattern| find_matching(root, pattern));
    let texts: Vec<String> = files.filter_map(|path| root.read_text(&path).ok()).collect();
    if texts.is_empty() { kernel.words.clone() } else { parse_grub_defaults(&texts.concat()) }
}

/// Evaluates the assignments of GRUB's variables and returns their words. Other shell code is ignored: all known
/// distributions use plain assignments.
fn parse_grub_defaults(text: &str) -> Vec<String> {
    let mut values: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, value)) = line.trim().trim_start_matches("export ").split_once('=') else { continue };
        let name = name.trim_end_matches('+');
        if !GRUB_VARIABLES.contains(&name) {
            continue;
        }
        let before = values.get(name).cloned().unwrap_or_default();
        let mut value = unquote_value(value);
        for variable in GRUB_VARIABLES.iter().rev() {
            let now = values.get(variable).cloned().unwrap_or_default();
            value = value.replace(&format!("${{{variable}}}"), &now).replace(&format!("${variable}"), &now);
        }
        let adds = line.trim().split('=').next().is_some_and(|left| left.ends_with('+'));
        values.insert(name, if adds { before + &value } else { value });
    }
    let words = GRUB_VARIABLES.iter().filter_map(|name| values.get(name)).flat_map(|value| bls::parse_options(value));
    words.filter(|word| !word.contains('`')).collect()
}

/// Returns the value of an assignment: a quoted string, or up to the first blank.
fn unquote_value(value: &str) -> String {
    let value = value.trim_start();
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].split(quote).next().unwrap_or_default().to_owned(),
        _ => value.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

/// Configures grub-mkconfig in the target to use the same arguments for later kernels.
pub(crate) fn persist_for_grub(root: &NewRoot, own: &str) -> Result<()> {
    let quoted = own.replace(['"', '\\', '$', '`'], "");
    let lines = format!("GRUB_CMDLINE_LINUX=\"{quoted}\"\nGRUB_CMDLINE_LINUX_DEFAULT=\"\"\n");
    let reads_directory = find_program(root, &["grub-mkconfig", "grub2-mkconfig"])
        .and_then(|script| root.read_text(&script).ok())
        .is_some_and(|script| script.contains("/default/grub.d"));
    if reads_directory {
        // The name of this file sorts after those of all files of the image.
        return root.write_file(
            "/etc/default/grub.d/zz-drophammer.cfg",
            0o644,
            format!("# written by drophammer\n{lines}").as_bytes(),
        );
    }
    let path = GRUB_DEFAULTS[0];
    // The assignments are appended, because the last assignment of a variable takes effect.
    let before = root.read_text(path).unwrap_or_default();
    root.write_file(path, 0o644, format!("{before}\n# written by drophammer\n{lines}").as_bytes())
}

/// Configures kernel-install(8) to use the same command line for later kernels.
pub(crate) fn persist_for_kernel_install(root: &NewRoot, whole: &str) -> Result<()> {
    root.write_file(KERNEL_INSTALL[0], 0o644, format!("{whole}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::boot_setup::tests::wants;
    use super::super::file_search::tests::tree;
    use super::*;

    fn kernel(words: &str) -> BootKernel {
        let words = words.split_whitespace().map(str::to_owned).collect();
        let (version, image) = ("6.1".into(), "/boot/vmlinuz-6.1".into());
        BootKernel { version, image, initrd: "/boot/initrd.img-6.1".into(), words, entry: None }
    }

    #[test]
    fn the_images_words_stay_where_they_are_not_of_another_machine() {
        let grub = "# x\nGRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"net.ifnames=0 root=/dev/sda1 rd.lvm.lv=rhel/root\" # y\n";
        let more = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX console=tty9 a=b\"\n";
        let plus = "GRUB_CMDLINE_LINUX_DEFAULT+=\" c $(date) `x`\"\nGRUB_CMDLINE_LINUX='d'\n";
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[], "of=entry"),
            (&[("etc/kernel/cmdline", "root=UUID=2 rw quiet resume=/dev/x\n")], "quiet"),
            (&[("usr/lib/kernel/cmdline", "x=y"), ("etc/kernel/cmdline", "z")], "z"),
            (&[("etc/default/grub", grub)], "net.ifnames=0 quiet"),
            (&[("etc/default/grub", grub), ("etc/default/grub.d/50.cfg", more)], "net.ifnames=0 a=b quiet"),
            (&[("etc/default/grub", plus)], "d c"),
            (&[("etc/default/grub", "GRUB_CMDLINE_LINUX=\n")], ""),
        ];
        for (files, own) in cases {
            let (_dir, root) = tree(files);
            let line = build_command_line(&root, &wants(), &kernel("of=entry root=LABEL=x ro"), false).unwrap();
            let expected = [own, "console=tty0", "console=ttyS0,115200n8", "last=1"].join(" ");
            assert_eq!(line.to_line_without_root(), expected.trim(), "{files:?}");
            assert_eq!(line.to_full_line(), format!("root=UUID=r-uuid ro {}", line.to_line_without_root()));
        }
    }

    #[test]
    fn dracut_is_told_what_is_beneath_the_root_and_alpine_the_type() {
        let (_dir, root) = tree(&[("sbin/mkinitfs", "")]);
        let mut wants = wants();
        (wants.consoles, wants.arguments) = (Vec::new(), Vec::new());
        wants.arrays = vec![array_config::tests::array("root", true), array_config::tests::array("efi", false)];
        wants.group = Some(super::super::boot_requirements::RootGroup { name: "vg".into(), is_mirrored: false });
        let line = build_command_line(&root, &wants, &kernel(""), true).unwrap();
        assert_eq!(line.to_line_without_root(), "rd.md.uuid=01234567:89abcdef:01234567:89abcdef rd.lvm.vg=vg");
        assert!(
            line.to_full_line().starts_with("root=UUID=r-uuid ro rootfstype=ext4 rd.md"),
            "{}",
            line.to_full_line()
        );
        // The image's console is preserved if no console is requested.
        assert_eq!(
            build_command_line(&root, &wants, &kernel("console=ttyS1"), false).unwrap().to_line_without_root(),
            "console=ttyS1"
        );
        wants.arguments = vec!["a\nb".into()];
        assert!(
            build_command_line(&root, &wants, &kernel(""), false)
                .unwrap_err()
                .to_string()
                .contains("control character")
        );
    }

    #[test]
    fn later_kernels_get_the_same_arguments() {
        let debian = ("usr/sbin/grub-mkconfig", "for x in ${sysconfdir}/default/grub.d/*.cfg ; do");
        let (_dir, root) = tree(&[debian]);
        persist_for_grub(&root, "a=$b c").unwrap();
        assert!(
            root.read_text("/etc/default/grub.d/zz-drophammer.cfg").unwrap().contains("GRUB_CMDLINE_LINUX=\"a=b c\"")
        );
        let (_dir, root) = tree(&[("usr/sbin/grub2-mkconfig", ""), ("etc/default/grub", "GRUB_CMDLINE_LINUX=old")]);
        persist_for_grub(&root, "a b").unwrap();
        let text = root.read_text("/etc/default/grub").unwrap();
        assert_eq!(parse_grub_defaults(&text), ["a", "b"]);
    }
}
