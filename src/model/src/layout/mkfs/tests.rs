//! Accepted and refused create options.

use super::*;

fn filesystem(format: FilesystemFormat, options: &str) -> FilesystemSpec {
    FilesystemSpec {
        path: None,
        device: "/dev/sda1".into(),
        format,
        label: None,
        mountoptions: Vec::new(),
        createoptions: options.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        reinstall: Default::default(),
        grow: false,
        encrypted: None,
        preserve: false,
    }
}

#[test]
fn refuses_unsupported_options_as_parsed_by_the_tool() {
    use FilesystemFormat::{Btrfs, Ext3, Ext4, Swap, Vfat, Xfs};
    for (format, options, words) in [
        // Short options in a cluster are checked one by one.
        (Ext4, "-Fn", "-n of -Fn is not allowed: no filesystem would be created"),
        (Ext3, "-qn", "-n of -qn is not"),
        (Ext4, "-qU random", "-U of -qU is not allowed: the plan generates the UUID"),
        (Ext4, "-FqUrandom", "-U of -FqUrandom is not"),
        (Btrfs, "-qU x", "-U of -qU is not"),
        (Swap, "-fUx", "-U of -fUx is not"),
        (Xfs, "-fN", "-N of -fN is not allowed: no filesystem would be created"),
        (Vfat, "-aIi 1234abcd", "-i of -aIi is not"),
        (Ext4, "-vV", "-V of -vV is not"),
        // mkfs would use a word that is not an option as the device, in any position.
        (Ext4, "dev/vdb", "dev/vdb is not an option: mkfs would use it as the device"),
        (Ext4, "-m 0 dev/vdb", "dev/vdb is not an option"),
        (Btrfs, "-f sdb", "sdb is not an option"),
        (Vfat, "-F32 -", "- is not an option"),
        (Swap, "-L x y", "y is not an option"),
        (Ext4, "--", "-- is not a supported option of mke2fs"),
        // The last option has no value, so it would consume the argument that drophammer appends.
        (Ext4, "-q -b", "-b requires a value"),
        (Btrfs, "--label", "--label requires a value"),
        // Each part of a value with several parts is checked.
        (Ext4, "-J device=UUID=0d5c1a2e-7f6b-4c3d-9e8f-a1b2c3d4e5f6", "option device=UUID=0d5c1a2e"),
        (Ext4, "-Jsize=16,device=sdb", "device=sdb is not allowed: the option uses a device"),
        (Ext4, "-O ^64bit,Journal_Dev", "Journal_Dev is not allowed: the option would create a journal"),
        (Ext4, "-O +FEATURE_I3", "FEATURE_I3 is not"),
        (Ext4, "-O Feature_I+03", "Feature_I+03 is not"),
        (Ext4, "-E discard,offset=1048576", "offset=1048576 is not allowed: the filesystem would not be"),
        (Ext4, "-qR offset=512", "offset=512 is not"),
        (Xfs, "-l logdev=dev/sdb", "logdev=dev/sdb is not allowed: the option uses a device"),
        (Xfs, "-lsize=32m,logdev=sdb", "logdev=sdb is not"),
        (Xfs, "-r extsize=4k,rtdev=sdb", "rtdev=sdb is not"),
        (Xfs, "-d agcount=4,name=sdb", "name=sdb is not"),
        (Xfs, "-m crc=1,uuid=0", "uuid=0 is not allowed: the plan generates the UUID"),
        // Long options and their abbreviations are checked like short options.
        (Swap, "--uuid=x", "--uuid=x is not"),
        (Swap, "--uu x", "--uu is not"),
        (Btrfs, "--uuid x", "--uuid is not"),
        (Btrfs, "--rootdir=/", "--rootdir=/ is not allowed: the option uses a file of the ramdisk"),
        (Btrfs, "--mixed=1", "--mixed does not take a value"),
        (Btrfs, "--no-such", "--no-such is not a supported option of mkfs.btrfs"),
        (Btrfs, "--c", "--c is not a supported option"),
        (Vfat, "--offset 100", "--offset is not"),
        (Ext4, "--uuid=x", "--uuid=x is not a supported option of mke2fs"),
        // Options that use files, options of other formats, and unknown options are refused.
        (Ext4, "-d /etc", "-d is not allowed: the option uses a file of the ramdisk"),
        (Ext4, "-Fz undo", "-z of -Fz is not"),
        (Vfat, "-l bad", "-l is not"),
        (Vfat, "-Cv", "-C of -Cv is not"),
        (Xfs, "-p proto", "-p is not"),
        (Xfs, "-c options=x", "-c is not"),
        (Ext4, "-t ext2", "-t is not allowed: set `format` in the layout"),
        (Ext4, "-qX", "-X of -qX is not a supported option of mke2fs"),
        (Ext4, "-Ö", "-Ö is not a supported option"),
    ] {
        let problems = filesystem(format, options).check_options();
        assert!(problems.len() == 1 && problems[0].contains(words), "{format} {options}: {problems:?}");
    }
}

/// An item of the list may contain blanks, and mke2fs also separates features at blanks.
#[test]
fn option_values_are_split_at_blanks_and_commas() {
    for (value, expected) in [
        ("extent journal_dev", &["journal_dev"][..]),
        ("journal_dev\textent", &["journal_dev"]),
        ("extent\u{b}journal_dev", &["journal_dev"]),
        ("extent,\n FEATURE_I03 ,,+journal_dev", &["FEATURE_I03", "+journal_dev"]),
        ("extent ^journal_dev", &[]),
        ("extent has_journal,  64bit", &[]),
        ("FEATURE_I4 journal_devs", &[]),
    ] {
        let createoptions = vec!["-O".to_owned(), value.to_owned()];
        let problems = FilesystemSpec { createoptions, ..filesystem(FilesystemFormat::Ext4, "") }.check_options();
        let refused = |part: &&str| {
            format!(
                "the create option {part} is not allowed: {}",
                "the option would create a journal for another filesystem"
            )
        };
        assert_eq!(problems, expected.iter().map(refused).collect::<Vec<_>>(), "{value:?}");
    }
}

#[test]
fn accepts_supported_mkfs_options() {
    use FilesystemFormat::{Btrfs, Ext3, Ext4, Swap, Vfat, Xfs};
    for (format, options) in [
        (Ext4, "-m 0 -O ^has_journal,metadata_csum -E lazy_itable_init=0,stride=16 -F -q"),
        (Ext4, "-b4096 -I 256 -N1000 -Tlargefile4 -J size=64,location=0 -t ext4"),
        // Words that look like options but are values are accepted.
        (Ext4, "-L -n -M -U"),
        (Ext3, "-FqLn -j -i 8192"),
        (Xfs, "-i size=512 -m reflink=0,crc=1 -d su=64k,sw=2 -l size=32m,internal=1 -fK"),
        (Btrfs, "-M -f --metadata single --data=single --csum xxhash --nodes 16384 -O quota"),
        (Btrfs, "--feat mixed-bg -LU"),
        (Vfat, "-F 32 -s 8 -n EFI -aI --mbr --mbr=n -h 0"),
        (Swap, "-p 4096 -L swap --check --label -U"),
        (FilesystemFormat::None, "-n"),
    ] {
        assert_eq!(filesystem(format, options).check_options(), [""; 0], "{format} {options}");
    }
}

#[test]
fn last_value_of_an_option_takes_effect() {
    for (options, expected) in [
        ("-F 32", Some("32")),
        ("-F32", Some("32")),
        ("-aF32", Some("32")),
        ("-F 16 -vF 32", Some("32")),
        ("-n -F -s 32", None),
        ("-n F32", None),
    ] {
        assert_eq!(filesystem(FilesystemFormat::Vfat, options).find_option_value('F'), expected, "{options}");
    }
}
