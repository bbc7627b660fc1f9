//! Set of layouts: selection by size and image, and conflicts between layouts.

use super::Layout;
use super::constraints::{Accepted, ImageId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Maximum number of collisions that are reported; two large layouts can have millions.
const MOST_COLLISIONS: usize = 1000;

/// Layouts with their files.
#[derive(Debug, Clone, Default)]
pub struct Set {
    members: Vec<Member>,
}

/// Layout of the set, reduced to the fields that the selection uses.
#[derive(Debug, Clone)]
pub struct Member {
    pub id: String,
    pub file: PathBuf,
    sizes: BTreeSet<String>,
    /// Constraints by operating system.
    images: BTreeMap<String, Claim>,
}

/// Image constraint as written, and the versions that it accepts.
#[derive(Debug, Clone)]
struct Claim {
    written: String,
    accepted: Accepted,
}

/// Two files with the same layout id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub id: String,
    pub first: PathBuf,
    pub second: PathBuf,
}

/// Size and operating system for which two layouts accept some images in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Collision {
    pub size: String,
    pub os: String,
    pub first: Claimant,
    pub second: Claimant,
    /// Image that both layouts accept.
    pub example: String,
}

/// One of the two layouts of a collision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claimant {
    pub id: String,
    pub file: PathBuf,
    /// Constraint as written in the layout.
    pub constraint: String,
}

/// Failed selection: no layout matches the size and image, or several do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotChosen {
    /// Reason in one sentence.
    pub message: String,
    /// Closest candidates: layouts for this size with the images that they accept, or else the known sizes.
    pub nearest: Vec<String>,
}

impl Set {
    /// Builds the set. An invalid constraint accepts nothing; [`super::validate`] reports it.
    pub fn new<'a>(layouts: impl IntoIterator<Item = (&'a Path, &'a Layout)>) -> Set {
        let members = layouts.into_iter().map(|(file, layout)| {
            let claim = |(os, written): (&String, &String)| {
                let accepted = Accepted::by(written).ok()?;
                Some((os.clone(), Claim { written: written.clone(), accepted }))
            };
            Member {
                id: layout.id.clone(),
                file: file.to_owned(),
                sizes: layout.constraints.sizes.iter().cloned().collect(),
                images: layout.constraints.images.iter().filter_map(claim).collect(),
            }
        });
        Set { members: members.collect() }
    }

    /// Returns every layout that has the id of an earlier one.
    pub fn duplicates(&self) -> Vec<Duplicate> {
        let mut first: BTreeMap<&str, &Member> = BTreeMap::new();
        let mut duplicates = Vec::new();
        for member in &self.members {
            let earlier = *first.entry(&member.id).or_insert(member);
            if !std::ptr::eq(earlier, member) {
                let (first, second) = (earlier.file.clone(), member.file.clone());
                duplicates.push(Duplicate { id: member.id.clone(), first, second });
            }
        }
        duplicates
    }

    /// Returns all sizes and operating systems for which two layouts accept the same images, at most a thousand. If there are none, at most
    /// one layout matches any size and image.
    pub fn collisions(&self) -> Vec<Collision> {
        let members = self.members.iter().enumerate();
        let pairs =
            members.flat_map(|(index, first)| self.members[index + 1..].iter().map(move |second| (first, second)));
        // Two layouts with the same id are reported as duplicates.
        let pairs = pairs.filter(|(first, second)| first.id != second.id);
        pairs.flat_map(|(first, second)| first.collisions(second)).take(MOST_COLLISIONS).collect()
    }

    /// Returns the layout for a size and an image id.
    ///
    /// # Errors
    /// No layout or several match, or the image id has no version.
    pub fn select(&self, size: &str, image: &str) -> Result<&Member, NotChosen> {
        let alone = |message| NotChosen { message, nearest: Vec::new() };
        let id = ImageId::parse(image).map_err(alone)?;
        let chosen: Vec<&Member> = self.members.iter().filter(|member| member.takes(size, &id)).collect();
        match chosen[..] {
            [one] => Ok(one),
            [] => Err(NotChosen {
                message: format!("could not find a matching filesystemLayout for size:{size} and image:{image}"),
                nearest: self.nearest(size, id.os),
            }),
            _ => Err(NotChosen {
                message: format!(
                    "{} layouts match size:{size} and image:{image}: change their constraints so that only one matches, or name the layout in the allocation",
                    chosen.len()
                ),
                nearest: chosen.iter().map(|member| member.describe(id.os)).collect(),
            }),
        }
    }

    fn nearest(&self, size: &str, os: &str) -> Vec<String> {
        let with_size: Vec<&Member> = self.members.iter().filter(|member| member.sizes.contains(size)).collect();
        if !with_size.is_empty() {
            return with_size.iter().map(|member| member.describe(os)).collect();
        }
        let sizes: BTreeSet<&str> =
            self.members.iter().flat_map(|member| member.sizes.iter().map(String::as_str)).collect();
        let sizes = sizes.into_iter().collect::<Vec<_>>().join(", ");
        vec![format!("no layout lists this size; listed sizes: {}", if sizes.is_empty() { "none" } else { &sizes })]
    }
}

impl Member {
    fn takes(&self, size: &str, image: &ImageId) -> bool {
        self.sizes.contains(size)
            && self.images.get(image.os).is_some_and(|claim| claim.accepted.contains(image.version))
    }

    fn collisions<'a>(&'a self, other: &'a Member) -> impl Iterator<Item = Collision> + 'a {
        let both = self.images.iter().filter_map(|(os, claim)| {
            let others = other.images.get(os)?;
            Some((os, claim, others, claim.accepted.common(&others.accepted)?))
        });
        let common: Vec<_> = both.collect();
        let sizes = self.sizes.intersection(&other.sizes);
        sizes.flat_map(move |size| {
            let collision = |(os, claim, others, version): &(&String, &Claim, &Claim, _)| Collision {
                size: size.clone(),
                os: (*os).clone(),
                first: self.claimant(claim),
                second: other.claimant(others),
                example: format!("{os}-{version}"),
            };
            common.iter().map(collision).collect::<Vec<_>>()
        })
    }

    fn claimant(&self, claim: &Claim) -> Claimant {
        Claimant { id: self.id.clone(), file: self.file.clone(), constraint: claim.written.clone() }
    }

    /// Describes the images that the layout accepts: `default (default.yaml) accepts debian ">= 10"`.
    fn describe(&self, os: &str) -> String {
        let takes = match self.images.get(os) {
            Some(claim) => format!("accepts {os} {:?}", claim.written),
            None if self.images.is_empty() => "accepts no image: it is only used if an allocation names it".to_owned(),
            None => {
                let all = self.images.iter().map(|(os, claim)| format!("{os} {:?}", claim.written));
                format!("does not accept {os}, but {}", all.collect::<Vec<_>>().join(", "))
            }
        };
        format!("{} ({}) {takes}", self.id, self.file.display())
    }
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Duplicate { id, first, second } = self;
        write!(f, "{}: id: filesystemlayout:{id} already exists, in {}", second.display(), first.display())
    }
}

impl fmt::Display for Collision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Collision { size, os, first, second, example } = self;
        write!(f, "these combinations already exist:{size}->[{os} {}]: ", second.constraint)?;
        write!(f, "{example} on {size} would get {first} or {second}")
    }
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {:?})", self.id, self.file.display(), self.constraint)
    }
}

impl fmt::Display for NotChosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.nearest.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
