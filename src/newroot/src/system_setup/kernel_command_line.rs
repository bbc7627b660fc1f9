//! Kernel command line, composed of the image's arguments and the arguments that this machine requires.

use super::array_config;
use super::boot_kernel::BootKernel;
use super::file_search::find_program;
use super::grub_config_reader::format_grub_line;
use super::image_arguments::{
    CONFIGURES_NIC, GRUB_DEFAULTS, KERNEL_INSTALL, find_removal_reason, read_image_arguments,
};
use super::machine_boot_requirements::BootRequirements;
use crate::NewRoot;
use common::error::{Error, Phase, Result};
use model::kernel_command_line::{parameter_name, parameter_value};
use std::collections::BTreeMap;

/// Tools whose initramfs can mount the root filesystem only if the command line contains the type of this filesystem.
const WANTS_TYPE: [&str; 1] = ["mkinitfs"];

/// Kernel command line in two parts: arguments for the root filesystem, and all other arguments.
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

/// Composes the command line from arguments of the image, of this machine, and of the allocation. Order and duplicates
/// are preserved, because they matter for some parameters. Arguments of this machine are omitted if the image or the
/// allocation already contains them.
///
/// # Errors
/// Returns an error if an argument of the allocation contains a control character.
pub(crate) fn build_command_line(
    root: &NewRoot,
    wants: &BootRequirements,
    kernel: &BootKernel,
    is_dracut: bool,
    say: &dyn Fn(&str),
) -> Result<KernelCommandLine> {
    if let Some(bad) = wants.arguments.iter().find(|argument| argument.contains(char::is_control)) {
        return Err(Error::new(Phase::Target, format!("the kernel argument {bad:?} contains a control character")));
    }
    let mut own = select_image_arguments(read_image_arguments(root, kernel, &wants.preserved_esps), wants, say);
    let given = |own: &[String], word: &str| own.iter().chain(&wants.arguments).any(|other| other == word);
    let arrays_and_groups = if is_dracut { dracut_arguments(wants) } else { Vec::new() };
    for word in arrays_and_groups.into_iter().chain(fips_argument(&own, wants, is_dracut)) {
        if !given(&own, &word) {
            own.push(word);
        }
    }
    let consoles = wants.consoles.iter().map(|console| format!("console={console}"));
    own.extend(consoles.filter(|word| !wants.arguments.iter().any(|other| is_same_console(word, other))));
    own.extend(wants.arguments.iter().cloned());
    let mut words = vec![format!("root=UUID={}", wants.root.uuid), "ro".to_owned()];
    if find_program(root, &WANTS_TYPE).is_some() {
        words.push(format!("rootfstype={}", wants.root.format.name()));
    }
    Ok(KernelCommandLine { root: words, own })
}

/// Selects arguments of the image, and logs the arguments that are omitted, with the reason.
fn select_image_arguments(mut words: Vec<String>, wants: &BootRequirements, say: &dyn Fn(&str)) -> Vec<String> {
    // If the command line already ends with the arguments of the allocation, as in a migrated system, these are removed
    // here: they are appended again later.
    if words.ends_with(&wants.arguments) {
        words.truncate(words.len() - wants.arguments.len());
    }
    let mut removed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut preserved = Vec::new();
    for word in &words {
        match find_removal_reason(word) {
            Some(reason) => removed.entry(reason).or_default().push(word),
            None if !wants.consoles.is_empty() && parameter_name(word) == "console" => {}
            None => preserved.push(word.clone()),
        }
    }
    // Without an `ip=`, dracut would wait for DHCP on all NICs at each boot.
    let is_needless = |word: &str| parameter_name(word) == "rd.neednet";
    if let Some(omitted) = removed.get_mut(CONFIGURES_NIC)
        && !preserved.iter().any(|word| parameter_name(word) == "ip")
    {
        omitted.extend(words.iter().map(String::as_str).filter(|word| is_needless(word)));
        preserved.retain(|word| !is_needless(word));
    }
    for (reason, words) in removed.into_iter().filter(|(reason, _)| reason.contains("another machine")) {
        say(&format!(
            "kernel arguments of the image were omitted, because {reason}: {arguments}",
            arguments = words.join(" ")
        ));
    }
    preserved
}

/// Returns arguments for dracut, which starts only the arrays and groups that the command line lists.
fn dracut_arguments(wants: &BootRequirements) -> Vec<String> {
    let arrays = wants.arrays.iter().filter(|array| array.is_beneath_system);
    let arrays = arrays.map(|array| format!("rd.md.uuid={}", array_config::uuid_text(array.uuid)));
    arrays.chain(wants.groups.iter().map(|group| format!("rd.lvm.vg={}", group.name))).collect()
}

/// Returns the argument that specifies a separate `/boot` filesystem. With `fips=1`, the initramfs verifies the kernel
/// on this filesystem. The name of the parameter differs between Ubuntu's initramfs-tools and dracut.
fn fips_argument(own: &[String], wants: &BootRequirements, is_dracut: bool) -> Option<String> {
    let words = || own.iter().chain(&wants.arguments);
    let fips = words().rfind(|word| parameter_name(word) == "fips").and_then(|word| parameter_value(word));
    let name = if wants.system == "ubuntu" && !is_dracut { "bootdev" } else { "boot" };
    let is_given = words().any(|word| parameter_name(word) == name);
    let boot = wants.boot.as_ref().filter(|_| fips.as_deref() == Some("1") && !is_given)?;
    Some(format!("{name}=UUID={}", boot.uuid))
}

/// Returns whether both arguments specify the same console. Linux would ignore the options in the second of two such
/// arguments.
fn is_same_console(one: &str, other: &str) -> bool {
    let device = |word: &str| {
        let value = parameter_value(word).filter(|_| parameter_name(word) == "console")?;
        value.split(',').next().map(str::to_owned)
    };
    device(one).is_some() && device(one) == device(other)
}

/// Configures grub-mkconfig in the target to use the arguments of this command line for later kernels.
pub(crate) fn persist_for_grub(root: &NewRoot, own: &str) -> Result<()> {
    let text = format_grub_line(own).replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$").replace('`', "\\`");
    let lines = format!("GRUB_CMDLINE_LINUX=\"{text}\"\nGRUB_CMDLINE_LINUX_DEFAULT=\"\"\n");
    let reads_directory = find_program(root, &["grub-mkconfig", "grub2-mkconfig"])
        .and_then(|script| root.read_text(&script).ok())
        .is_some_and(|script| script.contains("/default/grub.d"));
    if reads_directory {
        // The name of this file is chosen so that the file is read after all such files of the image.
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

/// Configures kernel-install(8) to use this command line for later kernels.
pub(crate) fn persist_for_kernel_install(root: &NewRoot, whole: &str) -> Result<()> {
    root.write_file(KERNEL_INSTALL[0], 0o644, format!("{whole}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::boot_setup::tests::wants;
    use super::super::file_search::tests::tree;
    use super::super::image_arguments::read_grub_arguments;
    use super::super::machine_boot_requirements::FilesystemByUuid;
    use super::super::preserved_esps::PreservedEsps;
    use super::*;
    use model::layout::FilesystemFormat;

    fn kernel(words: &str) -> BootKernel {
        let words = words.split_whitespace().map(str::to_owned).collect();
        let (version, image) = ("6.1".into(), "/boot/vmlinuz-6.1".into());
        BootKernel { version, image, initrd: "/boot/initrd.img-6.1".into(), words, entry: None }
    }

    #[test]
    fn image_arguments_are_kept_except_machine_specific_ones() {
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
            let line =
                build_command_line(&root, &wants(), &kernel("of=entry root=LABEL=x ro"), false, &|_| ()).unwrap();
            let expected = [own, "console=tty0", "console=ttyS0,115200n8", "last=1"].join(" ");
            assert_eq!(line.to_line_without_root(), expected.trim(), "{files:?}");
            assert_eq!(line.to_full_line(), format!("root=UUID=r-uuid ro {}", line.to_line_without_root()));
        }
    }

    #[test]
    fn command_line_describes_root_devices_to_dracut_and_alpine() {
        let (_dir, root) = tree(&[("sbin/mkinitfs", "")]);
        let mut wants = wants();
        (wants.consoles, wants.arguments) = (Vec::new(), Vec::new());
        wants.arrays = vec![array_config::tests::array("root", true), array_config::tests::array("efi", false)];
        wants.groups = ["vg", "system"]
            .map(|name| super::super::machine_boot_requirements::SystemGroup { name: name.into(), is_mirrored: false })
            .to_vec();
        let line = build_command_line(&root, &wants, &kernel(""), true, &|_| ()).unwrap();
        assert_eq!(
            line.to_line_without_root(),
            "rd.md.uuid=01234567:89abcdef:01234567:89abcdef rd.lvm.vg=vg rd.lvm.vg=system"
        );
        assert!(
            line.to_full_line().starts_with("root=UUID=r-uuid ro rootfstype=ext4 rd.md"),
            "{}",
            line.to_full_line()
        );
        // The image's console is preserved if no console is requested.
        assert_eq!(
            build_command_line(&root, &wants, &kernel("console=ttyS1"), false, &|_| ()).unwrap().to_line_without_root(),
            "console=ttyS1"
        );
        wants.arguments = vec!["a\nb".into()];
        assert!(
            build_command_line(&root, &wants, &kernel(""), false, &|_| ())
                .unwrap_err()
                .to_string()
                .contains("control character")
        );
    }

    /// Composes the line for these arguments of image and allocation, without the arguments for the root filesystem.
    fn compose(settings: &str, consoles: &[&str], arguments: &[&str], boot: bool) -> (String, Vec<String>) {
        let (_dir, root) = tree(&[("etc/default/grub", settings)]);
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let boot = boot.then(|| FilesystemByUuid { uuid: "b-uuid".into(), format: FilesystemFormat::Ext4 });
        let wants = BootRequirements { consoles: texts(consoles), arguments: texts(arguments), boot, ..wants() };
        let said = std::cell::RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let line = build_command_line(&root, &wants, &kernel(""), true, &say).unwrap();
        (line.to_line_without_root(), said.into_inner())
    }

    #[test]
    fn order_and_repetition_of_kernel_arguments_are_preserved() {
        let pair = "GRUB_CMDLINE_LINUX=\"hugepagesz=1G hugepages=4\"\n";
        let both = "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=4";
        for (settings, consoles, arguments, line) in [
            ("", &[][..], both, both),
            (pair, &[], "hugepagesz=2M hugepages=4", both),
            ("", &["tty0", "ttyS0"], "console=tty0", "console=ttyS0 console=tty0"),
            ("", &["tty0", "ttyS0,115200n8"], "console=ttyS0,9600", "console=tty0 console=ttyS0,9600"),
            (
                "GRUB_CMDLINE_LINUX=\"memmap=1M@1M isolcpus=1\"\n",
                &[],
                "memmap=2M@8M isolcpus=1",
                "memmap=1M@1M isolcpus=1 memmap=2M@8M isolcpus=1",
            ),
            // The command line of a migrated system already contains the arguments of the allocation.
            ("GRUB_CMDLINE_LINUX=\"quiet pci=a pci=a\"\n", &[], "pci=a pci=a", "quiet pci=a pci=a"),
        ] {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            assert_eq!(compose(settings, consoles, &arguments, false).0, line, "{settings} {arguments:?}");
        }
    }

    #[test]
    fn boot_filesystem_is_named_only_for_fips_with_a_separate_boot() {
        let image = "GRUB_CMDLINE_LINUX=\"fips=1 boot=UUID=dead-beef crashkernel=auto resume=/dev/mapper/rhel-swap rd.lvm.lv=rhel/root\"\n";
        for (settings, arguments, boot, line) in [
            (image, &[][..], true, "fips=1 crashkernel=auto boot=UUID=b-uuid"),
            (image, &[], false, "fips=1 crashkernel=auto"),
            ("GRUB_CMDLINE_LINUX=\"boot=UUID=dead-beef\"\n", &[], true, ""),
            ("GRUB_CMDLINE_LINUX=fips=0\n", &[], true, "fips=0"),
            ("", &["fips=1"], true, "boot=UUID=b-uuid fips=1"),
            (image, &["fips=0"], true, "fips=1 crashkernel=auto fips=0"),
            (image, &["boot=LABEL=b"], true, "fips=1 crashkernel=auto boot=LABEL=b"),
        ] {
            let (composed, said) = compose(settings, &[], arguments, boot);
            assert_eq!(composed, line, "{settings} {arguments:?}");
            assert_eq!(
                said.len(),
                if settings == image { 3 } else { usize::from(settings.contains("dead-beef")) },
                "{said:?}"
            );
        }
    }

    #[test]
    fn ubuntu_uses_bootdev_for_fips_without_dracut() {
        let boot = Some(FilesystemByUuid { uuid: "b-uuid".into(), format: FilesystemFormat::Ext4 });
        let image = "fips=1 bootdev=UUID=dead-beef";
        for (system, is_dracut, boot, arguments, argument) in [
            ("ubuntu", false, boot.clone(), &[][..], Some("bootdev=UUID=b-uuid")),
            ("ubuntu", true, boot.clone(), &[], Some("boot=UUID=b-uuid")),
            ("rhel", true, boot.clone(), &[], Some("boot=UUID=b-uuid")),
            ("ubuntu", false, None, &[], None),
            ("ubuntu", false, boot, &["bootdev=LABEL=b"], None),
        ] {
            let arguments = arguments.iter().map(|word: &&str| (*word).to_owned()).collect();
            let wants = BootRequirements { system: system.into(), consoles: vec![], boot, arguments, ..wants() };
            let (_dir, root) = tree(&[]);
            let line = build_command_line(&root, &wants, &kernel(image), is_dracut, &|_| ()).unwrap();
            let expected: Vec<&str> = ["fips=1"].into_iter().chain(argument).collect();
            let given = wants.arguments.iter().map(String::as_str);
            let expected: Vec<&str> = expected.into_iter().chain(given).collect();
            assert_eq!(line.to_line_without_root(), expected.join(" "), "{system} {is_dracut}");
        }
    }

    #[test]
    fn dracut_does_not_wait_for_an_unconfigured_network() {
        for (settings, line) in [
            ("rd.neednet=1 ip=10.0.0.5::10.0.0.1:24:h:eth0:none quiet", "quiet"),
            ("rd.neednet=1 ip=eth0:dhcp ip=dhcp", "rd.neednet=1 ip=dhcp"),
            ("rd.neednet=1 ip=dhcp", "rd.neednet=1 ip=dhcp"),
            ("rd.neednet=1 quiet", "rd.neednet=1 quiet"),
            ("rd.neednet=1 root=UUID=1", "rd.neednet=1"),
        ] {
            assert_eq!(compose(&format!("GRUB_CMDLINE_LINUX=\"{settings}\"\n"), &[], &[], false).0, line);
        }
    }

    #[test]
    fn later_kernels_get_the_same_arguments() {
        let debian = ("usr/sbin/grub-mkconfig", "for x in ${sysconfdir}/default/grub.d/*.cfg ; do");
        let (_dir, root) = tree(&[debian]);
        let line = "a=$b c dyndbg=\"file x +p\"";
        persist_for_grub(&root, line).unwrap();
        let text = root.read_text("/etc/default/grub.d/zz-drophammer.cfg").unwrap();
        assert!(text.contains("GRUB_CMDLINE_LINUX=\"a=\\\\\\$b c dyndbg=\\\"file x +p\\\"\"\n"), "{text}");
        assert_eq!(read_grub_arguments(&root, &text, &PreservedEsps::default()).join(" "), line);
        let (_dir, root) = tree(&[("usr/sbin/grub2-mkconfig", ""), ("etc/default/grub", "GRUB_CMDLINE_LINUX=old")]);
        persist_for_grub(&root, "a b").unwrap();
        let text = root.read_text("/etc/default/grub").unwrap();
        assert_eq!(read_grub_arguments(&root, &text, &PreservedEsps::default()), ["a", "b"]);
    }
}
