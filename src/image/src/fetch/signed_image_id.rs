//! Checks the image id that a signature covers, such as metal-stack's `ubuntu-24.04.20240101`. The id must be the one
//! that the allocation requests, and its version must not be older than the minimum version in the ramdisk or on the
//! kernel command line.

use super::sidecar_verification::SignatureKeys;
use common::error::{Context, Error, Phase, Result};
use model::layout::{ImageId, ImageVersion};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Prefix of the image id in the trusted comment of a signature, for signed documents that do not contain the id, such
/// as `IMAGE.sha256`.
pub const IN_COMMENT: &str = "image:";

/// File in the ramdisk with one image id per line: the oldest image of each operating system that may be installed.
pub const MINIMUM_FILE: &str = "/etc/drophammer/minimum";

/// Oldest permitted version of each operating system, and the image id from which the version was parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MinimumVersions(BTreeMap<String, (ImageVersion, String)>);

impl MinimumVersions {
    /// Reads the ids in a file of the ramdisk, and those on the kernel command line (`drophammer.minimum=`). The higher
    /// version applies, so the boot server, which controls the command line, can raise the ramdisk's minimum, but
    /// cannot lower or remove it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, an id is invalid, or one source contains two ids with different
    /// versions of the same operating system. Also returns an error if there are ids but no signature keys, because the
    /// id of an unsigned image cannot be trusted.
    pub fn read(named: &[String], file: &Path, keys: &SignatureKeys) -> Result<MinimumVersions> {
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.context(Phase::Settings, || format!("read {}", file.display()))?,
        };
        let own: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let own = MinimumVersions::parse_ids(&own, &format!("{}: ", file.display()), keys)?;
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let mut minimum = MinimumVersions::parse_ids(&named, "kernel command line: drophammer.minimum=", keys)?;
        for (os, (version, written)) in own.0 {
            let named = minimum.0.get(&os);
            if named.is_some_and(|(named, _)| *named >= version) {
                continue;
            }
            if let Some((_, named)) = named {
                tracing::warn!("ignoring drophammer.minimum={named}: the ramdisk requires at least {written}");
            }
            minimum.0.insert(os, (version, written));
        }
        Ok(minimum)
    }

    fn parse_ids(ids: &[&str], place: &str, keys: &SignatureKeys) -> Result<MinimumVersions> {
        let wrong = |id: &str, why: &str| Error::new(Phase::Settings, format!("{place}{id}: {why}"));
        let mut minimum = MinimumVersions::default();
        for id in ids {
            let ImageId { os, version } = ImageId::parse(id).map_err(|why| wrong(id, &why))?;
            if keys.0.is_empty() {
                return Err(wrong(
                    id,
                    "image ids cannot be verified without a signature key; also set drophammer.key=",
                ));
            }
            match minimum.0.insert(os.to_owned(), (version, (*id).to_owned())) {
                Some((other, written)) if other != version => {
                    return Err(wrong(id, &format!("conflicts with {written}")));
                }
                _ => {}
            }
        }
        Ok(minimum)
    }
}

/// Compares `named`, the image id that the signature covers, with `wanted`, the image id that the allocation specifies,
/// and with the minimum version.
///
/// # Errors
/// Returns the reason if the check fails.
pub(crate) fn check_signed_name(
    named: Option<&str>,
    wanted: Option<&str>,
    minimum: &MinimumVersions,
) -> Result<(), String> {
    let Some(named) = named else {
        return match minimum.0.is_empty() {
            true => Ok(()),
            false => {
                Err("the signature does not contain an image id, which is required to check the minimum version; \
                          pack the image again with --id OS-VERSION, or sign it with cosign sign -a image=OS-VERSION"
                    .to_owned())
            }
        };
    };
    if let Some(wanted) = wanted.filter(|wanted| !matches_requested_id(named, wanted)) {
        return Err(format!(
            "the image is signed as {named}, but {wanted} is requested; correct the URL of {wanted}, or pack the image \
             with --id {wanted} (if the image is in a registry, sign it with -a image={wanted})"
        ));
    }
    if minimum.0.is_empty() {
        return Ok(());
    }
    let ImageId { os, version } =
        ImageId::parse(named).map_err(|why| format!("the image is signed as {named}: {why}"))?;
    match minimum.0.get(os) {
        Some((oldest, written)) if version < *oldest => {
            Err(format!("the image is signed as {named}, which is older than {written}, the oldest version allowed"))
        }
        _ => Ok(()),
    }
}

/// Returns whether `wanted` matches `named`. The ids match if they are equal, or if `wanted` omits the last components
/// of the version: `ubuntu-24.04` matches each id `ubuntu-24.04.*`.
fn matches_requested_id(named: &str, wanted: &str) -> bool {
    let rest = named.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && ImageId::parse(wanted).is_ok()))
}

/// Returns the image id in the trusted comment of a signature, if the comment contains an image id.
pub(crate) fn id_in_comment(comment: &str) -> Option<&str> {
    comment.split(['\t', ' ']).find_map(|word| word.strip_prefix(IN_COMMENT)).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> SignatureKeys {
        SignatureKeys(vec!["RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8".parse().unwrap()])
    }

    fn minimum(ids: &[&str]) -> Result<MinimumVersions> {
        with_file(ids, Path::new("/no/such/file"), &keys())
    }

    fn with_file(ids: &[&str], file: &Path, keys: &SignatureKeys) -> Result<MinimumVersions> {
        MinimumVersions::read(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), file, keys)
    }

    #[test]
    fn command_line_raises_the_minimum_of_the_ramdisk() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("minimum");
        std::fs::write(&file, "debian-12.0.20261101\n\n  ubuntu-24.04\n").unwrap();
        for (named, debian, ubuntu) in [
            (&[][..], "debian-12.0.20261101", "ubuntu-24.04"),
            (&["debian-12.0.20261001"], "debian-12.0.20261101", "ubuntu-24.04"),
            (&["debian-1"], "debian-12.0.20261101", "ubuntu-24.04"),
            (&["debian-13", "ubuntu-24.04.20260101"], "debian-13", "ubuntu-24.04.20260101"),
            (&["ubuntu-22.04"], "debian-12.0.20261101", "ubuntu-24.04"),
        ] {
            let minimum = with_file(named, &file, &keys()).unwrap();
            let written: Vec<&str> = minimum.0.values().map(|(_, written)| written.as_str()).collect();
            assert_eq!(written, [debian, ubuntu], "{named:?}");
        }
        let other = with_file(&["alpine-3.20"], &file, &keys()).unwrap();
        assert_eq!(other.0.keys().collect::<Vec<_>>(), ["alpine", "debian", "ubuntu"]);
        let error = with_file(&[], &file, &SignatureKeys::default()).unwrap_err().to_string();
        assert!(
            error.contains("minimum: debian-12.0.20261101: image ids cannot be verified without a signature key"),
            "{error}"
        );
        for (text, says) in [("debian\n", ": debian: invalid format"), ("a-2\na-1\n", ": a-1: conflicts with a-2")] {
            std::fs::write(&file, text).unwrap();
            let error = with_file(&[], &file, &keys()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(with_file(&[], directory.path(), &keys()).is_err());
    }

    #[test]
    fn image_must_be_the_requested_one_and_recent_enough() {
        let other = "signed as";
        let older = "is older than";
        for (named, wanted, oldest, says) in [
            (None, Some("ubuntu-24.04.20240101"), &[][..], ""),
            (None, None, &["debian-12"], "does not contain an image id"),
            (Some("ubuntu-24.04.20240101"), None, &[], ""),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu-24.04.20240101"), &[], ""),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu-24.04"), &[], ""),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu-24"), &[], ""),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu-24.0"), &[], other),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu-24.04.20240102"), &[], other),
            (Some("ubuntu-24.04.20240101"), Some("ubuntu"), &[], other),
            (Some("ubuntu-24.04.20240101"), Some(""), &[], other),
            (Some("debian-12.0.20261101"), Some("ubuntu-24.04.20240101"), &[], other),
            (Some("gold"), Some("gold"), &[], ""),
            (Some("ubuntu-24.04.20240101"), None, &["ubuntu-24.04.20240101"], ""),
            (Some("ubuntu-24.04.20231231"), None, &["ubuntu-24.04.20240101"], older),
            (Some("ubuntu-22.04.20260101"), None, &["ubuntu-24.04"], older),
            // Versions are compared as numbers, not as text.
            (Some("debian-9.0.20260101"), None, &["debian-12"], older),
            (Some("debian-100.0.1"), None, &["debian-12"], ""),
            // Each operating system has its own minimum.
            (Some("firewall-ubuntu-2.0.20200101"), None, &["ubuntu-24.04", "debian-12"], ""),
            (Some("debian-11.0.20260101"), None, &["ubuntu-24.04", "debian-12"], older),
            (Some("gold"), None, &["debian-12"], "expected <os>-<major>.<minor>"),
        ] {
            let checked = check_signed_name(named, wanted, &minimum(oldest).unwrap());
            match checked {
                Ok(()) => assert_eq!(says, "", "{named:?} {wanted:?} {oldest:?}"),
                Err(why) => assert!(!says.is_empty() && why.contains(says), "{named:?} {wanted:?} {oldest:?}: {why}"),
            }
        }
    }

    #[test]
    fn invalid_minimum_is_an_error() {
        for (ids, says) in [
            (&["ubuntu"][..], "drophammer.minimum=ubuntu: invalid format for os image"),
            (&["ubuntu-x"], "invalid semantic version"),
            (&[""], "invalid format"),
            (&["ubuntu-24.04", "ubuntu-22.04"], "drophammer.minimum=ubuntu-22.04: conflicts with ubuntu-24.04"),
        ] {
            let error = minimum(ids).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(minimum(&["debian-12", "debian-12.0"]).unwrap().0.len(), 1);
        let error =
            with_file(&["debian-12"], Path::new("/no/such/file"), &SignatureKeys::default()).unwrap_err().to_string();
        assert!(error.contains("image ids cannot be verified without a signature key"), "{error}");
        assert_eq!(
            with_file(&[], Path::new("/no/such/file"), &SignatureKeys::default()).unwrap(),
            MinimumVersions::default()
        );
    }

    #[test]
    fn trusted_comment_may_name_the_image() {
        for (comment, id) in [
            ("timestamp:1\tfile:a.sha256\timage:debian-12.0.1\thashed", Some("debian-12.0.1")),
            ("image:debian-12.0.1", Some("debian-12.0.1")),
            ("timestamp:1\tfile:image:x\thashed", None),
            ("timestamp:1\timage:\thashed", None),
            ("", None),
        ] {
            assert_eq!(id_in_comment(comment), id, "{comment}");
        }
    }
}
