//! Which image a signature is for. What is signed names it, `ubuntu-24.04.20240101` as metal-stack does; it has to be the image
//! that the allocation asks for, and none that is older than the kernel command line allows.

use super::trust::Keys;
use crate::error::{Error, Phase, Result};
use crate::layout::{ImageId, Version};
use std::collections::BTreeMap;

/// In the trusted comment of a signature, which is signed too: before the image's id, where the document itself has no place for it.
pub const IN_COMMENT: &str = "image:";

/// `drophammer.minimum=`: the oldest version of each operating system that may be installed, and the id as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minimum(BTreeMap<String, (Version, String)>);

impl Minimum {
    /// # Errors
    /// One is no id of an image, or is about a system that another one is about; there is no key, so that nobody vouches for names.
    pub fn read(named: &[String], keys: &Keys) -> Result<Minimum> {
        let wrong = |id: &str, why: &str| {
            Error::new(Phase::Settings, format!("kernel command line: drophammer.minimum={id}: {why}"))
        };
        let mut minimum = Minimum::default();
        for id in named {
            let ImageId { os, version } = ImageId::parse(id).map_err(|why| wrong(id, &why))?;
            if keys.0.is_empty() {
                return Err(wrong(
                    id,
                    "without a key nobody vouches for the name of an image: give drophammer.key= too",
                ));
            }
            match minimum.0.insert(os.to_owned(), (version, id.clone())) {
                Some((other, written)) if other != version => {
                    return Err(wrong(id, &format!("{written} is given too")));
                }
                _ => {}
            }
        }
        Ok(minimum)
    }
}

/// # Errors
/// Why the image with that signed name is not the one to install. `wanted` is the allocation's id.
pub fn check(named: Option<&str>, wanted: Option<&str>, minimum: &Minimum) -> Result<(), String> {
    let Some(named) = named else {
        return match minimum.0.is_empty() {
            true => Ok(()),
            false => Err("what is signed names no image, so nobody knows how old it is, and drophammer.minimum= is given: pack it \
                          again with --id OS-VERSION"
                .to_owned()),
        };
    };
    if let Some(wanted) = wanted.filter(|wanted| !is_meant(named, wanted)) {
        return Err(format!(
            "it is signed as {named}, and {wanted} is to be installed: correct the URL of {wanted}, or pack the image with --id {wanted}"
        ));
    }
    if minimum.0.is_empty() {
        return Ok(());
    }
    let ImageId { os, version } = ImageId::parse(named).map_err(|why| format!("it is signed as {named}: {why}"))?;
    match minimum.0.get(os) {
        Some((oldest, written)) if version < *oldest => Err(format!(
            "it is signed as {named}, which is older than {written}, the oldest that drophammer.minimum= allows"
        )),
        _ => Ok(()),
    }
}

/// The same id, or one that leaves out what comes last: `ubuntu-24.04` means each `ubuntu-24.04.*`.
fn is_meant(named: &str, wanted: &str) -> bool {
    let rest = named.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && ImageId::parse(wanted).is_ok()))
}

/// The id in the trusted comment of a signature.
pub fn in_comment(comment: &str) -> Option<&str> {
    comment.split(['\t', ' ']).find_map(|word| word.strip_prefix(IN_COMMENT)).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys(vec!["RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8".parse().unwrap()])
    }

    fn minimum(ids: &[&str]) -> Result<Minimum> {
        Minimum::read(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), &keys())
    }

    #[test]
    fn the_image_is_the_one_that_is_asked_for_and_not_too_old() {
        let other = "it is signed as";
        let older = "is older than";
        for (named, wanted, oldest, says) in [
            (None, Some("ubuntu-24.04.20240101"), &[][..], ""),
            (None, None, &["debian-12"], "names no image"),
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
            // Numbers, not letters.
            (Some("debian-9.0.20260101"), None, &["debian-12"], older),
            (Some("debian-100.0.1"), None, &["debian-12"], ""),
            // Each system has its own.
            (Some("firewall-ubuntu-2.0.20200101"), None, &["ubuntu-24.04", "debian-12"], ""),
            (Some("debian-11.0.20260101"), None, &["ubuntu-24.04", "debian-12"], older),
            (Some("gold"), None, &["debian-12"], "expected <os>-<major>.<minor>"),
        ] {
            let checked = check(named, wanted, &minimum(oldest).unwrap());
            match checked {
                Ok(()) => assert_eq!(says, "", "{named:?} {wanted:?} {oldest:?}"),
                Err(why) => assert!(!says.is_empty() && why.contains(says), "{named:?} {wanted:?} {oldest:?}: {why}"),
            }
        }
    }

    #[test]
    fn a_minimum_that_says_nothing_is_an_error() {
        for (ids, says) in [
            (&["ubuntu"][..], "drophammer.minimum=ubuntu: invalid format for os image"),
            (&["ubuntu-x"], "invalid semantic version"),
            (&[""], "invalid format"),
            (&["ubuntu-24.04", "ubuntu-22.04"], "drophammer.minimum=ubuntu-22.04: ubuntu-24.04 is given too"),
        ] {
            let error = minimum(ids).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(minimum(&["debian-12", "debian-12.0"]).unwrap().0.len(), 1);
        let error = Minimum::read(&["debian-12".to_owned()], &Keys::default()).unwrap_err().to_string();
        assert!(error.contains("without a key nobody vouches"), "{error}");
        assert_eq!(Minimum::read(&[], &Keys::default()).unwrap(), Minimum::default());
    }

    #[test]
    fn a_signed_comment_can_name_the_image() {
        for (comment, id) in [
            ("timestamp:1\tfile:a.sha256\timage:debian-12.0.1\thashed", Some("debian-12.0.1")),
            ("image:debian-12.0.1", Some("debian-12.0.1")),
            ("timestamp:1\tfile:image:x\thashed", None),
            ("timestamp:1\timage:\thashed", None),
            ("", None),
        ] {
            assert_eq!(in_comment(comment), id, "{comment}");
        }
    }
}
