//! Parser of the facts that the tiny OS and the inspection ramdisk print on the second serial port, and matching of
//! patterns.

use std::collections::BTreeMap;

/// Lines of each section, by name of the section.
#[derive(Debug, Default)]
pub struct Facts(BTreeMap<String, Vec<String>>);

impl Facts {
    /// Returns the facts that `source` has printed; `None` if they are not complete yet.
    pub fn read(text: &str, source: &str) -> Option<Facts> {
        let (begin, end) = (format!("=== facts begin {source}"), format!("=== facts end {source}"));
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let first = lines.iter().position(|line| *line == begin)? + 1;
        let last = first + lines[first..].iter().position(|line| *line == end)?;
        let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut current = None;
        for line in &lines[first..last] {
            if let Some(name) = line.strip_prefix("--- ") {
                current = Some(sections.entry(name.replace("/dev/", "")).or_default());
            } else if let Some(section) = &mut current {
                section.push((*line).to_owned());
            }
        }
        Some(Facts(sections))
    }

    /// Returns the lines of a section. The name of a disk may begin with `/dev/`.
    pub fn section(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Returns the output of `blkid -o export` for one device.
    pub fn blkid(&self, device: &str) -> Option<BTreeMap<&str, &str>> {
        let lines = self.section("blkid")?;
        let head = format!("DEVNAME=/dev/{device}");
        let first = lines.iter().position(|line| *line == head)? + 1;
        let block = lines[first..].iter().take_while(|line| !line.starts_with("DEVNAME="));
        Some(block.filter_map(|line| line.split_once('=')).collect())
    }
}

/// Returns whether the text matches the pattern, in which `*` matches any text.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns whether the console contains the pattern, even if a line was wrapped between words.
pub fn shows_pattern(console: &str, pattern: &str) -> bool {
    let unbroken = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    matches_pattern(&format!("*{}*", unbroken(pattern)), &unbroken(console))
}

/// Returns whether the fields of the line match those of the pattern. Further fields of the line are ignored.
pub fn fields_match(pattern: &str, line: &str) -> bool {
    let mut fields = line.split_whitespace();
    pattern.split_whitespace().all(|wanted| fields.next().is_some_and(|field| matches_pattern(wanted, field)))
}

/// Tests of this file. `#[test]` functions would not run, because the harness has its own `main`.
pub fn self_test() {
    let text = "noise\r\n=== facts begin tiny\r\n--- boot\r\nkexec\r\n--- fsck /dev/sda1\r\n0\n\
                --- blkid\nDEVNAME=/dev/sda\nPTTYPE=gpt\n\nDEVNAME=/dev/sda1\nTYPE=vfat\nLABEL=efi\n=== facts end tiny\n";
    let facts = Facts::read(text, "tiny").expect("complete");
    assert_eq!(facts.section("boot").expect("a section"), ["kexec"]);
    assert_eq!(facts.section("fsck sda1").expect("a section"), ["0"]);
    assert_eq!(facts.blkid("sda1").expect("a device")["LABEL"], "efi");
    assert!(!facts.blkid("sda").expect("a device").contains_key("TYPE"));
    assert!(Facts::read(text, "inspect").is_none());
    assert!(Facts::read(&text[..60], "tiny").is_none());

    for (pattern, text) in [("*", ""), ("a*", "a"), ("a*c", "abc"), ("*b*", "abc"), ("a", "a"), ("a*b*c", "axbxc")] {
        assert!(matches_pattern(pattern, text), "{pattern} {text}");
    }
    for (pattern, text) in [("", "a"), ("a", "ab"), ("a*c", "abcd"), ("ab*bc", "abc"), ("a*b*c", "acb")] {
        assert!(!matches_pattern(pattern, text), "{pattern} {text}");
    }
    assert!(shows_pattern(
        "ok\r\n  md127 spans sdb2,\r\n      which a reinstall wipes\r\n",
        "md127 spans * which a reinstall wipes"
    ));
    assert!(!shows_pattern("md127 spans sdb2\n", "sdb2 spans"));
    let line = "UUID=1234 / ext4 defaults 0 1";
    assert!(fields_match("UUID=* / ext4", line) && fields_match("* / * * 0 1", line));
    assert!(!fields_match("UUID=* / ext4 * 0 2", line) && !fields_match("* / ext4 defaults 0 1 more", line));
}
