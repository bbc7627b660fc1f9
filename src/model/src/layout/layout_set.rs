//! Set of layouts, from which a layout is selected by machine size and image. The set can detect conflicts between its
//! layouts.

use super::Layout;
use super::image_version_constraints::{ImageId, VersionSet};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Maximum number of collisions that are reported. Two large layouts can have millions of collisions.
const MAXIMUM_COLLISIONS: usize = 1000;

/// Layouts, each with the file that contains it.
#[derive(Debug, Clone, Default)]
pub struct LayoutSet {
    members: Vec<SetMember>,
}

/// Layout of the set, reduced to the fields that are used in the selection.
#[derive(Debug, Clone)]
pub struct SetMember {
    pub id: String,
    pub file: PathBuf,
    sizes: BTreeSet<String>,
    /// Image constraints by operating system.
    images: BTreeMap<String, ImageClaim>,
}

/// Image constraint as written, and the versions that it accepts.
#[derive(Debug, Clone)]
struct ImageClaim {
    written: String,
    accepted: VersionSet,
}

/// Two layouts with the same id, with the files that contain them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DuplicateLayout {
    pub id: String,
    pub first: PathBuf,
    pub second: PathBuf,
}

/// Size and operating system for which two layouts accept the same images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayoutCollision {
    pub size: String,
    pub os: String,
    pub first: CollidingLayout,
    pub second: CollidingLayout,
    /// Id of an image that both layouts accept.
    pub example: String,
}

/// One of the two layouts of a collision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollidingLayout {
    pub id: String,
    pub file: PathBuf,
    /// Constraint as written in the layout.
    pub constraint: String,
}

/// Failed selection. Either no layout or more than one layout matches the size and image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SelectionError {
    /// Reason in one sentence.
    pub message: String,
    /// Description of the closest candidates: all layouts for this size with the images that they accept. If there are
    /// no layouts for this size, lists the known sizes.
    pub nearest: Vec<String>,
}

impl LayoutSet {
    /// Builds the set. An invalid constraint accepts no image; it is reported by [`super::validation`].
    pub fn new<'a>(layouts: impl IntoIterator<Item = (&'a Path, &'a Layout)>) -> LayoutSet {
        let members = layouts.into_iter().map(|(file, layout)| {
            let claim = |(os, written): (&String, &String)| {
                let accepted = VersionSet::from_constraint(written).ok()?;
                Some((os.clone(), ImageClaim { written: written.clone(), accepted }))
            };
            SetMember {
                id: layout.id.clone(),
                file: file.to_owned(),
                sizes: layout.constraints.sizes.iter().cloned().collect(),
                images: layout.constraints.images.iter().filter_map(claim).collect(),
            }
        });
        LayoutSet { members: members.collect() }
    }

    /// Returns every layout that has the same id as an earlier layout of the set.
    pub fn find_duplicates(&self) -> Vec<DuplicateLayout> {
        let mut first: BTreeMap<&str, &SetMember> = BTreeMap::new();
        let mut duplicates = Vec::new();
        for member in &self.members {
            let earlier = *first.entry(&member.id).or_insert(member);
            if !std::ptr::eq(earlier, member) {
                let (first, second) = (earlier.file.clone(), member.file.clone());
                duplicates.push(DuplicateLayout { id: member.id.clone(), first, second });
            }
        }
        duplicates
    }

    /// Returns the collisions, at most a thousand: combinations of size and operating system for which two layouts
    /// accept the same images. If there are no collisions, at most one layout matches any size and image.
    pub fn find_collisions(&self) -> Vec<LayoutCollision> {
        let members = self.members.iter().enumerate();
        let pairs =
            members.flat_map(|(index, first)| self.members[index + 1..].iter().map(move |second| (first, second)));
        // Two layouts with the same id are not a collision, because they are reported as duplicates.
        let pairs = pairs.filter(|(first, second)| first.id != second.id);
        pairs.flat_map(|(first, second)| first.collisions_with(second)).take(MAXIMUM_COLLISIONS).collect()
    }

    /// Returns the layout for a size and an image id.
    ///
    /// # Errors
    /// Fails if no layout or more than one layout matches, or if the image id contains no version.
    pub fn select(&self, size: &str, image: &str) -> Result<&SetMember, SelectionError> {
        let alone = |message| SelectionError { message, nearest: Vec::new() };
        let id = ImageId::parse(image).map_err(alone)?;
        let chosen: Vec<&SetMember> = self.members.iter().filter(|member| member.accepts(size, &id)).collect();
        match chosen[..] {
            [one] => Ok(one),
            [] => Err(SelectionError {
                message: format!("could not find a matching filesystemLayout for size:{size} and image:{image}"),
                nearest: self.describe_nearest(size, id.os),
            }),
            _ => Err(SelectionError {
                message: format!(
                    "{count} layouts match size:{size} and image:{image}: change their constraints so that only one matches, or name the layout in the allocation",
                    count = chosen.len()
                ),
                nearest: chosen.iter().map(|member| member.describe_images(id.os)).collect(),
            }),
        }
    }

    /// Checks all combinations of these sizes and images. Returns at most a thousand errors, one for each combination
    /// that no layout or more than one layout matches. Returns no errors if no layout has constraints on both sizes and
    /// images, because a layout is then used only if an allocation specifies this layout.
    pub fn find_undecided<'a>(
        &self,
        sizes: impl IntoIterator<Item = &'a str>,
        images: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Vec<SelectionError> {
        if self.members.iter().all(|member| member.sizes.is_empty() || member.images.is_empty()) {
            return Vec::new();
        }
        let pairs = sizes.into_iter().flat_map(|size| images.clone().into_iter().map(move |image| (size, image)));
        pairs.filter_map(|(size, image)| self.select(size, image).err()).take(MAXIMUM_COLLISIONS).collect()
    }

    fn describe_nearest(&self, size: &str, os: &str) -> Vec<String> {
        let with_size: Vec<&SetMember> = self.members.iter().filter(|member| member.sizes.contains(size)).collect();
        if !with_size.is_empty() {
            return with_size.iter().map(|member| member.describe_images(os)).collect();
        }
        let sizes: BTreeSet<&str> =
            self.members.iter().flat_map(|member| member.sizes.iter().map(String::as_str)).collect();
        let sizes = sizes.into_iter().collect::<Vec<_>>().join(", ");
        vec![format!(
            "none of the layouts lists this size; listed sizes: {sizes}",
            sizes = if sizes.is_empty() { "none" } else { &sizes }
        )]
    }
}

impl SetMember {
    fn accepts(&self, size: &str, image: &ImageId) -> bool {
        self.sizes.contains(size)
            && self.images.get(image.os).is_some_and(|claim| claim.accepted.contains(image.version))
    }

    fn collisions_with<'a>(&'a self, other: &'a SetMember) -> impl Iterator<Item = LayoutCollision> + 'a {
        let both = self.images.iter().filter_map(|(os, claim)| {
            let others = other.images.get(os)?;
            Some((os, claim, others, claim.accepted.find_common(&others.accepted)?))
        });
        let common: Vec<_> = both.collect();
        let sizes = self.sizes.intersection(&other.sizes);
        sizes.flat_map(move |size| {
            let collision = |(os, claim, others, version): &(&String, &ImageClaim, &ImageClaim, _)| LayoutCollision {
                size: size.clone(),
                os: (*os).clone(),
                first: self.claimant(claim),
                second: other.claimant(others),
                example: format!("{os}-{version}"),
            };
            common.iter().map(collision).collect::<Vec<_>>()
        })
    }

    fn claimant(&self, claim: &ImageClaim) -> CollidingLayout {
        CollidingLayout { id: self.id.clone(), file: self.file.clone(), constraint: claim.written.clone() }
    }

    /// Describes the images that the layout accepts: `default (default.yaml) accepts debian ">= 10"`.
    fn describe_images(&self, os: &str) -> String {
        let takes = match self.images.get(os) {
            Some(claim) => format!("accepts {os} {:?}", claim.written),
            None if self.images.is_empty() => {
                "does not accept any image, so it is used only by allocations that specify it".to_owned()
            }
            None => {
                let all = self.images.iter().map(|(os, claim)| format!("{os} {:?}", claim.written));
                format!("does not accept {os}, but {}", all.collect::<Vec<_>>().join(", "))
            }
        };
        format!("{} ({}) {takes}", self.id, self.file.display())
    }
}

impl fmt::Display for DuplicateLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DuplicateLayout { id, first, second } = self;
        write!(
            f,
            "{second_file}: id: filesystemlayout:{id} already exists, in {first_file}",
            second_file = second.display(),
            first_file = first.display()
        )
    }
}

impl fmt::Display for LayoutCollision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LayoutCollision { size, os, first, second, example } = self;
        write!(f, "these combinations already exist:{size}->[{os} {}]: ", second.constraint)?;
        write!(f, "{example} on {size} would get {first} or {second}")
    }
}

impl fmt::Display for CollidingLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {:?})", self.id, self.file.display(), self.constraint)
    }
}

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.nearest.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
