//! The places that have one image: which of them is asked now, which are asked no more, and what each of them has said.

use crate::image::get::Part;
use std::io;

pub struct Places {
    all: Vec<Place>,
    /// Index of the one that is asked.
    at: usize,
}

/// One of the places that have the image.
pub struct Place {
    pub url: String,
    /// The ETag of the first answer with bytes in it, if that had one.
    pub answered: Option<Option<String>>,
    /// Why it failed the last time.
    pub why: String,
    lost: Option<Lost>,
}

/// A place that is not asked any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It cannot continue what came so far, but may have the image from its start.
    ForThisStart,
    ForGood,
}

/// Why a place gave no stream.
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

    /// The place that is asked now.
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

    /// How many can still be asked.
    pub fn left(&self) -> usize {
        self.all.iter().filter(|place| place.lost.is_none()).count()
    }

    /// This place is asked no more.
    pub fn lose(&mut self, lost: Lost) {
        self.here_mut().lost = Some(lost);
    }

    /// On to the next place that can still be asked, if there is one; returns the URL of the one before.
    pub fn go_on(&mut self) -> Option<String> {
        let count = self.all.len();
        let next = (1..count).map(|step| (self.at + step) % count).find(|&index| self.all[index].lost.is_none())?;
        let before = self.here().url.clone();
        self.at = next;
        Some(before)
    }

    /// Whether one that cannot go on may have the image from its start.
    pub fn one_may_begin(&self) -> bool {
        self.all.iter().any(|place| place.lost == Some(Lost::ForThisStart))
    }

    /// With what each place has said, when there are several.
    pub fn failed(&self, why: &str, position: u64) -> io::Error {
        if let [place] = &self.all[..] {
            return io::Error::other(format!("fetch {}: {why}, at byte {position}", place.url));
        }
        let all: Vec<String> = self.all.iter().map(|place| format!("{}: {}", place.url, place.why)).collect();
        io::Error::other(format!("no place is left to fetch from, at byte {position}: {}", all.join("; ")))
    }
}

impl Place {
    /// What proves that this place still has the same image. A weak ETag promises the same meaning, not the same bytes
    /// (RFC 9110 §8.8.1).
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
