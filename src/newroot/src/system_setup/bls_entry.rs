//! Boot Loader Specification entries: files in `loader/entries`.

use super::grub_config_reader::{strip_grub_device, to_kernel_words};
use super::shell_reader::{ShellReader, ShellSyntax, ShellVariables, ShellWord, UNKNOWN};
use std::collections::BTreeSet;

/// Variables that need not be set in the image: the variables of tuned, and the variable `root`, which contains the
/// device on which GRUB looks up paths and is set by GRUB itself.
const OPTIONAL_VARIABLES: [&str; 3] = ["tuned_params", "tuned_initrd", "root"];

/// Boot entry. Its paths are relative to the filesystem that the boot loader reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BlsEntry {
    pub kernel: String,
    /// Last initrd of the entry. The initrds before it contain microcode.
    pub initrd: String,
    pub words: Vec<String>,
    /// Names of variables that are not set in the image, and may be required to boot.
    pub unset: Vec<String>,
    /// Whether the path of the kernel or of the initrd depends on a variable that is not set.
    pub has_unknown_path: bool,
    /// Whether a line continues after an unquoted `;`. GRUB ends the line at this `;`, but systemd-boot does not.
    pub has_separator: bool,
}

impl BlsEntry {
    /// Sets kernel and options to the arguments of GRUB's `linux` command.
    pub(crate) fn set_linux(&mut self, arguments: &[ShellWord]) {
        self.set_kernel(arguments.first());
        self.words = to_kernel_words(arguments.get(1..).unwrap_or_default());
    }

    fn set_kernel(&mut self, path: Option<&ShellWord>) {
        let path = path.map(|word| strip_grub_device(&word.text)).unwrap_or_default();
        self.has_unknown_path |= path.contains(UNKNOWN);
        self.kernel = path.to_owned();
    }

    /// Sets the initrd from the arguments of an `initrd` command: to the last argument that does not come from a
    /// variable or, if all arguments come from variables, to the last of them. Files that are named by variables
    /// normally only supplement the initramfs.
    pub(crate) fn set_initrd(&mut self, arguments: &[ShellWord]) {
        let paths = arguments.iter().map(|word| (strip_grub_device(&word.text), word.is_expanded));
        let known: Vec<(&str, bool)> = paths.filter(|(path, _)| !path.contains(UNKNOWN)).collect();
        let last = known.iter().rfind(|(_, is_expanded)| !is_expanded).or_else(|| known.last());
        self.has_unknown_path |= last.is_none() && !arguments.is_empty();
        self.initrd = last.map(|(path, _)| (*path).to_owned()).unwrap_or_default();
    }

    pub(crate) fn add_unset(&mut self, names: BTreeSet<String>) {
        self.unset.extend(names.into_iter().filter(|name| !OPTIONAL_VARIABLES.contains(&name.as_str())));
    }
}

/// Parses a boot entry and replaces its variables, as GRUB does. Returns `None` if the entry does not specify a kernel.
pub(crate) fn parse_entry(text: &str, variables: &ShellVariables) -> Option<BlsEntry> {
    let mut entry = BlsEntry::default();
    for line in text.lines() {
        let mut reader = ShellReader::new(line, ShellSyntax::Grub);
        let words = reader.read_command(variables).unwrap_or_default();
        let Some((key, arguments)) = words.split_first() else { continue };
        match key.text.as_str() {
            "linux" => entry.set_kernel(arguments.first()),
            "initrd" => entry.set_initrd(arguments),
            "options" => entry.words.extend(to_kernel_words(arguments)),
            _ => continue,
        }
        entry.has_separator |= reader.read_command(variables).is_some_and(|rest| !rest.is_empty());
        entry.add_unset(reader.unset);
    }
    (!entry.kernel.is_empty()).then_some(entry)
}

/// Formats a boot entry.
pub(crate) fn format_entry(title: &str, version: &str, kernel: &str, initrd: &str, options: &str) -> String {
    format!("title {title}\nversion {version}\nlinux {kernel}\ninitrd {initrd}\noptions {options}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EL8: &str = "title Red Hat Enterprise Linux (4.18.0-80.el8.x86_64) 8.0 (Ootpa)\n\
        version 4.18.0-80.el8.x86_64\nlinux /vmlinuz-4.18.0-80.el8.x86_64\n\
        initrd /initramfs-4.18.0-80.el8.x86_64.img $tuned_initrd\noptions $kernelopts $tuned_params\n\
        id rhel-1\ngrub_users $grub_users\ngrub_arg --unrestricted\ngrub_class kernel\n";

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn bls_entry_is_parsed() {
        let text = "title x's\nlinux /vmlinuz-6\ninitrd /ucode\ninitrd /initrd-6\noptions root=UUID=1 $tuned_params a=\"b c\"\noptions ro\n";
        let options = ["root=UUID=1", "a=\"b c\"", "ro"].map(str::to_owned).to_vec();
        let expected =
            BlsEntry { kernel: "/vmlinuz-6".into(), initrd: "/initrd-6".into(), words: options, ..BlsEntry::default() };
        assert_eq!(parse_entry(text, &ShellVariables::new()), Some(expected));
        assert_eq!(parse_entry("title x\noptions ro\n", &ShellVariables::new()), None);
        let written = format_entry("x", "6", "/vmlinuz-6", "/initrd-6", "root=UUID=1 ro");
        let written = parse_entry(&written, &ShellVariables::new()).unwrap();
        assert_eq!((written.kernel.as_str(), written.words.len()), ("/vmlinuz-6", 2));
    }

    #[test]
    fn variables_of_an_entry_are_substituted() {
        let set = |pairs: &[(&str, &str)]| -> ShellVariables {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let options = ("kernelopts", "root=UUID=1232991f ro crashkernel=auto ");
        for (variables, line, unset) in [
            (set(&[options]), "root=UUID=1232991f ro crashkernel=auto", &[][..]),
            (
                set(&[options, ("tuned_params", "isolcpus=1"), ("tuned_initrd", "/tuned.img")]),
                "root=UUID=1232991f ro crashkernel=auto isolcpus=1",
                &[],
            ),
            (set(&[]), "", &["kernelopts"]),
        ] {
            let entry = parse_entry(EL8, &variables).unwrap();
            assert_eq!(entry.initrd, "/initramfs-4.18.0-80.el8.x86_64.img");
            assert_eq!(entry.words, if line.is_empty() { Vec::new() } else { words(line) });
            assert_eq!(entry.unset, unset);
        }
        // An initrd that is only named by a variable is used.
        let entry = parse_entry("linux /k\ninitrd $i\n", &set(&[("i", "/initrd")])).unwrap();
        assert_eq!(entry.initrd, "/initrd");
    }
}
