//! List of the mirrors of one image, with the current mirror, the excluded mirrors, and the last error of each mirror.

use crate::fetch::ImagePart;
use linux::http::proxies::{ProxyScope, describe_proxy};
use std::io;

pub(crate) struct MirrorList {
    all: Vec<MirrorState>,
    /// Index of the current mirror.
    at: usize,
}

/// One mirror of the image.
pub(crate) struct MirrorState {
    pub url: String,
    /// ETag of this mirror's first response with data. The outer `Option` is `None` before that response; the inner one
    /// is `None` if the response had no ETag.
    pub answered: Option<Option<String>>,
    /// Last error at this mirror; empty if there was no error.
    pub why: String,
    lost: Option<MirrorExclusion>,
}

/// Reason for excluding a mirror.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MirrorExclusion {
    /// The mirror cannot continue this download, but may serve the image from its beginning.
    UntilRestart,
    Permanently,
}

/// Failure to open a stream from the current mirror, with an error message.
pub(crate) enum OpenFailure {
    Transient(String),
    Lost(MirrorExclusion, String),
}

pub(crate) type OpenResult<T> = Result<T, OpenFailure>;

impl MirrorList {
    pub(crate) fn of_image(image: &ImagePart) -> MirrorList {
        let urls = std::iter::once(&image.url).chain(&image.mirrors).cloned();
        let place = |url| MirrorState { url, answered: None, why: String::new(), lost: None };
        MirrorList { all: urls.map(place).collect(), at: 0 }
    }

    /// Returns the current mirror.
    pub(crate) fn current(&self) -> &MirrorState {
        &self.all[self.at]
    }

    pub(crate) fn current_mut(&mut self) -> &mut MirrorState {
        &mut self.all[self.at]
    }

    pub(crate) fn is_first(&self) -> bool {
        self.at == 0
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.all.len() == 1
    }

    /// Returns the number of mirrors that are not excluded.
    pub(crate) fn count_usable(&self) -> usize {
        self.all.iter().filter(|place| place.lost.is_none()).count()
    }

    /// Excludes the current mirror.
    pub(crate) fn exclude_current(&mut self, lost: MirrorExclusion) {
        self.current_mut().lost = Some(lost);
    }

    /// Switches to the next mirror that is not excluded, and returns the URL of the previous mirror; `None` if no other
    /// mirror is left.
    pub(crate) fn switch_to_next(&mut self) -> Option<String> {
        let count = self.all.len();
        let next = (1..count).map(|step| (self.at + step) % count).find(|&index| self.all[index].lost.is_none())?;
        let before = self.current().url.clone();
        self.at = next;
        Some(before)
    }

    /// Returns whether an excluded mirror may serve the image from its beginning.
    pub(crate) fn can_restart(&self) -> bool {
        self.all.iter().any(|place| place.lost == Some(MirrorExclusion::UntilRestart))
    }

    /// Returns the final error of the download. If there are several mirrors, the final error contains the last error
    /// of each mirror.
    pub(crate) fn final_error(&self, why: &str, position: u64) -> io::Error {
        if let [place] = &self.all[..] {
            let proxy = describe_proxy(&place.url, ProxyScope::All);
            return io::Error::other(format!("fetch {url}{proxy}: {why}, at byte {position}", url = place.url));
        }
        let all: Vec<String> = self.all.iter().map(|place| format!("{}: {}", place.url, place.why)).collect();
        io::Error::other(format!("all mirrors have failed, at byte {position}: {reasons}", reasons = all.join("; ")))
    }
}

impl MirrorState {
    /// Returns the ETag of the image at this mirror if this ETag is strong. If a later response has the same strong
    /// ETag, the image consists of the same bytes; equal weak ETags do not prove this (RFC 9110 §8.8.1).
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        self.answered.as_ref()?.as_deref().filter(|etag| !etag.starts_with("W/"))
    }
}

pub(crate) fn fail_for_good(why: String) -> OpenFailure {
    OpenFailure::Lost(MirrorExclusion::Permanently, why)
}

pub(crate) fn fail_for_this_start(why: &str) -> OpenFailure {
    OpenFailure::Lost(MirrorExclusion::UntilRestart, why.to_owned())
}
