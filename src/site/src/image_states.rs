//! `DIR/image-states.yaml`: hidden and blacklisted images, as in Ganeti. A hidden image is not listed, but can be
//! installed. A blacklisted image is not listed, and can be installed only on machines that already run it. The name of
//! an OS definition applies to all of its variants. The file may list images that do not exist yet.

use crate::operator_files::{AllocationSpec, format_at, yaml_node};
use crate::watched_file::WatchedFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use store::InstallState;

pub const FILE: &str = "image-states.yaml";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(schemars::JsonSchema)]
pub struct ImageStates {
    #[serde(default)]
    pub hidden: BTreeSet<String>,
    #[serde(default)]
    pub blacklisted: BTreeSet<String>,
}

impl ImageStates {
    /// Parses the file.
    ///
    /// # Errors
    /// Describes the problem, with its position in the file.
    pub fn parse(text: &str) -> Result<ImageStates, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(ImageStates::default());
        }
        yaml_node::deserialize_node(&yaml_node::parse_document(text)?)
    }

    pub fn is_hidden(&self, image: &str) -> bool {
        self.hidden.contains(image)
    }

    /// Returns whether this image is blacklisted. The name may also be that of an OS definition, with or without a
    /// variant.
    pub fn is_blacklisted(&self, image: &str) -> bool {
        let os = image.split_once('+').map_or(image, |(os, _)| os);
        self.blacklisted.contains(image) || self.blacklisted.contains(os)
    }

    /// Returns the reason why the blacklist forbids the next installation of the allocation, or `None` if the
    /// blacklist permits it. An installation that has started continues even if its image is blacklisted, and a
    /// machine can be reinstalled with the image that it runs.
    pub fn installation_blocked(&self, allocation: &AllocationSpec, install_state: &InstallState) -> Option<String> {
        match &install_state.order {
            Some(order) if install_state.is_installed() => {
                let runs = install_state.image.as_deref().unwrap_or(&allocation.image);
                let bars = !order.started && runs != order.image && self.is_blacklisted(&order.image);
                bars.then(|| {
                    format!(
                        "a reinstall with image {image} is ordered, but the image has been blacklisted since then: the machine waits; cancel the order", image = order.image)
                })
            }
            None if !install_state.is_installed() && install_state.first.is_none() => {
                let os = allocation.os.as_ref().filter(|os| self.is_blacklisted(os));
                let named = os.or(Some(&allocation.image)).filter(|image| self.is_blacklisted(image))?;
                Some(format_at(
                    named,
                    &format!("image {image} is blacklisted: it cannot be used for new installations", image = &**named),
                ))
            }
            _ => None,
        }
    }
}

/// Returns the path of the file with the image states in a server's directory.
pub(crate) fn states_file(dir: &Path) -> WatchedFile<ImageStates> {
    WatchedFile::new(dir.join(FILE), ImageStates::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_states_are_parsed_and_apply_to_definition_variants() {
        let states = ImageStates::parse("# a comment\nhidden: [debian-12]\nblacklisted: [debian-11, deb]\n").unwrap();
        assert!(states.is_hidden("debian-12") && !states.is_hidden("debian-11"));
        for (image, is) in
            [("debian-11", true), ("deb", true), ("deb+v", true), ("debian-12", false), ("debian-11x", false)]
        {
            assert_eq!(states.is_blacklisted(image), is, "{image}");
        }
        assert_eq!(ImageStates::parse("# nothing\n"), Ok(ImageStates::default()));
        assert!(
            ImageStates::parse("hiden: [a]\n")
                .unwrap_err()
                .contains("unknown field \"hiden\"; did you mean \"hidden\"?")
        );
        assert!(ImageStates::parse("hidden: a\n").unwrap_err().starts_with("1:9: "));
    }
}
