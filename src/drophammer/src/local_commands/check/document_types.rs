//! Files other than layouts that `drophammer check` accepts. Their types are recognized by their names, fields and
//! folders.

use super::unknown_template_steps::find_unknown_steps;
use super::{printable_path, with_default_codes};
use crate::local_commands::allocation_reader::{self, parse_messages};
use crate::local_commands::problem_lines;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::template::DeployTemplate;
use model::inventory::Nic;
use model::registry_auth::DockerConfig;
use oidc::settings::OidcSettings;
use serde::Serialize;
use serde_json::Value;
use site::ganeti_os_definitions::{check_definition, is_definition_folder};
use site::image_states::ImageStates;
use site::operator_files::yaml_node::{parse_document_or_list, to_json};
use site::operator_files::{check_os_parameters, parse_image, parse_resources};
use site::sizes::MachineSize;
use std::path::{Path, PathBuf};

/// Type of a file. The JSON output contains a list for each type, in the order of these variants and under their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DocumentType {
    #[serde(rename = "machines")]
    Machine,
    #[serde(rename = "images")]
    Image,
    #[serde(rename = "templates")]
    Template,
    /// Kubernetes volumes and storage classes.
    Volumes,
    #[serde(rename = "sizes")]
    Size,
    /// Folder of an OS definition.
    #[serde(rename = "os_definitions")]
    OsDefinition,
    /// Parameters of OS definitions for all machines.
    OsParameters,
    ImageStates,
    /// Registry credentials in the format of Docker's `config.json`.
    Registries,
    /// Settings of OpenID Connect.
    Oidc,
}

/// Fields that only layouts have.
const LAYOUT_ONLY_FIELDS: [&str; 5] = ["disks", "filesystems", "raid", "volumegroups", "logicalvolumes"];
/// Fields that only images have.
const IMAGE_ONLY_FIELDS: [&str; 5] = ["url", "file", "digest", "mirrors", "pull_secret"];
/// Fields that only Docker's `config.json` has.
const OF_REGISTRIES: [&str; 3] = ["auths", "credHelpers", "credsStore"];
/// Folders of a server's directory, with the type of the files in each. The folder determines the type of a file only
/// if the fields of the file do not.
const FOLDERS: [(&str, DocumentType); 5] = [
    ("machines", DocumentType::Machine),
    ("images", DocumentType::Image),
    ("deploy-templates", DocumentType::Template),
    ("sizes", DocumentType::Size),
    ("os", DocumentType::OsParameters),
];

/// Type of a file according to its fields.
enum FieldVerdict {
    Layout,
    Document(DocumentType),
    Unknown,
}

/// Findings about a file that is not a layout.
#[derive(Serialize)]
pub(super) struct DocumentReport {
    pub file: PathBuf,
    pub valid: bool,
    pub problems: Vec<Diagnostic>,
    /// Notes about valid values that are probably mistakes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Diagnostic>,
    #[serde(skip)]
    pub document_type: DocumentType,
}

impl DocumentType {
    /// Determines the type of a file by its name, its fields, or its folder. Returns `None` for a layout, and for a
    /// file of unknown type.
    pub(crate) fn recognize(path: &Path, text: &str) -> Option<DocumentType> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some(oidc::settings::FILE) => return Some(DocumentType::Oidc),
            Some(site::image_states::FILE) => return Some(DocumentType::ImageStates),
            Some("registries.json") => return Some(DocumentType::Registries),
            _ => {}
        }
        match examine_fields(text) {
            FieldVerdict::Layout => None,
            FieldVerdict::Document(document_type) => Some(document_type),
            FieldVerdict::Unknown => {
                let path = std::path::absolute(path).ok()?;
                let folder = path.parent()?.file_name()?;
                FOLDERS.iter().find(|(name, _)| folder == *name).map(|(_, document_type)| *document_type)
            }
        }
    }

    /// Returns the noun with its article, for a message about one file.
    pub(super) fn with_article(self) -> &'static str {
        match self {
            DocumentType::Machine => "a machine",
            DocumentType::Image => "an image",
            DocumentType::Template => "a deploy template",
            DocumentType::Volumes => "volumes",
            DocumentType::Size => "a size",
            DocumentType::OsDefinition => "an OS definition",
            DocumentType::OsParameters => "OS parameters",
            DocumentType::ImageStates => "image states",
            DocumentType::Registries => "registry credentials",
            DocumentType::Oidc => "OpenID Connect settings",
        }
    }

    /// Noun for messages, in the singular and in the plural.
    pub(crate) fn nouns(self) -> [&'static str; 2] {
        match self {
            DocumentType::Machine => ["machine", "machines"],
            DocumentType::Image => ["image", "images"],
            DocumentType::Template => ["deploy template", "deploy templates"],
            DocumentType::Volumes => ["file with volumes", "files with volumes"],
            DocumentType::Size => ["size", "sizes"],
            DocumentType::OsDefinition => ["OS definition", "OS definitions"],
            DocumentType::OsParameters => ["file with OS parameters", "files with OS parameters"],
            DocumentType::ImageStates => ["file with image states", "files with image states"],
            DocumentType::Registries => ["file with registry credentials", "files with registry credentials"],
            DocumentType::Oidc => ["file with OpenID Connect settings", "files with OpenID Connect settings"],
        }
    }

    /// Returns all problems of a file of this type. An OS definition is a folder, so `text` is not used for it.
    pub(crate) fn find_problems(self, path: &Path, text: &str, nics: Option<&[Nic]>) -> Vec<Diagnostic> {
        let checked = match self {
            DocumentType::Machine => {
                return allocation_reader::read_allocation(text, nics).err().unwrap_or_default();
            }
            DocumentType::Template => return DeployTemplate::parse_file(text).err().unwrap_or_default(),
            DocumentType::Image => parse_image(text).map(drop),
            DocumentType::Volumes => parse_resources(text).map(drop),
            DocumentType::Size => MachineSize::parse_size(text).map(drop),
            DocumentType::OsDefinition => check_definition(path),
            DocumentType::OsParameters => check_os_parameters(text),
            DocumentType::ImageStates => ImageStates::parse(text).map(drop),
            DocumentType::Registries => DockerConfig::parse(text).map(drop),
            DocumentType::Oidc => OidcSettings::parse_text(text, path.parent().unwrap_or(Path::new(""))).map(drop),
        };
        checked.err().map(|why| parse_messages(why.lines().map(str::to_owned).collect())).unwrap_or_default()
    }

    /// Checks a file of this type.
    ///
    /// # Errors
    /// Returns the problems as `drophammer check` prints them.
    pub(crate) fn check_file(self, file: &Path, text: &str) -> Result<(), String> {
        let problems = with_default_codes(self.find_problems(file, text, None), self.default_code());
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problem_lines(file, &problems).trim_end().to_owned()),
        }
    }

    /// Returns the code of problems that have no code of their own.
    fn default_code(self) -> ErrorCode {
        match self {
            DocumentType::Oidc => ErrorCode::OidcSettings,
            _ => ErrorCode::SiteFile,
        }
    }
}

/// Determines the type of a file by its fields.
fn examine_fields(text: &str) -> FieldVerdict {
    use FieldVerdict::{Document, Layout, Unknown};
    if allocation_reader::is_machine_text(text) {
        return Document(DocumentType::Machine);
    }
    let Ok(node) = parse_document_or_list(text) else { return Unknown };
    let document = to_json(&node);
    let first = document.as_array().map_or(&document, |items| items.first().unwrap_or(&Value::Null));
    let has_any = |names: &[&str]| names.iter().any(|name| first.get(name).is_some());
    match () {
        () if has_any(&LAYOUT_ONLY_FIELDS) || has_any(&["metal_api_filesystemlayouts"]) => Layout,
        () if has_any(&["apiVersion"]) && has_any(&["kind"]) => Document(DocumentType::Volumes),
        () if document.is_array() => Layout,
        () if has_any(&["steps"]) => Document(DocumentType::Template),
        () if has_any(&IMAGE_ONLY_FIELDS) => Document(DocumentType::Image),
        () if first["constraints"].is_array() => Document(DocumentType::Size),
        () if has_any(&OF_REGISTRIES) => Document(DocumentType::Registries),
        () if has_any(&["issuer"]) => Document(DocumentType::Oidc),
        () if has_only(first, &["hidden", "blacklisted"]) => Document(DocumentType::ImageStates),
        () if is_os_parameters(first) => Document(DocumentType::OsParameters),
        () => Unknown,
    }
}

/// Returns whether the document has at least one field, and only fields with these names.
fn has_only(document: &Value, names: &[&str]) -> bool {
    document
        .as_object()
        .is_some_and(|fields| !fields.is_empty() && fields.keys().all(|name| names.contains(&name.as_str())))
}

/// Returns whether all fields are lists of `KEY=VALUE` and `-KEY`.
fn is_os_parameters(document: &Value) -> bool {
    let is_change = |item: &Value| item.as_str().is_some_and(|text| text.contains('=') || text.starts_with('-'));
    let is_list = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(is_change));
    document.as_object().is_some_and(|fields| {
        fields.values().all(is_list) && fields.values().any(|value| value.as_array().is_some_and(|all| !all.is_empty()))
    })
}

impl DocumentReport {
    /// Checks the folder of an OS definition. Returns `None` for other paths.
    pub(super) fn check_folder(path: &Path) -> Option<DocumentReport> {
        is_definition_folder(path).then(|| DocumentReport::check_as(DocumentType::OsDefinition, path, "", None))
    }

    /// Checks a file that is not a layout. Returns `None` for a layout. If NICs are specified, the networks of
    /// machine files must match these NICs.
    pub(super) fn check_text(path: &Path, text: &str, nics: Option<&[Nic]>) -> Option<DocumentReport> {
        Some(DocumentReport::check_as(DocumentType::recognize(path, text)?, path, text, nics))
    }

    /// Returns the report of a file that cannot be read as text; `None` for a layout.
    pub(super) fn from_unreadable(path: &Path, problems: &[Diagnostic]) -> Option<DocumentReport> {
        let document_type = DocumentType::recognize(path, "")?;
        let problems = with_default_codes(problems.to_vec(), document_type.default_code());
        Some(DocumentReport { file: printable_path(path), valid: false, problems, notes: Vec::new(), document_type })
    }

    fn check_as(document_type: DocumentType, path: &Path, text: &str, nics: Option<&[Nic]>) -> DocumentReport {
        let problems = document_type.find_problems(path, text, nics);
        let problems = with_default_codes(problems, document_type.default_code());
        let notes = match document_type {
            DocumentType::Template => find_unknown_steps(text),
            _ => Vec::new(),
        };
        DocumentReport { file: printable_path(path), valid: problems.is_empty(), problems, notes, document_type }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognized_by_their_fields() {
        use DocumentType::{Image, ImageStates, Machine, Oidc, OsParameters, Registries, Size, Template, Volumes};
        for (text, expected) in [
            ("id: a\nmacs: []\n", Some(Machine)),
            ("id: debian-12\nfile: d.tar\n", Some(Image)),
            ("id: debian-12\nurl: http://h/d.tar\n", Some(Image)),
            ("name: CUSTOM_A\nsteps: []\n", Some(Template)),
            ("apiVersion: v1\nkind: List\nitems: []\n", Some(Volumes)),
            ("- {apiVersion: storage.metalk8s.scality.com/v1alpha1, kind: Volume}\n", Some(Volumes)),
            ("id: c1\nconstraints: [{type: cores, min: 1, max: 4}]\n", Some(Size)),
            ("id: c1\nconstraints: []\n", Some(Size)),
            ("web: [ns1=192.0.2.53, -proxy]\nold: []\n", Some(OsParameters)),
            ("hidden: [debian-11]\n", Some(ImageStates)),
            ("auths: {}\n", Some(Registries)),
            ("issuer: https://h\nroles: []\n", Some(Oidc)),
            ("id: a\nconstraints: {sizes: [c1]}\n", None),
            ("id: a\nconstraints: {sizes: [c1]}\ndisks: []\n", None),
            ("a: [x]\n", None),
            ("metal_api_filesystemlayouts: [{id: a}]\n", None),
            ("id: a\ndisks: []\nfile: x\n", None),
            ("- {id: a, filesystems: []}\n", None),
            ("- {url: a}\n", None),
            ("id: a\n", None),
            ("[\n", None),
            ("", None),
        ] {
            assert_eq!(DocumentType::recognize(Path::new("/x/f.yaml"), text), expected, "{text}");
        }
    }

    #[test]
    fn folders_and_names_determine_the_type_if_the_fields_do_not() {
        use DocumentType::{Image, ImageStates, Machine, Oidc, OsParameters, Registries, Size, Template};
        for (path, text, expected) in [
            ("/d/sizes/c1.yaml", "id: c1\nconstraints: 5\n", Some(Size)),
            ("/d/sizes/c1.yaml", "[\n", Some(Size)),
            ("/d/images/a.yaml", "id: a\n", Some(Image)),
            ("/d/machines/a.yaml", "id: a\n", Some(Machine)),
            ("/d/deploy-templates/a.yaml", "name: a\n", Some(Template)),
            ("/d/os/a.yaml", "web: a\n", Some(OsParameters)),
            ("/d/oidc.yaml", "", Some(Oidc)),
            ("/d/image-states.yaml", "", Some(ImageStates)),
            ("/d/registries.json", "{}", Some(Registries)),
            ("/d/layouts/a.yaml", "id: a\n", None),
            ("/d/sizes/a.yaml", "id: a\ndisks: []\n", None),
            ("-", "id: a\n", None),
        ] {
            assert_eq!(DocumentType::recognize(Path::new(path), text), expected, "{path}: {text}");
        }
    }

    #[test]
    fn the_folder_of_a_definition_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("web");
        std::fs::create_dir(&folder).unwrap();
        assert!(DocumentReport::check_folder(&folder).is_none());
        std::fs::write(folder.join("ganeti_api_version"), "5\n").unwrap();
        let report = DocumentReport::check_folder(&folder).unwrap();
        assert!(!report.valid && report.document_type == DocumentType::OsDefinition);
        assert!(report.problems.iter().any(|one| one.message.contains("unsupported interface version 5")));
        std::fs::write(folder.join("ganeti_api_version"), "10\n").unwrap();
        std::fs::write(folder.join("image"), "debian-12\n").unwrap();
        let report = DocumentReport::check_folder(&folder).unwrap();
        assert!(report.valid, "{:?}", report.problems);
    }

    #[test]
    fn problems_have_positions_and_no_rust_terms() {
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
