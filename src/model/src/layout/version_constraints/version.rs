//! Image versions, parsed as loosely as metal-api does: minor and patch are optional.

use std::fmt;

/// Version with major, minor and patch. Images have no prereleases: the text after the last `-` of an id is the whole version.
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

/// Version as written: `10` and `10.0` stand for more versions than `10.0.0`.
#[derive(Debug, Clone, Copy)]
pub struct VersionPattern {
    /// Parts that are not specified are 0.
    pub version: ImageVersion,
    /// Number of specified parts, 1 to 3.
    pub parts: usize,
    /// True if a prerelease is specified, which precedes `version`.
    pub prerelease: bool,
}

impl VersionPattern {
    /// Parses a version as loosely as Masterminds/semver: with an optional `v` and leading zeros; build metadata is ignored.
    pub fn parse(text: &str) -> Option<VersionPattern> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, metadata) = split_optional(text.split_once('+'), text);
        let (numbers, prerelease) = split_optional(text.split_once('-'), text);
        let is_fine = metadata.is_none_or(|text| !text.is_empty() && semver::BuildMetadata::new(text).is_ok())
            && prerelease.is_none_or(|text| !text.is_empty() && semver::Prerelease::new(text).is_ok());
        let mut parts = [0; 3];
        let mut count = 0;
        for number in numbers.split('.') {
            // `parse` alone would accept a plus sign.
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
    /// Text before the last `-`: `firewall-ubuntu` of `firewall-ubuntu-2.0.20261101`.
    pub os: &'a str,
    pub version: ImageVersion,
}

impl<'a> ImageId<'a> {
    /// Parses an image id.
    ///
    /// # Errors
    /// No layout can be selected for this image; the message is mostly metal-api's.
    pub fn parse(id: &'a str) -> Result<ImageId<'a>, String> {
        let (os, version) = id
            .rsplit_once('-')
            .ok_or_else(|| format!("invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: {id}"))?;
        let written = VersionPattern::parse(version)
            .ok_or_else(|| format!("image:{id} has {version:?} after its last hyphen: invalid semantic version"))?;
        Ok(ImageId { os, version: written.version })
    }
}
