//! Replacement of metal-api's phrases by the product's own wording. The REST API uses metal-api's phrases unchanged,
//! because clients compare them. The command line and the web page use the product's own wording.

/// Beginning of metal-api's message about a refused reinstall. The actual reason follows.
const REFUSED_REINSTALL: &str = "machine either locked, not allocated yet or invalid image ID specified: ";
/// Phrases of metal-api, each with the wording that replaces it.
const PHRASES: [(&str, &str); 4] = [
    (REFUSED_REINSTALL, ""),
    (" is not reinstallable, abort reinstallation", " has no disk that a reinstall may erase"),
    (" does not exist on given hardware", " does not exist on this machine"),
    (" is not supported, but:", " is not supported; supported values: "),
];
/// Beginning of metal-api's message about two layouts that match the same images. The size and the images follow.
const COLLISION: &str = "these combinations already exist:";
/// Types of objects in front of a colon in metal-api's messages, and the product's own terms for them.
const NOUNS: [(&str, &str); 10] = [
    ("device", "device"),
    ("filesystem", "filesystem"),
    ("filesystemlayout", "layout"),
    ("raid", "array"),
    ("vg", "volume group"),
    ("lv", "logical volume"),
    ("GPTType", "partition type"),
    ("format", "format"),
    ("raidlevel", "RAID level"),
    ("lvmtype", "type of logical volume"),
];

/// Replaces metal-api's phrases, such as `given GPTType:x is not supported, but:8300`, by the product's own wording.
pub fn reword_metal_phrases(text: &str) -> String {
    let text = PHRASES.iter().fold(reword_collisions(text), |text, (phrase, own)| text.replace(phrase, own));
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let named = word.split_once(':').filter(|(_, value)| !value.is_empty());
        let is_given = words.last().is_some_and(|last| last == "given" || last.ends_with("\ngiven"));
        let named = named.and_then(|(kind, value)| {
            let lines = kind.rsplit('\n').next().unwrap_or(kind);
            let noun = NOUNS.iter().find(|(metal, _)| *metal == lines).map(|(_, noun)| *noun);
            let noun = noun.or(is_given.then_some(lines))?;
            Some(format!("{}{noun} {value}", &kind[..kind.len() - lines.len()]))
        });
        let before = words.pop_if(|_| is_given && named.is_some()).unwrap_or_default();
        words.push(match named {
            // The previous word may consist of the end of the previous line, a line break, and `given`. Only `given` is
            // removed.
            Some(named) if is_given => before.trim_end_matches("given").to_owned() + &named,
            Some(named) => named,
            None => word.to_owned(),
        });
    }
    words.join(" ")
}

/// Replaces `these combinations already exist:c1->[debian >= 10]: ` by `two layouts match debian >= 10 on c1: `.
fn reword_collisions(text: &str) -> String {
    let mut parts = text.split(COLLISION);
    let mut reworded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let split = part.split_once("->[").and_then(|(size, rest)| Some((size, rest.split_once("]: ")?)));
        match split {
            Some((size, (images, rest))) if !size.contains(char::is_whitespace) => {
                reworded += &format!("two layouts match {images} on {size}: {rest}");
            }
            _ => reworded.extend([COLLISION, part]),
        }
    }
    reworded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_of_metal_api_are_replaced() {
        for (text, expected) in [
            (
                "given GPTType:x is not supported, but:ef00,8300",
                "partition type x is not supported; supported values: ef00,8300",
            ),
            ("given raidlevel:7 is not supported, but:0,1", "RAID level 7 is not supported; supported values: 0,1"),
            ("given lvmtype:thin is not x", "type of logical volume thin is not x"),
            ("given key:paper is not x", "key paper is not x"),
            ("a\ngiven format:zfs is not x", "a\nformat zfs is not x"),
            ("given format:zfs is not x", "format zfs is not x"),
            (
                "device:/dev/sdb does not exist on given hardware: found /dev/sda",
                "device /dev/sdb does not exist on this machine: found /dev/sda",
            ),
            (
                "device:/dev/sda9 not provided by disk for raid:/dev/md0",
                "device /dev/sda9 not provided by disk for array /dev/md0",
            ),
            (
                "filesystemlayout:a is not reinstallable, abort reinstallation",
                "layout a has no disk that a reinstall may erase",
            ),
            ("a\ndevice:os is ambiguous", "a\ndevice os is ambiguous"),
            (
                "these combinations already exist:c1->[debian >= 10]: debian-10.0.0 on c1 would get a or b",
                "two layouts match debian >= 10 on c1: debian-10.0.0 on c1 would get a or b",
            ),
            (
                "machine either locked, not allocated yet or invalid image ID specified: there is no image \"a\" in images/",
                "there is no image \"a\" in images/",
            ),
        ] {
            assert_eq!(reword_metal_phrases(text), expected);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "",
            "a  b\n  c",
            "these combinations already exist:",
            "these combinations already exist:a b->[x]: y",
            "disks[0].device: /dev/sda is in use",
            "the device: missing",
            "http://h:1/x",
            "vg00:lv",
        ] {
            assert_eq!(reword_metal_phrases(text), text);
        }
    }
}
