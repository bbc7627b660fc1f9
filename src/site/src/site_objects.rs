//! Objects in the operator's directory to which allocations can refer.

use crate::deploy_templates::DeployTemplates;
use crate::image_states::ImageStates;
use crate::operator_files::{ImageSpec, format_at, suggest_name};
use crate::plan_approvals::Approvals;
use crate::sizes::MachineSize;
use crate::unusable_files::UnusableFiles;
use common::error_code::ErrorCode;
use marked_yaml::Spanned;
use model::layout::Layout;
use model::layout::layout_set::LayoutSet;
use std::collections::BTreeMap;

/// Objects that allocations can refer to.
#[derive(Debug, Clone, Default)]
pub struct SiteObjects {
    /// Layouts by id.
    pub layouts: BTreeMap<String, Layout>,
    pub unusable_layouts: UnusableFiles,
    pub set: LayoutSet,
    /// Images by id; `None` while the digest is not known.
    pub images: BTreeMap<String, Option<ImageSpec>>,
    pub unusable_images: UnusableFiles,
    pub templates: DeployTemplates,
    /// Hidden and blacklisted images.
    pub states: ImageStates,
    pub approvals: Approvals,
    /// Sizes by id.
    pub sizes: BTreeMap<String, MachineSize>,
}

impl SiteObjects {
    /// Returns the ids of the images that are neither hidden nor blacklisted. Only these images are shown.
    pub fn listed_images(&self) -> impl Iterator<Item = &str> {
        let is_listed = |id: &&str| !self.states.is_hidden(id) && !self.states.is_blacklisted(id);
        self.images.keys().map(String::as_str).filter(is_listed)
    }

    /// Returns why there is no layout with this id: it has no file, or its file is invalid or unreadable.
    pub fn explain_absent_layout(&self, id: &str) -> AbsentObject {
        match self.unusable_layouts.problem(id) {
            Some(problem) => {
                let reason = format!("layout {id:?} cannot be used: {problem}");
                AbsentObject { code: ErrorCode::Layout, reason }
            }
            None => {
                let others = suggest_name(id, self.layouts.keys().map(String::as_str));
                let reason = format!("layout {id:?} not found in layouts/{others}");
                AbsentObject { code: ErrorCode::UnknownReference, reason }
            }
        }
    }

    /// Returns why there is no image with this id: it has no file, or its file is invalid or unreadable.
    pub fn explain_absent_image(&self, id: &str) -> AbsentObject {
        match self.unusable_images.problem(id) {
            Some(problem) => {
                let reason = format!("image {id:?} cannot be used: {problem}");
                AbsentObject { code: ErrorCode::SiteFile, reason }
            }
            None => {
                let reason = format!("image {id:?} not found in images/{}", suggest_name(id, self.listed_images()));
                AbsentObject { code: ErrorCode::UnknownReference, reason }
            }
        }
    }
}

/// Reason why an object that is referred to cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentObject {
    pub code: ErrorCode,
    pub reason: String,
}

impl AbsentObject {
    /// Formats the reason with the position of the reference, and with its code.
    pub(crate) fn format_at(&self, reference: &Spanned<String>) -> String {
        self.code.annotate(format_at(reference, &self.reason))
    }
}
