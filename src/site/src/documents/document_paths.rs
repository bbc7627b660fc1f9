//! Paths of documents: the files that the operator writes in the server's directory, and the folders that contain them.

use crate::{deploy_templates, image_states, plan_approvals, sizes};

/// Maximum length of a document, in bytes.
pub const DOCUMENT_BYTES: u64 = 4 << 20;
/// Folders of YAML files.
const DOCUMENT_DIRECTORIES: [&str; 7] =
    ["machines", "layouts", "images", deploy_templates::FOLDER, sizes::FOLDER, plan_approvals::FOLDER, "os"];
/// Documents outside of folders.
const FILES: [&str; 2] = [image_states::FILE, "registries.json"];
/// Maximum length of a path, in bytes.
const PATH_BYTES: usize = 512;
/// Maximum number of names in a path: `os`, the definition, its nested folders, and the file.
const DEPTH: usize = 7;

/// Checks that a path is valid for a document: a YAML file in a folder of documents, a file of an OS definition, or one
/// of the documents outside of folders.
///
/// # Errors
/// Returns the reason why the path is not valid for a document.
pub fn check_document_path(path: &str) -> Result<(), String> {
    let names: Vec<&str> = path.split('/').collect();
    let plain = |name: &&str| !name.is_empty() && !name.starts_with('.') && !name.chars().any(char::is_control);
    if path.len() > PATH_BYTES || names.len() > DEPTH || !names.iter().all(plain) {
        return Err(format!("{path:?}: not a valid path of a document"));
    }
    let is_yaml = names.last().is_some_and(|name| name.ends_with(".yaml") || name.ends_with(".yml"));
    match names[..] {
        [file] if FILES.contains(&file) => Ok(()),
        ["os", _, _, ..] => Ok(()),
        [folder, _] if DOCUMENT_DIRECTORIES.contains(&folder) && is_yaml => Ok(()),
        [folder, _] if DOCUMENT_DIRECTORIES.contains(&folder) => Err(format!("{path}: not a YAML file")),
        [folder, _, ..] if DOCUMENT_DIRECTORIES.contains(&folder) => {
            Err(format!("{path}: {folder}/ cannot contain folders"))
        }
        _ => {
            let folders = DOCUMENT_DIRECTORIES.map(|name| name.to_owned() + "/").join(", ");
            Err(format!("{path}: not a document; the folders of documents are {folders}"))
        }
    }
}

/// Returns whether this name in the server's directory denotes a folder of documents.
pub(super) fn is_document_folder(name: &str) -> bool {
    DOCUMENT_DIRECTORIES.contains(&name)
}

/// Returns whether this name in the server's directory denotes a document outside of folders.
pub(super) fn is_single_document(name: &str) -> bool {
    FILES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_document_paths_are_accepted() {
        for good in [
            "machines/a.yaml",
            "layouts/a.yml",
            "images/a.yaml",
            "deploy-templates/A.yaml",
            "sizes/a.yaml",
            "approved/a.yaml",
            "os/parameters.yaml",
            "os/web/create",
            "os/web/hooks/one",
            "image-states.yaml",
            "registries.json",
        ] {
            assert_eq!(check_document_path(good), Ok(()), "{good}");
        }
        for (bad, expected) in [
            ("", "not a valid path"),
            ("/etc/passwd", "not a valid path"),
            ("machines/../operator.token", "not a valid path"),
            ("machines//a.yaml", "not a valid path"),
            ("machines/.a.yaml", "not a valid path"),
            ("machines/a\n.yaml", "not a valid path"),
            ("os/a/b/c/d/e/f/g", "not a valid path"),
            ("machines/a.txt", "not a YAML file"),
            ("images/debian.tar.zst", "not a YAML file"),
            ("machines/rack/a.yaml", "machines/ cannot contain folders"),
            ("operator.token", "not a document"),
            ("drophammer.sqlite", "not a document"),
            ("boot/vmlinuz", "not a document"),
            ("os", "not a document"),
        ] {
            let why = check_document_path(bad).unwrap_err();
            assert!(why.contains(expected), "{bad}: {why}");
        }
    }
}
