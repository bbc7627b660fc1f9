//! Disables the entries of the image's crypttab(5). The entries belong to the machine on which the image was built, and
//! the installed system would wait at boot for devices that do not exist.

use crate::NewRoot;
use crate::system_setup::LogSink;
use common::error::{Context, Phase, Result};
use std::io::ErrorKind;

const CRYPTTAB: &str = "/etc/crypttab";

/// Turns all entries of the image's crypttab into comments.
///
/// # Errors
/// Returns an error if the file cannot be read or written.
pub(crate) fn disable_entries(root: &NewRoot, say: LogSink) -> Result<()> {
    let text = match root.read_text(CRYPTTAB) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.context(Phase::Target, || format!("read the image's {CRYPTTAB}"))?,
    };
    let is_entry = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let names: Vec<&str> =
        text.lines().filter(is_entry).map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let commented = |line: &str| if is_entry(&line) { format!("# drophammer: {line}\n") } else { format!("{line}\n") };
    let lines: String = text.lines().map(commented).collect();
    root.rewrite_file(CRYPTTAB, 0o600, lines.as_bytes())?;
    let names = names.join(", ");
    say(&format!(
        "the image's {CRYPTTAB} lists {names}, which the layout does not create: all entries of the file were commented out"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{capture_log, tree};
    use super::*;

    #[test]
    fn crypttab_entries_of_another_machine_are_disabled() {
        let own = "# <target> <source>\n\nroot UUID=1 none luks\n  swap /dev/sda3 /dev/urandom swap\n";
        let (_dir, root) = tree(&[("etc/crypttab", own)]);
        let (forgotten, lines) = capture_log(|say| disable_entries(&root, say));
        forgotten.unwrap();
        assert_eq!(
            lines,
            [
                "the image's /etc/crypttab lists root, swap, which the layout does not create: all entries of the file were commented out"
            ]
        );
        let expected = "# <target> <source>\n\n# drophammer: root UUID=1 none luks\n# drophammer:   swap /dev/sda3 /dev/urandom swap\n";
        assert_eq!(root.read_text(CRYPTTAB).unwrap(), expected);
        // A file whose entries are already comments, and a missing file, are neither written nor logged.
        for files in [&[("etc/crypttab", expected)][..], &[]] {
            let (_dir, root) = tree(files);
            let (forgotten, lines) = capture_log(|say| disable_entries(&root, say));
            forgotten.unwrap();
            assert_eq!((lines, root.path_exists(CRYPTTAB)), (Vec::<String>::new(), !files.is_empty()));
        }
    }
}
