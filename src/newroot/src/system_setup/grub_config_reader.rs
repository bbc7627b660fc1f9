//! GRUB variables of an image, read from GRUB's environment block and from the assignments in GRUB's configuration.

use super::file_search::find_matching;
use super::preserved_esps::PreservedEsps;
use super::shell_reader::{ShellReader, ShellSyntax, ShellVariables, ShellWord, UNKNOWN};
use crate::NewRoot;
use common::error::Result;
use model::kernel_command_line::{quote_word, split_words};

const ENVIRONMENTS: [&str; 4] =
    ["/boot/grub2/grubenv", "/boot/grub/grubenv", "/boot/efi/EFI/*/grubenv", "/efi/EFI/*/grubenv"];

/// Configuration files. The main configuration is last, because its assignments take precedence.
const CONFIGS: [&str; 4] =
    ["/boot/efi/EFI/*/grub.cfg", "/efi/EFI/*/grub.cfg", "/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"];

/// Prefixes that are tried for the paths in a boot loader's configuration. These paths are relative to a filesystem
/// with an unknown mount point.
pub(crate) const MOUNT_POINTS: [&str; 4] = ["", "/boot", "/efi", "/boot/efi"];

/// Maximum nesting depth of files that are read with `source`.
const MAX_DEPTH: u32 = 4;

/// Returns the files that match these patterns, except those of other systems on preserved EFI system partitions.
fn list_files(root: &NewRoot, patterns: &[&str], preserved: &PreservedEsps) -> Vec<String> {
    let mut paths: Vec<String> = patterns.iter().flat_map(|pattern| find_matching(root, pattern)).collect();
    paths.retain(|path| !preserved.contains(path));
    paths
}

/// Reads the variables. Variables of the environment block take precedence over variables of the configuration.
pub(crate) fn read_grub_variables(root: &NewRoot, preserved: &PreservedEsps) -> ShellVariables {
    let mut variables = ShellVariables::new();
    for path in list_files(root, &ENVIRONMENTS, preserved) {
        for (name, value) in parse_environment(&root.read_text(&path).unwrap_or_default()) {
            variables.entry(name).or_insert(value);
        }
    }
    let stored = variables.clone();
    let mut reader = ConfigReader { root, stored, variables };
    for path in list_files(root, &CONFIGS, preserved) {
        reader.apply_config(&root.read_text(&path).unwrap_or_default(), 0);
    }
    reader.variables
}

/// Parses an environment block. A backslash escapes a newline or backslash in a value.
fn parse_environment(text: &str) -> Vec<(String, String)> {
    let text = text.replace("\\\n", "\n\\n").replace("\\\\", "\\");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Removes a variable from the environment blocks of the image.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn remove_from_environment(root: &NewRoot, name: &str, preserved: &PreservedEsps) -> Result<()> {
    for path in list_files(root, &ENVIRONMENTS, preserved) {
        let text = root.read_text(&path).ok();
        if let Some(text) = text.and_then(|text| remove_variable(&text, name)) {
            root.write_file(&path, 0o644, text.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns an environment block without this variable; `None` if the variable is not set. The size of the block is
/// preserved, as GRUB requires.
fn remove_variable(block: &str, name: &str) -> Option<String> {
    let is_removed = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
    let removed: usize = block.split_inclusive('\n').filter(is_removed).map(str::len).sum();
    let preserved: String = block.split_inclusive('\n').filter(|line| !is_removed(line)).collect();
    (removed > 0).then(|| preserved + &"#".repeat(removed))
}

struct ConfigReader<'a> {
    root: &'a NewRoot,
    /// Variables of the environment block.
    stored: ShellVariables,
    variables: ShellVariables,
}

/// Branch of an `if` command.
struct Branch {
    /// Whether GRUB runs the commands of this branch; `None` if that is unknown.
    is_taken: Option<bool>,
    /// Whether GRUB runs the commands of an earlier branch of the same `if`.
    was_taken: Option<bool>,
}

impl ConfigReader<'_> {
    fn apply_config(&mut self, text: &str, depth: u32) {
        let mut branches: Vec<Branch> = Vec::new();
        let mut reader = ShellReader::new(text, ShellSyntax::Grub);
        while let Some(words) = reader.read_command(&self.variables) {
            let mut words = words.as_slice();
            while let [first, rest @ ..] = words
                && self.enter_branch(&first.text, rest, &mut branches)
            {
                words = if matches!(first.text.as_str(), "then" | "else") { rest } else { &[] };
            }
            let Some((command, arguments)) = words.split_first() else { continue };
            let path = arguments.first().map(|word| word.text.as_str()).unwrap_or_default();
            match command.text.as_str() {
                _ if branches.iter().any(|branch| branch.is_taken == Some(false)) => {}
                "set" => self.assign(path, branches.iter().all(|branch| branch.is_taken == Some(true))),
                "source" | "." if depth < MAX_DEPTH => {
                    if let Some(text) = self.read_loader_file(path) {
                        self.apply_config(&text, depth + 1);
                    }
                }
                _ => {}
            }
        }
    }

    /// Processes a command that controls branches: `if`, `elif`, `else` or `fi`. Returns `false` for any other command.
    fn enter_branch(&self, word: &str, condition: &[ShellWord], branches: &mut Vec<Branch>) -> bool {
        match (word, branches.last_mut()) {
            ("if", _) => {
                let is_taken = self.evaluate_condition(condition);
                branches.push(Branch { is_taken, was_taken: is_taken });
            }
            ("elif", Some(branch)) => {
                (branch.is_taken, branch.was_taken) = match (branch.was_taken, self.evaluate_condition(condition)) {
                    (Some(true), _) => (Some(false), Some(true)),
                    (Some(false), holds) => (holds, holds),
                    (None, _) => (None, None),
                };
            }
            ("else", Some(branch)) => branch.is_taken = branch.was_taken.map(|was| !was),
            ("fi", Some(_)) => drop(branches.pop()),
            ("then", _) => {}
            _ => return false,
        }
        true
    }

    /// Applies `set NAME=VALUE`. If it is uncertain whether GRUB runs the command, the assignment is applied only if
    /// the variable is not set yet.
    fn assign(&mut self, assignment: &str, is_certain: bool) {
        let Some((name, value)) = assignment.split_once('=') else { return };
        if self.stored.contains_key(name) || (!is_certain && self.variables.contains_key(name)) {
            return;
        }
        self.variables.insert(name.to_owned(), value.replace(UNKNOWN, ""));
    }

    /// Evaluates a condition of `[`; returns `None` if the result is unknown.
    fn evaluate_condition(&self, words: &[ShellWord]) -> Option<bool> {
        let words: Vec<String> = words.iter().map(|word| word.text.replace(UNKNOWN, "")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let inner = match words.as_slice() {
            ["[", inner @ .., "]"] | ["test", inner @ ..] => inner,
            _ => return None,
        };
        match inner {
            ["!", rest @ ..] => self.evaluate_test(rest).map(|holds| !holds),
            _ => self.evaluate_test(inner),
        }
    }

    fn evaluate_test(&self, words: &[&str]) -> Option<bool> {
        match words {
            [] => Some(false),
            [text] => Some(!text.is_empty()),
            ["-z", text] => Some(text.is_empty()),
            ["-n", text] => Some(!text.is_empty()),
            ["-f" | "-e", path] => Some(self.read_loader_file(path).is_some()),
            ["-s", path] => Some(self.read_loader_file(path).is_some_and(|text| !text.is_empty())),
            [one, "=" | "==", other] => Some(one == other),
            [one, "!=", other] => Some(one != other),
            _ => None,
        }
    }

    fn read_loader_file(&self, path: &str) -> Option<String> {
        let path = strip_grub_device(path);
        let is_usable = path.starts_with('/') && !path.contains(UNKNOWN);
        let paths = MOUNT_POINTS.iter().filter(|_| is_usable).map(|mount_point| format!("{mount_point}{path}"));
        paths.into_iter().find_map(|path| self.root.read_text(&path).ok())
    }
}

/// Removes GRUB's device prefix from a path such as `($root)/boot/vmlinuz`.
pub(crate) fn strip_grub_device(path: &str) -> &str {
    if path.starts_with('(') { path.split_once(')').map_or(path, |(_, path)| path) } else { path }
}

/// Returns the words that Linux receives for these arguments of GRUB's `linux` command. Words with unknown text are
/// dropped.
pub(crate) fn to_kernel_words(words: &[ShellWord]) -> Vec<String> {
    let known = words.iter().filter(|word| !word.text.contains(UNKNOWN) && !word.text.is_empty());
    let line: Vec<String> = known.map(|word| quote_word(&word.text)).collect();
    split_words(&line.join(" ")).map(str::to_owned).collect()
}

/// Formats a kernel command line as text of a GRUB script. Characters that GRUB would interpret are escaped.
pub(crate) fn format_grub_line(line: &str) -> String {
    let (mut text, mut is_quoted) = (String::new(), false);
    for c in line.chars() {
        is_quoted ^= c == '"';
        if "$\\".contains(c) || (!is_quoted && "';|&<>{}`#".contains(c)) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::file_search::tests::tree;
    use super::*;

    fn value(files: &[(&str, &str)], name: &str) -> Option<String> {
        read_grub_variables(&tree(files).1, &PreservedEsps::default()).remove(name)
    }

    const COREOS: &str = "set ignition_firstboot=\"\"\nif [ -f \"/ignition.firstboot\" ]; then\n\
        set ignition_network_kcmdline=''\n  source \"/ignition.firstboot\"\n\
        set ignition_firstboot=\"ignition.firstboot ${ignition_network_kcmdline}\"\nfi\n";

    #[test]
    fn environment_block_takes_precedence_over_the_configuration() {
        let block = ("boot/grub2/grubenv", "# GRUB Environment Block\nsaved_entry=1\nkernelopts=root=UUID=1 ro \n####");
        let guarded =
            ("boot/grub2/grub.cfg", "if [ -z \"${kernelopts}\" ]; then\n  set kernelopts=\"root=UUID=2\"\nfi\n");
        let plain = ("boot/grub2/grub.cfg", "set kernelopts=root=UUID=2\n");
        let other = (
            "boot/grub2/grub.cfg",
            "if [ x = y ]; then set kernelopts=a; elif [ b ]; then set kernelopts=b\nelse set kernelopts=c; fi",
        );
        let on_esp = ("boot/efi/EFI/redhat/grubenv", block.1);
        for (files, expected) in [
            (&[block, guarded][..], Some("root=UUID=1 ro ")),
            (&[block, plain], Some("root=UUID=1 ro ")),
            (&[guarded], Some("root=UUID=2")),
            (&[plain], Some("root=UUID=2")),
            (&[other], Some("b")),
            (&[on_esp], Some("root=UUID=1 ro ")),
            (&[], None),
        ] {
            assert_eq!(value(files, "kernelopts").as_deref(), expected, "{files:?}");
        }
    }

    #[test]
    fn environment_of_another_system_on_a_preserved_esp_is_neither_read_nor_changed() {
        let (ours, other) = ("kernelopts=a\n", "kernelopts=root=UUID=2\nother=b\n");
        let on_esp = "boot/efi/EFI/redhat/grubenv";
        let (_dir, root) = tree(&[("boot/grub2/grubenv", ours), (on_esp, other)]);
        let preserved = super::super::preserved_esps::tests::at_boot_efi();
        let variables = read_grub_variables(&root, &preserved);
        assert_eq!((variables.get("kernelopts").map(String::as_str), variables.get("other")), (Some("a"), None));
        remove_from_environment(&root, "kernelopts", &preserved).unwrap();
        assert_eq!(root.read_text(&format!("/{on_esp}")).unwrap(), other);
        assert!(!root.read_text("/boot/grub2/grubenv").unwrap().contains("kernelopts"));
        remove_from_environment(&root, "kernelopts", &PreservedEsps::default()).unwrap();
        assert_ne!(root.read_text(&format!("/{on_esp}")).unwrap(), other);
    }

    #[test]
    fn variable_is_removed_without_changing_the_block_size() {
        let block = |variables: &str| format!("{:#<1024}", format!("# GRUB Environment Block\n{variables}"));
        for (variables, expected) in [
            ("saved_entry=1\nkernelopts=root=UUID=1 ro \nboot_success=0\n", Some("saved_entry=1\nboot_success=0\n")),
            ("kernelopts=a\n", Some("")),
            ("saved_entry=1\nkernelopts_old=a\n", None),
            ("", None),
        ] {
            assert_eq!(remove_variable(&block(variables), "kernelopts"), expected.map(block), "{variables}");
        }
    }

    #[test]
    fn ignition_first_boot_depends_on_its_file() {
        let config = ("boot/grub2/grub.cfg", COREOS);
        let network = ("boot/ignition.firstboot", "set ignition_network_kcmdline='rd.neednet=1 ip=dhcp'\n");
        let name = "ignition_firstboot";
        assert_eq!(value(&[config], name).as_deref(), Some(""));
        assert_eq!(value(&[config, network], name).as_deref(), Some("ignition.firstboot rd.neednet=1 ip=dhcp"));
        assert_eq!(value(&[config, ("boot/ignition.firstboot", "")], name).as_deref(), Some("ignition.firstboot "));
        // A file that reads itself does not cause an endless loop.
        assert_eq!(
            value(&[("boot/grub2/grub.cfg", "source /boot/grub2/grub.cfg\nset a=b\n")], "a").as_deref(),
            Some("b")
        );
    }

    #[test]
    fn command_line_survives_grub_quoting() {
        for (line, text) in [
            ("a=b quiet", "a=b quiet"),
            ("dyndbg=\"file x +p; $y\"", "dyndbg=\"file x +p; \\$y\""),
            ("memmap=2M$1M a;b", "memmap=2M\\$1M a\\;b"),
        ] {
            assert_eq!(format_grub_line(line), text);
            let words = ShellReader::new(text, ShellSyntax::Grub).read_command(&ShellVariables::new()).unwrap();
            let read: Vec<String> =
                to_kernel_words(&words).iter().map(|word| model::kernel_command_line::unquote_word(word)).collect();
            let expected: Vec<String> = split_words(line).map(model::kernel_command_line::unquote_word).collect();
            assert_eq!(read, expected);
        }
    }
}
