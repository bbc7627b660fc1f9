//! Deploy templates of the directory, and the requests that read and change them: `/v1/deploy_templates` as in Ironic, and
//! `/v1/deploy-templates` as in the proposal for it.

mod answer;
mod calls;
mod changing;
mod list;
mod patch;
mod shown;
mod versions;
pub mod writing;

pub use calls::{ironic, proposed, root, version_one};
pub use shown::{asked, listed, patched, schema};
pub use writing::Writing;

use crate::steps::template::Template;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use uuid::Uuid;

/// Folder in the server's directory.
pub const FOLDER: &str = "deploy-templates";

/// Template with its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub path: PathBuf,
    /// UUID in the file, or one derived from the name.
    pub uuid: String,
    pub template: Template,
}

/// Templates in force.
#[derive(Debug, Clone, Default)]
pub struct Templates(BTreeMap<String, Arc<Stored>>);

impl Templates {
    /// Collects templates. If two have the same name or UUID, the first file takes precedence.
    pub fn new(files: Vec<(PathBuf, Template)>, problems: &mut Vec<String>) -> Templates {
        let mut templates = Templates::default();
        for (path, template) in files {
            let uuid = template.uuid.clone().unwrap_or_else(|| of_name(&template.name));
            let taken = templates.by_name(&template.name).map(|first| (&template.name, first));
            match taken.or_else(|| templates.by_uuid(&uuid).map(|first| (&uuid, first))) {
                Some((what, first)) => problems.push(format!(
                    "{}: template {what} is already defined in {}, which takes precedence",
                    path.display(),
                    first.path.display()
                )),
                None => {
                    let name = template.name.clone();
                    templates.0.insert(name, Arc::new(Stored { path, uuid, template }));
                }
            }
        }
        templates
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Stored>> {
        self.0.get(name)
    }

    pub fn by_uuid(&self, uuid: &str) -> Option<&Arc<Stored>> {
        self.all().find(|stored| stored.uuid == uuid)
    }

    /// Returns all templates, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.0.values()
    }
}

/// Returns the UUID of a template whose file contains none. It is always the same for a name.
fn of_name(name: &str) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

fn new_uuid() -> String {
    Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_templates_with_one_name_or_uuid_the_first_file_counts() {
        let template = |name: &str, uuid: Option<&str>| Template {
            name: name.to_owned(),
            uuid: uuid.map(str::to_owned),
            ..Template::default()
        };
        let files = [
            ("a", "CUSTOM_A", Some("1")),
            ("b", "CUSTOM_A", None),
            ("c", "CUSTOM_C", Some("1")),
            ("d", "CUSTOM_D", None),
        ];
        let files = files.map(|(file, name, uuid)| (PathBuf::from(file), template(name, uuid)));
        let mut problems = Vec::new();
        let templates = Templates::new(files.to_vec(), &mut problems);
        assert_eq!(
            problems,
            [
                "b: template CUSTOM_A is already defined in a, which takes precedence",
                "c: template 1 is already defined in a, which takes precedence"
            ]
        );
        assert_eq!(
            templates.all().map(|stored| stored.template.name.as_str()).collect::<Vec<_>>(),
            ["CUSTOM_A", "CUSTOM_D"]
        );
        let made = &templates.by_name("CUSTOM_D").unwrap().uuid;
        assert_eq!((made, Uuid::parse_str(made).unwrap().get_version_num()), (&of_name("CUSTOM_D"), 8));
    }
}
