//! Create options of arrays: the metadata version, and all other options of mdadm.

mod mdadm_options;

use super::{ArraySpec, FilesystemFormat, Layout};
use mdadm_options::{MdadmArgument, OptionPolicy::Metadata};

impl ArraySpec {
    /// Returns the metadata version that the create options specify, in the spelling of mdadm (`0.90`, `1.0`). An
    /// unknown version is returned as written. Returns `None` if the options specify no version.
    pub(crate) fn requested_metadata(&self) -> Option<String> {
        let given = mdadm_options::parse_arguments(&self.createoptions).into_iter().filter_map(Result::ok);
        // The first metadata version is used. mdadm refuses a second one, which the validation therefore reports.
        let said = given.filter(|option| option.known.meaning == Metadata).find_map(|option| option.value)?;
        Some(match said {
            "0" | "0.9" | "0.90" => "0.90".to_owned(),
            "1" | "default" => "1.2".to_owned(),
            other => other.to_owned(),
        })
    }

    /// Returns the create options without the metadata version.
    pub fn options_without_metadata(&self) -> Vec<String> {
        let metadata: Vec<std::ops::Range<usize>> = mdadm_options::parse_arguments(&self.createoptions)
            .into_iter()
            .filter_map(Result::ok)
            .filter(|option| option.known.meaning == Metadata)
            .map(|option| option.at..option.at + option.words)
            .collect();
        let words = self.createoptions.iter().enumerate();
        let rest = words.filter(|(at, _)| !metadata.iter().any(|range| range.contains(at)));
        rest.map(|(_, word)| word.clone()).collect()
    }

    /// Returns all problems of the create options.
    pub(super) fn check_options(&self) -> Vec<String> {
        let mut metadata = false;
        let mut problem = |given: Result<MdadmArgument, String>| match given {
            Err(why) => Some(why),
            Ok(given) if given.known.meaning == Metadata => {
                std::mem::replace(&mut metadata, true).then(|| "the metadata version is specified twice".to_owned())
            }
            Ok(given) => given.check_for_array(self),
        };
        mdadm_options::parse_arguments(&self.createoptions).into_iter().filter_map(&mut problem).collect()
    }

    /// Returns the number of devices that are not spares.
    pub(super) fn count_active(&self) -> usize {
        self.devices.len().saturating_sub(self.spares as usize)
    }
}

impl Layout {
    /// Returns the metadata version of the array. The default depends on the contents of the array. If an array
    /// contains an ESP, firmware reads a member of the array as a plain partition, so the superblock must be at the end
    /// of the member.
    pub fn effective_metadata(&self, raid: &ArraySpec) -> String {
        let usual = if self.is_esp(raid) { "1.0" } else { "1.2" };
        raid.requested_metadata().unwrap_or_else(|| usual.to_owned())
    }

    pub(super) fn is_esp(&self, raid: &ArraySpec) -> bool {
        let mut filesystems = self.filesystems.iter();
        filesystems.any(|filesystem| filesystem.format == FilesystemFormat::Vfat && filesystem.device == raid.arrayname)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_name::LayoutPath;
    use crate::layout::RaidLevel;

    fn array(options: &[&str]) -> ArraySpec {
        ArraySpec {
            arrayname: "/dev/md0".into(),
            devices: vec![LayoutPath::default(); 4],
            level: RaidLevel::Raid1,
            createoptions: options.iter().map(|word| word.to_string()).collect(),
            spares: 0,
            preserve: false,
        }
    }

    #[test]
    fn metadata_option_is_separated_from_other_options() {
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
            assert_eq!(array.requested_metadata().as_deref(), metadata, "{options:?}");
            assert_eq!(array.options_without_metadata(), others, "{options:?}");
        }
    }

    #[test]
    fn accepts_supported_create_options() {
        use RaidLevel::*;
        for (level, options) in [
            (Raid0, &["--chunk=64", "--layout=original", "--data-offset=1M"][..]),
            (Raid1, &["--bitmap=internal", "--assume-clean", "-d5", "--failfast", "-v"]),
            (Raid1, &["-bnone", "-k", "resync", "--size", "max", "--bitmap-chunk=64M"]),
            (Raid5, &["-c", "512", "-p", "ls", "--consistency-policy=ppl"]),
            (Raid6, &["--chunk", "64K", "--parity=left-symmetric"]),
            (Raid10, &["--layout=f2", "-z100G"]),
            (Raid10, &["-pn4"]),
        ] {
            assert_eq!(ArraySpec { level, ..array(options) }.check_options(), [""; 0], "{level} {options:?}");
        }
    }

    /// mdadm 4.2 refuses each of these options, but only after the disks were wiped.
    #[test]
    fn refuses_options_that_mdadm_would_refuse() {
        use RaidLevel::*;
        for (level, option, words) in [
            (Raid0, "-binternal", "does not apply to raid0"),
            (Raid0, "-kresync", "does not apply to raid0"),
            (Raid0, "-pn2", "original or alternate"),
            (Raid1, "--chunk=64", "does not apply to raid1"),
            (Raid1, "-pn2", "does not apply to raid1"),
            (Raid1, "--bitmap=yes", "internal or none"),
            (Raid1, "--delay=x", "seconds"),
            (Raid1, "--size=x", "max, or a number"),
            (Raid1, "--size=1.5G", "max, or a number"),
            (Raid6, "--chunk=x", "a number"),
            (Raid6, "--layout=n2", "left-symmetric"),
            (Raid6, "-kppl", "resync"),
            (Raid10, "-kbitmap", "--bitmap=internal"),
            (Raid10, "-pls", "number of copies"),
            (Raid10, "-pn1", "number of copies"),
            (Raid10, "-pn5", "number of copies"),
            (Raid10, "--write-behind=256", "is not a supported option"),
            (Raid10, "--write-zeroes", "is not a supported option"),
        ] {
            let problems = ArraySpec { level, ..array(&[option]) }.check_options();
            assert!(problems.len() == 1 && problems[0].contains(words), "{level} {option}: {problems:?}");
        }
    }

    #[test]
    fn vfat_on_an_array_requires_metadata_at_the_end() {
        let text = include_str!("../../../../testdata/layouts/good/mirrored-boot.yaml");
        let layout = crate::layout::read_yaml(text).unwrap().layout;
        let esp = layout.raid.iter().position(|raid| layout.is_esp(raid));
        assert_eq!(esp, Some(0));
        let metadata: Vec<String> = layout.raid.iter().map(|raid| layout.effective_metadata(raid)).collect();
        assert_eq!(metadata, ["1.0", "1.2", "1.2"]);
    }
}
