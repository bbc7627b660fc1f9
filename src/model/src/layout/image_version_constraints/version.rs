//! Versions of images. Like metal-api, the parser accepts versions without a minor number and a patch number.

use std::fmt;

/// Version of an image, with major, minor and patch. Images have no prereleases, because a prerelease would follow a
/// `-`, and the version of an image is the text after the last `-` of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageVersion {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
}

impl ImageVersion {
    pub(crate) const MIN: ImageVersion = ImageVersion::new(0, 0, 0);
    pub(crate) const MAX: ImageVersion = ImageVersion::new(u64::MAX, u64::MAX, u64::MAX);

    pub const fn new(major: u64, minor: u64, patch: u64) -> ImageVersion {
        ImageVersion { major, minor, patch }
    }

    /// Returns the next version; `None` after [`ImageVersion::MAX`].
    pub fn successor(self) -> Option<ImageVersion> {
        let ImageVersion { major, minor, patch } = self;
        let next_minor = || minor.checked_add(1).map(|minor| ImageVersion::new(major, minor, 0));
        let next_major = || major.checked_add(1).map(|major| ImageVersion::new(major, 0, 0));
        patch.checked_add(1).map(|patch| ImageVersion { patch, ..self }).or_else(next_minor).or_else(next_major)
    }

    /// Returns the previous version; `None` before [`ImageVersion::MIN`].
    pub(crate) fn predecessor(self) -> Option<ImageVersion> {
        let ImageVersion { major, minor, patch } = self;
        let previous_minor = || minor.checked_sub(1).map(|minor| ImageVersion::new(major, minor, u64::MAX));
        let previous_major = || major.checked_sub(1).map(|major| ImageVersion::new(major, u64::MAX, u64::MAX));
        patch.checked_sub(1).map(|patch| ImageVersion { patch, ..self }).or_else(previous_minor).or_else(previous_major)
    }
}

impl fmt::Display for ImageVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Version as written in a constraint. `10` and `10.0` denote ranges of versions, `10.0.0` a single version.
#[derive(Debug, Clone, Copy)]
pub struct VersionPattern {
    /// Version in which parts that are not specified are 0.
    pub version: ImageVersion,
    /// Number of specified parts, from 1 to 3.
    pub parts: usize,
    /// True if a prerelease of `version` is specified. A prerelease precedes the version.
    pub prerelease: bool,
}

impl VersionPattern {
    /// Parses a version as leniently as Masterminds/semver: it may start with `v`, numbers may have leading zeros, and
    /// build metadata is ignored.
    pub fn parse(text: &str) -> Option<VersionPattern> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, metadata) = split_optional(text.split_once('+'), text);
        let (numbers, prerelease) = split_optional(text.split_once('-'), text);
        let is_fine = metadata.is_none_or(|text| !text.is_empty() && semver::BuildMetadata::new(text).is_ok())
            && prerelease.is_none_or(|text| !text.is_empty() && semver::Prerelease::new(text).is_ok());
        let mut parts = [0; 3];
        let mut count = 0;
        for number in numbers.split('.') {
            // The digits are checked, because `parse` would also accept a plus sign.
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            *parts.get_mut(count)? = number.parse().ok().filter(|_| digits)?;
            count += 1;
        }
        let [major, minor, patch] = parts;
        let written = VersionPattern {
            version: ImageVersion { major, minor, patch },
            parts: count,
            prerelease: prerelease.is_some(),
        };
        is_fine.then_some(written)
    }
}

fn split_optional<'a>(split: Option<(&'a str, &'a str)>, whole: &'a str) -> (&'a str, Option<&'a str>) {
    split.map_or((whole, None), |(before, after)| (before, Some(after)))
}

/// Parsed id of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageId<'a> {
    /// Operating system, the text before the last `-`: `firewall-ubuntu` in `firewall-ubuntu-2.0.20261101`.
    pub os: &'a str,
    pub version: ImageVersion,
}

impl<'a> ImageId<'a> {
    /// Parses an image id.
    ///
    /// # Errors
    /// Fails if no layout can be selected for an image with this id. If the id does not contain a hyphen, the message
    /// is the same as metal-api's.
    pub fn parse(id: &'a str) -> Result<ImageId<'a>, String> {
        let (os, version) = id
            .rsplit_once('-')
            .ok_or_else(|| format!("invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: {id}"))?;
        let written = VersionPattern::parse(version)
            .ok_or_else(|| format!("image:{id} has {version:?} after its last hyphen: invalid semantic version"))?;
        Ok(ImageId { os, version: written.version })
    }
}
