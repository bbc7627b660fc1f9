//! Files other than layouts that `drophammer check` recognizes by their fields.

use super::{printable_path, with_default_codes};
use crate::commands::allocation_reader::{self, parse_messages};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::template::DeployTemplate;
use model::inventory::Nic;
use serde::Serialize;
use serde_json::Value;
use site::operator_files::yaml_node::{parse_document_or_list, to_json};
use site::operator_files::{parse_image, parse_resources};
use std::path::{Path, PathBuf};

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentType {
    Machine,
    Image,
    Template,
    /// Kubernetes volumes and storage classes.
    Volumes,
}

/// All types, in the order in which they are reported.
pub(super) const DOCUMENT_TYPES: [DocumentType; 4] =
    [DocumentType::Machine, DocumentType::Image, DocumentType::Template, DocumentType::Volumes];

/// Fields that only layouts have.
const OF_LAYOUTS: [&str; 6] = ["disks", "filesystems", "raid", "volumegroups", "logicalvolumes", "constraints"];
/// Fields that only images have.
const OF_IMAGES: [&str; 5] = ["url", "file", "digest", "mirrors", "pull_secret"];

/// Findings of a file that is not a layout.
#[derive(Serialize)]
pub(super) struct DocumentReport {
    pub file: PathBuf,
    pub valid: bool,
    pub problems: Vec<Diagnostic>,
    #[serde(skip)]
    pub document_type: DocumentType,
}

impl DocumentType {
    /// Determines the type of a file by its fields. Returns `None` for a layout, and for all other files.
    pub(super) fn recognize(text: &str) -> Option<DocumentType> {
        if allocation_reader::is_machine_text(text) {
            return Some(DocumentType::Machine);
        }
        let document = to_json(&parse_document_or_list(text).ok()?);
        let first = document.as_array().map_or(&document, |items| items.first().unwrap_or(&Value::Null));
        let has_any = |names: &[&str]| names.iter().any(|name| first.get(name).is_some());
        match () {
            () if has_any(&OF_LAYOUTS) => None,
            () if has_any(&["apiVersion"]) && has_any(&["kind"]) => Some(DocumentType::Volumes),
            () if document.is_array() => None,
            () if has_any(&["steps"]) => Some(DocumentType::Template),
            () if has_any(&OF_IMAGES) => Some(DocumentType::Image),
            () => None,
        }
    }

    /// Noun with its article, for messages about one file.
    pub(super) fn with_article(self) -> &'static str {
        match self {
            DocumentType::Machine => "a machine",
            DocumentType::Image => "an image",
            DocumentType::Template => "a deploy template",
            DocumentType::Volumes => "volumes",
        }
    }

    /// Noun for messages, in the singular and in the plural.
    pub(super) fn nouns(self) -> [&'static str; 2] {
        match self {
            DocumentType::Machine => ["machine", "machines"],
            DocumentType::Image => ["image", "images"],
            DocumentType::Template => ["deploy template", "deploy templates"],
            DocumentType::Volumes => ["file with volumes", "files with volumes"],
        }
    }
}

impl DocumentReport {
    /// Checks a file that is not a layout. Returns `None` for a layout. If NICs are specified, the networks of machine files must match
    /// these NICs.
    pub(super) fn check_text(path: &Path, text: &str, nics: Option<&[Nic]>) -> Option<DocumentReport> {
        let document_type = DocumentType::recognize(text)?;
        let lines = |why: String| parse_messages(why.lines().map(str::to_owned).collect());
        let problems = match document_type {
            DocumentType::Machine => allocation_reader::read_allocation(text, nics).err(),
            DocumentType::Image => parse_image(text).err().map(lines),
            DocumentType::Template => DeployTemplate::parse_file(text).err(),
            DocumentType::Volumes => parse_resources(text).err().map(lines),
        };
        let problems = with_default_codes(problems.unwrap_or_default(), ErrorCode::SiteFile);
        Some(DocumentReport { file: printable_path(path), valid: problems.is_empty(), problems, document_type })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognized_by_their_fields() {
        use DocumentType::{Image, Machine, Template, Volumes};
        for (text, expected) in [
            ("id: a\nmacs: []\n", Some(Machine)),
            ("id: debian-12\nfile: d.tar\n", Some(Image)),
            ("id: debian-12\nurl: http://h/d.tar\n", Some(Image)),
            ("name: CUSTOM_A\nsteps: []\n", Some(Template)),
            ("apiVersion: v1\nkind: List\nitems: []\n", Some(Volumes)),
            ("- {apiVersion: storage.metalk8s.scality.com/v1alpha1, kind: Volume}\n", Some(Volumes)),
            ("id: a\ndisks: []\nfile: x\n", None),
            ("- {id: a, filesystems: []}\n", None),
            ("- {url: a}\n", None),
            ("id: a\n", None),
            ("[\n", None),
            ("", None),
        ] {
            assert_eq!(DocumentType::recognize(text), expected, "{text}");
        }
    }

    #[test]
    fn problems_have_positions_and_no_words_of_rust() {
        for (text, expected) in [
            ("id: debian-12\nurl: [a]\n", &["2:6: must be text, but is a list"][..]),
            ("id: debian-12\nfile: d.tar\n", &[]),
            (
                "id: x\nallocation: 5\nmacs: 7\n",
                &[
                    "1:5: \"x\" is not a UUID such as 4c4c4544-0051-3010-8052-b4c04f4d3132",
                    "2:13: must be a mapping, but is the text \"5\"",
                    "3:7: must be a list, but is the text \"7\"",
                ],
            ),
        ] {
            let report = DocumentReport::check_text(Path::new("f.yaml"), text, None).unwrap();
            let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
            assert_eq!(
                (problems, report.valid),
                (expected.iter().map(|line| (*line).to_owned()).collect(), expected.is_empty())
            );
        }
        for text in ["name: CUSTOM_A\nsteps: 5\n", "apiVersion: v1\nkind: Volume\nmetadata: 5\n"] {
            let report = DocumentReport::check_text(Path::new("f.yaml"), text, None).unwrap();
            assert!(
                !report.valid && report.problems.iter().all(|problem| !problem.message.contains("expected")),
                "{text}"
            );
        }
    }
}
