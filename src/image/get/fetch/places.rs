//! Mirrors of one image: the current one, those that are excluded, and the last error of each.

use crate::image::get::Part;
use std::io;

pub struct Places {
    all: Vec<Place>,
    /// Index of the current mirror.
    at: usize,
}

/// One mirror of the image.
pub struct Place {
    pub url: String,
    /// ETag of the first response with data, if it had one; the outer `Option` is `None` before that response.
    pub answered: Option<Option<String>>,
    /// Last error.
    pub why: String,
    lost: Option<Lost>,
}

/// Reason for excluding a mirror.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It cannot continue this download, but may have the image from its start.
    ForThisStart,
    ForGood,
}

/// Reason for failing to open a stream.
pub enum Failure {
    MayPass(String),
    Lost(Lost, String),
}

pub type Opened<T> = Result<T, Failure>;

impl Places {
    pub fn of(image: &Part) -> Places {
        let urls = std::iter::once(&image.url).chain(&image.mirrors).cloned();
        let place = |url| Place { url, answered: None, why: String::new(), lost: None };
        Places { all: urls.map(place).collect(), at: 0 }
    }

    /// Returns the current mirror.
    pub fn here(&self) -> &Place {
        &self.all[self.at]
    }

    pub fn here_mut(&mut self) -> &mut Place {
        &mut self.all[self.at]
    }

    pub fn is_first(&self) -> bool {
        self.at == 0
    }

    pub fn is_alone(&self) -> bool {
        self.all.len() == 1
    }

    /// Returns the number of mirrors that can still be used.
    pub fn left(&self) -> usize {
        self.all.iter().filter(|place| place.lost.is_none()).count()
    }

    /// Excludes the current mirror.
    pub fn lose(&mut self, lost: Lost) {
        self.here_mut().lost = Some(lost);
    }

    /// Switches to the next usable mirror, if there is one, and returns the URL of the previous one.
    pub fn go_on(&mut self) -> Option<String> {
        let count = self.all.len();
        let next = (1..count).map(|step| (self.at + step) % count).find(|&index| self.all[index].lost.is_none())?;
        let before = self.here().url.clone();
        self.at = next;
        Some(before)
    }

    /// Returns whether an excluded mirror may have the image from its start.
    pub fn one_may_begin(&self) -> bool {
        self.all.iter().any(|place| place.lost == Some(Lost::ForThisStart))
    }

    /// Returns the final error, with the last error of each mirror if there are several.
    pub fn failed(&self, why: &str, position: u64) -> io::Error {
        if let [place] = &self.all[..] {
            return io::Error::other(format!("fetch {}: {why}, at byte {position}", place.url));
        }
        let all: Vec<String> = self.all.iter().map(|place| format!("{}: {}", place.url, place.why)).collect();
        io::Error::other(format!("no mirror is left to fetch from, at byte {position}: {}", all.join("; ")))
    }
}

impl Place {
    /// Returns the ETag that proves that this mirror still has the same image. A weak ETag promises the same meaning,
    /// not the same bytes (RFC 9110 §8.8.1).
    pub fn strong_etag(&self) -> Option<&str> {
        self.answered.as_ref()?.as_deref().filter(|etag| !etag.starts_with("W/"))
    }
}

pub fn for_good(why: String) -> Failure {
    Failure::Lost(Lost::ForGood, why)
}

pub fn not_from_here(why: &str) -> Failure {
    Failure::Lost(Lost::ForThisStart, why.to_owned())
}
