//! Boot Loader Specification entries: files in `loader/entries`.

/// Boot entry. Its paths are relative to the filesystem that the boot loader reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BlsEntry {
    pub kernel: String,
    /// Last initrd of the entry; earlier ones contain microcode.
    pub initrd: String,
    pub words: Vec<String>,
}

/// Parses an entry; `None` if it has no kernel.
pub(crate) fn parse_entry(text: &str) -> Option<BlsEntry> {
    let mut entry = BlsEntry::default();
    for line in text.lines().map(str::trim) {
        match line.split_once(char::is_whitespace) {
            Some(("linux", path)) => entry.kernel = path.trim().to_owned(),
            Some(("initrd", path)) => entry.initrd = path.trim().to_owned(),
            Some(("options", words)) => entry.words.extend(parse_options(words)),
            _ => {}
        }
    }
    (!entry.kernel.is_empty()).then_some(entry)
}

/// Splits a kernel command line into words. Words with variables are dropped, because only the boot loader can expand
/// variables.
pub(crate) fn parse_options(words: &str) -> impl Iterator<Item = String> {
    words.split_whitespace().filter(|word| !word.contains('$')).map(|word| word.trim_matches(['"', '\'']).to_owned())
}

/// Formats an entry.
pub(crate) fn format_entry(title: &str, version: &str, kernel: &str, initrd: &str, options: &str) -> String {
    format!("title {title}\nversion {version}\nlinux {kernel}\ninitrd {initrd}\noptions {options}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read() {
        let text =
            "title x\nlinux /vmlinuz-6\ninitrd /ucode\ninitrd /initrd-6\noptions root=UUID=1 $tuned\noptions ro\n";
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let expected =
            BlsEntry { kernel: "/vmlinuz-6".into(), initrd: "/initrd-6".into(), words: words("root=UUID=1 ro") };
        assert_eq!(parse_entry(text), Some(expected));
        assert_eq!(parse_entry("title x\noptions ro\n"), None);
        let written = parse_entry(&format_entry("x", "6", "/vmlinuz-6", "/initrd-6", "root=UUID=1 ro")).unwrap();
        assert_eq!((written.kernel.as_str(), written.words.len()), ("/vmlinuz-6", 2));
    }
}
