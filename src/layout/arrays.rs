//! The create options of arrays: mdadm's words, with the metadata version told apart from the rest.

use super::{Format, Layout, Raid};

/// An option of `mdadm --create` that a layout may speak of (mdadm(8), long_options in mdadm's ReadMe.c).
struct KnownOption {
    long: &'static str,
    short: Option<char>,
    argument: Argument,
    meaning: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    Required,
    /// Only with `=`.
    Optional,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Metadata,
    /// For the layout to say.
    Free,
    /// Not for the layout to say, and why.
    Ours(&'static str),
}

const fn option(long: &'static str, short: Option<char>, argument: Argument, meaning: Meaning) -> KnownOption {
    KnownOption { long, short, argument, meaning }
}

use Argument::{None as Bare, Optional, Required};
use Meaning::{Free, Metadata, Ours};

const LEVEL: Meaning = Ours("the layout says it with level");
const MEMBERS: Meaning = Ours("it follows from devices and spares");
const SPARES: Meaning = Ours("the layout says it with spares");
const NAME: Meaning = Ours("the name comes from arrayname");
const ALWAYS: Meaning = Ours("it is always given where it is needed");
const CREATE: Meaning = Ours("arrays are always created");
const OUTSIDE_WHY: &str = "it names a device or file that the layout does not speak of";
const OUTSIDE: Meaning = Ours(OUTSIDE_WHY);
const MODE: Meaning = Ours("the array must be writable for what lies on it");

const OPTIONS: [KnownOption; 30] = [
    option("metadata", Some('e'), Required, Metadata),
    option("level", Some('l'), Required, LEVEL),
    option("raid-devices", Some('n'), Required, MEMBERS),
    option("raid-disks", None, Required, MEMBERS),
    option("spare-devices", Some('x'), Required, SPARES),
    option("spare-disks", None, Required, SPARES),
    option("uuid", Some('u'), Required, Ours("the plan chooses the UUID")),
    option("name", Some('N'), Required, NAME),
    option("homehost", None, Required, Ours("arrays belong to any host, so that they keep their names")),
    option("run", Some('R'), Bare, ALWAYS),
    option("force", Some('f'), Bare, ALWAYS),
    option("create", Some('C'), Bare, CREATE),
    option("readonly", Some('o'), Bare, MODE),
    option("write-journal", None, Required, OUTSIDE),
    option("config", None, Required, OUTSIDE),
    option("chunk", Some('c'), Required, Free),
    option("layout", Some('p'), Required, Free),
    option("parity", None, Required, Free),
    option("size", Some('z'), Required, Free),
    option("data-offset", None, Required, Free),
    option("bitmap", Some('b'), Required, Free),
    option("bitmap-chunk", None, Required, Free),
    option("consistency-policy", Some('k'), Required, Free),
    option("delay", Some('d'), Required, Free),
    option("assume-clean", None, Bare, Free),
    option("write-mostly", Some('W'), Bare, Free),
    option("write-behind", None, Optional, Free),
    option("failfast", None, Bare, Free),
    option("verbose", Some('v'), Bare, Free),
    option("quiet", Some('q'), Bare, Free),
];

/// One option of a list of create options, understood.
struct Given<'a> {
    /// Position in the list of its first word, and how many words it takes.
    at: usize,
    words: usize,
    known: &'static KnownOption,
    value: Option<&'a str>,
}

impl Raid {
    /// The metadata version that the create options ask for, as mdadm prints it (`0.90`, `1.0`); an unknown one as it
    /// is written, `None` when they say nothing.
    pub fn metadata(&self) -> Option<String> {
        let given = options(&self.createoptions).into_iter().filter_map(Result::ok);
        // mdadm refuses a second one; validation does before it.
        let said = given.filter(|option| option.known.meaning == Metadata).find_map(|option| option.value)?;
        Some(match said {
            "0" | "0.9" | "0.90" => "0.90".to_owned(),
            "1" | "default" => "1.2".to_owned(),
            other => other.to_owned(),
        })
    }

    /// The create options without the metadata version.
    pub fn other_options(&self) -> Vec<String> {
        let metadata: Vec<std::ops::Range<usize>> = options(&self.createoptions)
            .into_iter()
            .filter_map(Result::ok)
            .filter(|option| option.known.meaning == Metadata)
            .map(|option| option.at..option.at + option.words)
            .collect();
        let words = self.createoptions.iter().enumerate();
        let rest = words.filter(|(at, _)| !metadata.iter().any(|range| range.contains(at)));
        rest.map(|(_, word)| word.clone()).collect()
    }

    /// What is wrong with the create options.
    pub(super) fn option_problems(&self) -> Vec<String> {
        let mut metadata = false;
        let mut problem = |given: Result<Given, String>| match given {
            Err(why) => Some(why),
            Ok(Given { known: KnownOption { long, meaning: Ours(why), .. }, .. }) => {
                Some(format!("the create option --{long} is not for the layout to give: {why}"))
            }
            Ok(Given { known, .. }) if known.meaning == Metadata => {
                std::mem::replace(&mut metadata, true).then(|| "the metadata version is given twice".to_owned())
            }
            Ok(Given { known: KnownOption { long, .. }, value: Some(value), .. }) if value.starts_with('/') => {
                Some(format!("the create option --{long} is not for the layout to give with {value}: {OUTSIDE_WHY}"))
            }
            Ok(_) => None,
        };
        options(&self.createoptions).into_iter().filter_map(&mut problem).collect()
    }
}

impl Layout {
    /// The arrays that firmware reads: those with a vfat filesystem directly on them.
    pub fn esp_arrays(&self) -> Vec<&Raid> {
        self.raid.iter().filter(|raid| self.is_esp(raid)).collect()
    }

    /// The metadata version that the array gets. Firmware reads a member as if there were no array: the superblock of
    /// its ESP has to be at the end.
    pub fn metadata(&self, raid: &Raid) -> String {
        let usual = if self.is_esp(raid) { "1.0" } else { "1.2" };
        raid.metadata().unwrap_or_else(|| usual.to_owned())
    }

    pub(super) fn is_esp(&self, raid: &Raid) -> bool {
        let mut filesystems = self.filesystems.iter();
        filesystems.any(|filesystem| filesystem.format == Format::Vfat && filesystem.device == raid.arrayname)
    }
}

/// Reads the words as mdadm's getopt_long does: `--chunk=64`, `--chunk 64`, `-c 64`, `-c64`, `--ch=64`.
fn options(words: &[String]) -> Vec<Result<Given<'_>, String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let given = read(words, at, word);
        at += given.as_ref().map_or(1, |given| given.words);
        found.push(given);
    }
    found
}

fn read<'a>(words: &'a [String], at: usize, word: &'a str) -> Result<Given<'a>, String> {
    let (known, value) = if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        (by_name(name).ok_or_else(|| unknown(word))?, value)
    } else if let Some(short) = word.strip_prefix('-') {
        let mut letters = short.chars();
        let letter = letters.next();
        let known = OPTIONS.iter().find(|option| letter.is_some() && option.short == letter);
        let rest = letters.as_str();
        (known.ok_or_else(|| unknown(word))?, (!rest.is_empty()).then_some(rest))
    } else {
        return Err(format!("{word} is no option: mdadm would take it for a device; members belong into devices"));
    };
    let (value, words) = match (known.argument, value) {
        (Required, None) => match words.get(at + 1) {
            Some(next) => (Some(next.as_str()), 2),
            None => return Err(format!("the create option {word} has no value")),
        },
        (Bare, Some(_)) => return Err(format!("the create option --{} takes no value, found {word}", known.long)),
        (_, value) => (value, 1),
    };
    Ok(Given { at, words, known, value })
}

/// An exact name, or the beginning of only one.
fn by_name(name: &str) -> Option<&'static KnownOption> {
    let mut abbreviated = OPTIONS.iter().filter(|option| !name.is_empty() && option.long.starts_with(name));
    let exact = OPTIONS.iter().find(|option| option.long == name);
    exact.or_else(|| abbreviated.next().filter(|_| abbreviated.next().is_none()))
}

fn unknown(word: &str) -> String {
    let free: Vec<String> =
        OPTIONS.iter().filter(|option| option.meaning == Free).map(|option| format!("--{}", option.long)).collect();
    format!("{word} is no option for creating arrays; known here: --metadata, {}", free.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RaidLevel;

    fn array(options: &[&str]) -> Raid {
        Raid {
            arrayname: "/dev/md0".to_owned(),
            devices: Vec::new(),
            level: RaidLevel::Raid1,
            createoptions: options.iter().map(|word| word.to_string()).collect(),
            spares: 0,
        }
    }

    #[test]
    fn metadata_is_told_apart_from_other_options() {
        for (options, metadata, others) in [
            (&[][..], None, &[][..]),
            (&["--metadata=1.0"], Some("1.0"), &[]),
            (&["--metadata", "1.0", "--assume-clean"], Some("1.0"), &["--assume-clean"]),
            (&["--chunk", "64", "-e", "1.1", "-b", "none"], Some("1.1"), &["--chunk", "64", "-b", "none"]),
            (&["-e1.2"], Some("1.2"), &[]),
            (&["--meta=0.9"], Some("0.90"), &[]),
            (&["--metadata=0"], Some("0.90"), &[]),
            (&["--metadata=1"], Some("1.2"), &[]),
            (&["--metadata=default"], Some("1.2"), &[]),
            (&["-e", "ddf"], Some("ddf"), &[]),
            (&["--chunk", "--metadata=1.0"], None, &["--chunk", "--metadata=1.0"]),
            (&["--frobnicate", "-e1.0"], Some("1.0"), &["--frobnicate"]),
        ] {
            let array = array(options);
            assert_eq!(array.metadata().as_deref(), metadata, "{options:?}");
            assert_eq!(array.other_options(), others, "{options:?}");
        }
    }

    #[test]
    fn options_for_the_layout_to_give_pass() {
        for options in [
            &["--chunk=64"][..],
            &["--chunk", "64", "-p", "f2", "--assume-clean", "-binternal"],
            &["--bitmap=none", "--data-offset=1M", "-W", "--write-behind=256"],
            &["-k", "resync", "-d5", "--failfast", "--size", "max", "-q"],
        ] {
            assert_eq!(array(options).option_problems(), [""; 0], "{options:?}");
        }
    }

    #[test]
    fn vfat_directly_on_an_array_asks_for_its_superblock_at_the_end() {
        let text = include_str!("../../testdata/layouts/good/mirrored-boot.yaml");
        let layout = crate::layout::read_yaml(text).unwrap().layout;
        let names: Vec<&str> = layout.esp_arrays().iter().map(|raid| raid.arrayname.as_str()).collect();
        assert_eq!(names, ["/dev/md/efi"]);
        let metadata: Vec<String> = layout.raid.iter().map(|raid| layout.metadata(raid)).collect();
        assert_eq!(metadata, ["1.0", "1.2", "1.2"]);
    }
}
