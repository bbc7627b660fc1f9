//! Options of the mkfs tools, from their manuals and getopt(3) calls: e2fsprogs 1.47, xfsprogs 6.1, btrfs-progs 6.2, dosfstools 4.2,
//! util-linux 2.38, and additions of later versions.

use crate::layout::Format;

pub struct Tool {
    pub name: &'static str,
    pub options: &'static [KnownOption],
}

pub struct KnownOption {
    pub letter: Option<char>,
    /// Long name; empty if there is none.
    pub long: &'static str,
    pub takes: Takes,
    pub rule: Rule,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// After the option or in the next word.
    Value,
    /// Only after `=`, or omitted.
    Perhaps,
}

#[derive(Clone, Copy)]
pub enum Rule {
    Free,
    /// Not allowed, with the reason.
    Refused(&'static str),
    /// Allowed only with the value of the layout's format.
    Format,
    /// Parts of the value that are not allowed, each with the reason.
    Parts(&'static [(&'static str, &'static str)]),
}

use Rule::{Free, Parts, Refused};
use Takes::{Nothing, Perhaps, Value};

pub const DEVICE: &str = "it uses a device that is not in the layout";
const UUID: &str = "the plan generates the UUID";
const NO_FILESYSTEM: &str = "no filesystem would be created";
const FILE: &str = "it uses a file of the ramdisk";
const ELSEWHERE: &str = "the filesystem would not be at the start of the device";
const JOURNAL_DEVICE: &str = "it would create a journal for another filesystem";

/// Allowed short option without a value.
const fn flag(letter: char) -> KnownOption {
    KnownOption { letter: Some(letter), long: "", takes: Nothing, rule: Free }
}

/// Allowed short option with a value.
const fn with(letter: char) -> KnownOption {
    KnownOption { letter: Some(letter), long: "", takes: Value, rule: Free }
}

const fn long(letter: char, long: &'static str, takes: Takes) -> KnownOption {
    KnownOption { letter: Some(letter), long, takes, rule: Free }
}

const fn only_long(long: &'static str, takes: Takes) -> KnownOption {
    KnownOption { letter: None, long, takes, rule: Free }
}

impl KnownOption {
    const fn rule(self, rule: Rule) -> KnownOption {
        KnownOption { rule, ..self }
    }
}

pub fn tool(format: Format) -> Option<&'static Tool> {
    match format {
        Format::Ext3 | Format::Ext4 => Some(&MKE2FS),
        Format::Xfs => Some(&XFS),
        Format::Btrfs => Some(&BTRFS),
        Format::Vfat => Some(&FAT),
        Format::Swap => Some(&SWAP),
        Format::Tmpfs | Format::None => None,
    }
}

static MKE2FS: Tool = Tool {
    name: "mke2fs",
    options: &[
        with('b'),
        flag('c'),
        with('C'),
        with('d').rule(Refused(FILE)),
        flag('D'),
        with('e'),
        with('E').rule(Parts(&[("offset", ELSEWHERE)])),
        flag('F'),
        with('g'),
        with('G'),
        with('i'),
        with('I'),
        flag('j'),
        with('J').rule(Parts(&[("device", DEVICE)])),
        flag('K'),
        with('l').rule(Refused(FILE)),
        with('L'),
        with('m'),
        with('M'),
        flag('n').rule(Refused(NO_FILESYSTEM)),
        with('N'),
        with('o'),
        // `feature_i3` is `journal_dev` by its number.
        with('O').rule(Parts(&[("journal_dev", JOURNAL_DEVICE), ("feature_i3", JOURNAL_DEVICE)])),
        flag('q'),
        with('r'),
        with('R').rule(Parts(&[("offset", ELSEWHERE)])),
        with('s'),
        flag('S').rule(Refused("it writes only superblocks")),
        with('t').rule(Rule::Format),
        with('T'),
        with('U').rule(Refused(UUID)),
        flag('v'),
        flag('V').rule(Refused(NO_FILESYSTEM)),
        with('z').rule(Refused(FILE)),
    ],
};

static XFS: Tool = Tool {
    name: "mkfs.xfs",
    options: &[
        with('b'),
        with('c').rule(Refused(FILE)),
        flag('C'),
        with('d').rule(Parts(&[("name", DEVICE), ("file", FILE)])),
        flag('f'),
        with('i'),
        flag('K'),
        with('l').rule(Parts(&[("logdev", DEVICE), ("name", DEVICE), ("file", FILE)])),
        with('L'),
        with('m').rule(Parts(&[("uuid", UUID)])),
        with('n'),
        flag('N').rule(Refused(NO_FILESYSTEM)),
        with('p').rule(Refused(FILE)),
        flag('q'),
        with('r').rule(Parts(&[("rtdev", DEVICE), ("name", DEVICE), ("file", FILE)])),
        with('s'),
        flag('V').rule(Refused(NO_FILESYSTEM)),
        only_long("unsupported", Nothing),
    ],
};

static BTRFS: Tool = Tool {
    name: "mkfs.btrfs",
    options: &[
        with('A'),
        long('b', "byte-count", Value),
        only_long("checksum", Value),
        only_long("csum", Value),
        long('d', "data", Value),
        only_long("device-uuid", Value).rule(Refused(UUID)),
        long('f', "force", Nothing),
        only_long("help", Nothing).rule(Refused(NO_FILESYSTEM)),
        long('K', "nodiscard", Nothing),
        long('l', "leafsize", Value),
        long('L', "label", Value),
        long('m', "metadata", Value),
        long('M', "mixed", Nothing),
        long('n', "nodesize", Value),
        long('O', "features", Value),
        long('q', "quiet", Nothing),
        long('r', "rootdir", Value).rule(Refused(FILE)),
        long('R', "runtime-features", Value),
        long('s', "sectorsize", Value),
        only_long("shrink", Nothing),
        long('U', "uuid", Value).rule(Refused(UUID)),
        long('v', "verbose", Nothing),
        long('V', "version", Nothing).rule(Refused(NO_FILESYSTEM)),
    ],
};

static FAT: Tool = Tool {
    name: "mkfs.vfat",
    options: &[
        flag('a'),
        flag('A'),
        with('b'),
        flag('c'),
        flag('C').rule(Refused(FILE)),
        with('D'),
        with('f'),
        with('F'),
        with('g'),
        with('h'),
        with('i').rule(Refused(UUID)),
        flag('I'),
        with('l').rule(Refused(FILE)),
        with('m').rule(Refused(FILE)),
        with('M'),
        with('n'),
        with('r'),
        with('R'),
        with('s'),
        with('S'),
        flag('v'),
        only_long("codepage", Value),
        only_long("help", Nothing).rule(Refused(NO_FILESYSTEM)),
        only_long("invariant", Nothing),
        only_long("mbr", Perhaps),
        only_long("offset", Value).rule(Refused(ELSEWHERE)),
        only_long("variant", Value),
    ],
};

static SWAP: Tool = Tool {
    name: "mkswap",
    options: &[
        long('c', "check", Nothing),
        long('e', "endianness", Value),
        long('f', "force", Nothing),
        long('F', "file", Nothing).rule(Refused(FILE)),
        long('h', "help", Nothing).rule(Refused(NO_FILESYSTEM)),
        long('L', "label", Value),
        only_long("lock", Perhaps),
        long('o', "offset", Value).rule(Refused(ELSEWHERE)),
        long('p', "pagesize", Value),
        long('q', "quiet", Nothing),
        long('s', "size", Value),
        long('U', "uuid", Value).rule(Refused(UUID)),
        long('v', "swapversion", Value),
        only_long("verbose", Nothing),
        long('V', "version", Nothing).rule(Refused(NO_FILESYSTEM)),
    ],
};
