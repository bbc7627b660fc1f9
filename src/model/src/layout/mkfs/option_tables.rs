//! Options of the mkfs tools. They were taken from the manuals and getopt(3) calls of e2fsprogs 1.47, xfsprogs 6.1,
//! btrfs-progs 6.2, dosfstools 4.2, and util-linux 2.38, with the additions of later versions.

use crate::layout::FilesystemFormat;

pub(crate) struct MkfsTool {
    pub name: &'static str,
    pub options: &'static [MkfsOption],
}

pub(crate) struct MkfsOption {
    pub letter: Option<char>,
    /// Long name of the option; empty if it has none.
    pub long: &'static str,
    pub takes: OptionArity,
    pub rule: OptionRule,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OptionArity {
    NoValue,
    /// The option requires a value, directly after the option or in the next word.
    Value,
    /// The option accepts a value, which must follow `=`.
    OptionalValue,
}

#[derive(Clone, Copy)]
pub(crate) enum OptionRule {
    Free,
    /// The option is not allowed. Contains the reason.
    Refused(&'static str),
    /// The option is allowed only if its value is the format that the layout specifies.
    Format,
    /// The option is allowed if its value does not contain any of these parts. Each part is listed with the reason why
    /// it is not allowed.
    Parts(&'static [(&'static str, &'static str)]),
}

use OptionArity::{NoValue, OptionalValue, Value};
use OptionRule::{Free, Parts, Refused};

pub(crate) const DEVICE: &str = "the option uses a device that is not in the layout";
const UUID: &str = "the plan generates the UUID";
const NO_FILESYSTEM_REASON: &str = "no filesystem would be created";
const FILE: &str = "the option uses a file of the ramdisk";
const OFFSET_REASON: &str = "the filesystem would not be at the start of the device";
const JOURNAL_DEVICE: &str = "the option would create a journal for another filesystem";

/// Returns an allowed short option without a value.
const fn flag_option(letter: char) -> MkfsOption {
    MkfsOption { letter: Some(letter), long: "", takes: NoValue, rule: Free }
}

/// Returns an allowed short option with a value.
const fn value_option(letter: char) -> MkfsOption {
    MkfsOption { letter: Some(letter), long: "", takes: Value, rule: Free }
}

const fn long_option(letter: char, long: &'static str, takes: OptionArity) -> MkfsOption {
    MkfsOption { letter: Some(letter), long, takes, rule: Free }
}

const fn long_only_option(long: &'static str, takes: OptionArity) -> MkfsOption {
    MkfsOption { letter: None, long, takes, rule: Free }
}

impl MkfsOption {
    const fn with_rule(self, rule: OptionRule) -> MkfsOption {
        MkfsOption { rule, ..self }
    }
}

pub(crate) fn find_tool(format: FilesystemFormat) -> Option<&'static MkfsTool> {
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => Some(&MKE2FS),
        FilesystemFormat::Xfs => Some(&XFS),
        FilesystemFormat::Btrfs => Some(&BTRFS),
        FilesystemFormat::Vfat => Some(&FAT),
        FilesystemFormat::Swap => Some(&SWAP),
        FilesystemFormat::Tmpfs | FilesystemFormat::None => None,
    }
}

static MKE2FS: MkfsTool = MkfsTool {
    name: "mke2fs",
    options: &[
        value_option('b'),
        flag_option('c'),
        value_option('C'),
        value_option('d').with_rule(Refused(FILE)),
        flag_option('D'),
        value_option('e'),
        value_option('E').with_rule(Parts(&[("offset", OFFSET_REASON)])),
        flag_option('F'),
        value_option('g'),
        value_option('G'),
        value_option('i'),
        value_option('I'),
        flag_option('j'),
        value_option('J').with_rule(Parts(&[("device", DEVICE)])),
        flag_option('K'),
        value_option('l').with_rule(Refused(FILE)),
        value_option('L'),
        value_option('m'),
        value_option('M'),
        flag_option('n').with_rule(Refused(NO_FILESYSTEM_REASON)),
        value_option('N'),
        value_option('o'),
        // `feature_i3` denotes the feature `journal_dev` by its bit number.
        value_option('O').with_rule(Parts(&[("journal_dev", JOURNAL_DEVICE), ("feature_i3", JOURNAL_DEVICE)])),
        flag_option('q'),
        value_option('r'),
        value_option('R').with_rule(Parts(&[("offset", OFFSET_REASON)])),
        value_option('s'),
        flag_option('S').with_rule(Refused("the option writes only superblocks")),
        value_option('t').with_rule(OptionRule::Format),
        value_option('T'),
        value_option('U').with_rule(Refused(UUID)),
        flag_option('v'),
        flag_option('V').with_rule(Refused(NO_FILESYSTEM_REASON)),
        value_option('z').with_rule(Refused(FILE)),
    ],
};

static XFS: MkfsTool = MkfsTool {
    name: "mkfs.xfs",
    options: &[
        value_option('b'),
        value_option('c').with_rule(Refused(FILE)),
        flag_option('C'),
        value_option('d').with_rule(Parts(&[("name", DEVICE), ("file", FILE)])),
        flag_option('f'),
        value_option('i'),
        flag_option('K'),
        value_option('l').with_rule(Parts(&[("logdev", DEVICE), ("name", DEVICE), ("file", FILE)])),
        value_option('L'),
        value_option('m').with_rule(Parts(&[("uuid", UUID)])),
        value_option('n'),
        flag_option('N').with_rule(Refused(NO_FILESYSTEM_REASON)),
        value_option('p').with_rule(Refused(FILE)),
        flag_option('q'),
        value_option('r').with_rule(Parts(&[("rtdev", DEVICE), ("name", DEVICE), ("file", FILE)])),
        value_option('s'),
        flag_option('V').with_rule(Refused(NO_FILESYSTEM_REASON)),
        long_only_option("unsupported", NoValue),
    ],
};

static BTRFS: MkfsTool = MkfsTool {
    name: "mkfs.btrfs",
    options: &[
        value_option('A'),
        long_option('b', "byte-count", Value),
        long_only_option("checksum", Value),
        long_only_option("csum", Value),
        long_option('d', "data", Value),
        long_only_option("device-uuid", Value).with_rule(Refused(UUID)),
        long_option('f', "force", NoValue),
        long_only_option("help", NoValue).with_rule(Refused(NO_FILESYSTEM_REASON)),
        long_option('K', "nodiscard", NoValue),
        long_option('l', "leafsize", Value),
        long_option('L', "label", Value),
        long_option('m', "metadata", Value),
        long_option('M', "mixed", NoValue),
        long_option('n', "nodesize", Value),
        long_option('O', "features", Value),
        long_option('q', "quiet", NoValue),
        long_option('r', "rootdir", Value).with_rule(Refused(FILE)),
        long_option('R', "runtime-features", Value),
        long_option('s', "sectorsize", Value),
        long_only_option("shrink", NoValue),
        long_option('U', "uuid", Value).with_rule(Refused(UUID)),
        long_option('v', "verbose", NoValue),
        long_option('V', "version", NoValue).with_rule(Refused(NO_FILESYSTEM_REASON)),
    ],
};

static FAT: MkfsTool = MkfsTool {
    name: "mkfs.vfat",
    options: &[
        flag_option('a'),
        flag_option('A'),
        value_option('b'),
        flag_option('c'),
        flag_option('C').with_rule(Refused(FILE)),
        value_option('D'),
        value_option('f'),
        value_option('F'),
        value_option('g'),
        value_option('h'),
        value_option('i').with_rule(Refused(UUID)),
        flag_option('I'),
        value_option('l').with_rule(Refused(FILE)),
        value_option('m').with_rule(Refused(FILE)),
        value_option('M'),
        value_option('n'),
        value_option('r'),
        value_option('R'),
        value_option('s'),
        value_option('S'),
        flag_option('v'),
        long_only_option("codepage", Value),
        long_only_option("help", NoValue).with_rule(Refused(NO_FILESYSTEM_REASON)),
        long_only_option("invariant", NoValue),
        long_only_option("mbr", OptionalValue),
        long_only_option("offset", Value).with_rule(Refused(OFFSET_REASON)),
        long_only_option("variant", Value),
    ],
};

static SWAP: MkfsTool = MkfsTool {
    name: "mkswap",
    options: &[
        long_option('c', "check", NoValue),
        long_option('e', "endianness", Value),
        long_option('f', "force", NoValue),
        long_option('F', "file", NoValue).with_rule(Refused(FILE)),
        long_option('h', "help", NoValue).with_rule(Refused(NO_FILESYSTEM_REASON)),
        long_option('L', "label", Value),
        long_only_option("lock", OptionalValue),
        long_option('o', "offset", Value).with_rule(Refused(OFFSET_REASON)),
        long_option('p', "pagesize", Value),
        long_option('q', "quiet", NoValue),
        long_option('s', "size", Value),
        long_option('U', "uuid", Value).with_rule(Refused(UUID)),
        long_option('v', "swapversion", Value),
        long_only_option("verbose", NoValue),
        long_option('V', "version", NoValue).with_rule(Refused(NO_FILESYSTEM_REASON)),
    ],
};
