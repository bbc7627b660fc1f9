//! Parser for the lists of mounts and swap areas in procfs. All modules that read these lists use this parser.

/// Line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    pub id: u64,
    pub parent: u64,
    /// Device number such as `8:1`. For btrfs, this is an anonymous number with major 0.
    pub number: String,
    /// Directory of the filesystem that is visible at the mount point. Usually this is the root directory `/` of the
    /// filesystem.
    pub root: String,
    pub path: String,
    pub options: Vec<String>,
    pub format: String,
    pub source: String,
}

/// Parses the mounts in `/proc/self/mountinfo`, oldest first. Malformed lines are skipped.
pub fn parse_mounts(text: &str) -> Vec<MountEntry> {
    text.lines().filter_map(parse_mount).collect()
}

/// Parses a line: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_mount(line: &str) -> Option<MountEntry> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let number = fields.next()?.to_owned();
    let (root, path) = (unescape_octal(fields.next()?), unescape_octal(fields.next()?));
    let options = fields.next().unwrap_or_default().split(',').map(str::to_owned).collect();
    let mut fields = filesystem.split(' ');
    let (format, source) = (fields.next()?.to_owned(), unescape_octal(fields.next()?));
    Some(MountEntry { id, parent, number, root, path, options, format, source })
}

/// Parses the paths in `/proc/swaps`.
pub fn parse_swaps(text: &str) -> Vec<String> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescape_octal).collect()
}

/// Decodes the octal escapes with which the kernel prints space, tab, newline and backslash, such as `\040`
/// (mangle_path in fs/seq_file.c).
fn unescape_octal(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| byte == b'\\') {
            Some(code) => {
                plain.push(code);
                at += 4;
            }
            None => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_is_parsed_with_any_optional_fields() {
        let expected = MountEntry {
            id: 36,
            parent: 35,
            number: "98:0".into(),
            root: "/".into(),
            path: "/mnt/a b".into(),
            options: vec!["rw".into(), "noatime".into()],
            format: "ext3".into(),
            source: "/dev/root".into(),
        };
        for optional in ["", "master:1 ", "shared:2 master:3 "] {
            let line = format!("36 35 98:0 / /mnt/a\\040b rw,noatime {optional}- ext3 /dev/root rw");
            assert_eq!(parse_mounts(&format!("broken line\n{line}\n\n")), std::slice::from_ref(&expected));
        }
    }

    #[test]
    fn swap_areas_follow_the_heading() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda3 partition 1 0 -2\n/swap\\040file file 1 0 -3\n";
        assert_eq!(parse_swaps(text), ["/dev/sda3", "/swap file"]);
        assert!(parse_swaps("").is_empty());
    }

    #[test]
    fn octal_escapes_are_decoded() {
        let cases = [
            ("/mnt", "/mnt"),
            ("a\\040b\\134c\\011", "a b\\c\t"),
            ("\\04", "\\04"),
            ("\\999x", "\\999x"),
            ("", ""),
            ("/m\u{fc}\\040x", "/m\u{fc} x"),
        ];
        for (text, plain) in cases {
            assert_eq!(unescape_octal(text), plain);
        }
    }
}
