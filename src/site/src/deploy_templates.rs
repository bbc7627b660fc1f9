//! Deploy templates in the operator's directory.

use model::deploy_steps::template::DeployTemplate;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Name of the folder in the server's directory.
pub const FOLDER: &str = "deploy-templates";

/// Deploy template and the path of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTemplate {
    pub path: PathBuf,
    /// UUID of the template, as specified in its file. If the file does not specify a UUID, the UUID is derived from
    /// the name of the template.
    pub uuid: String,
    pub template: DeployTemplate,
}

/// Templates in force.
#[derive(Debug, Clone, Default)]
pub struct DeployTemplates(BTreeMap<String, Arc<StoredTemplate>>);

impl DeployTemplates {
    /// Collects templates. If two templates have the same name or UUID, the first file takes precedence.
    pub(crate) fn new(files: Vec<(PathBuf, DeployTemplate)>, problems: &mut Vec<String>) -> DeployTemplates {
        let mut templates = DeployTemplates::default();
        for (path, template) in files {
            let uuid = template.uuid.clone().unwrap_or_else(|| derive_uuid(&template.name));
            let taken = templates.find_by_name(&template.name).map(|first| (&template.name, first));
            match taken.or_else(|| templates.find_by_uuid(&uuid).map(|first| (&uuid, first))) {
                Some((what, first)) => problems.push(format!(
                    "{file}: template {what} is already defined in {first}, which takes precedence",
                    file = path.display(),
                    first = first.path.display()
                )),
                None => {
                    let name = template.name.clone();
                    templates.0.insert(name, Arc::new(StoredTemplate { path, uuid, template }));
                }
            }
        }
        templates
    }

    pub fn find_by_name(&self, name: &str) -> Option<&Arc<StoredTemplate>> {
        self.0.get(name)
    }

    pub fn find_by_uuid(&self, uuid: &str) -> Option<&Arc<StoredTemplate>> {
        self.all().find(|stored| stored.uuid == uuid)
    }

    /// Returns all templates, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<StoredTemplate>> {
        self.0.values()
    }
}

/// Returns the UUID of a template whose file does not contain one. The UUID is derived from the name, so it never
/// changes.
fn derive_uuid(name: &str) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn first_file_wins_among_duplicate_templates() {
        let template = |name: &str, uuid: Option<&str>| DeployTemplate {
            name: name.to_owned(),
            uuid: uuid.map(str::to_owned),
            ..DeployTemplate::default()
        };
        let files = [
            ("a", "CUSTOM_A", Some("1")),
            ("b", "CUSTOM_A", None),
            ("c", "CUSTOM_C", Some("1")),
            ("d", "CUSTOM_D", None),
        ];
        let files = files.map(|(file, name, uuid)| (PathBuf::from(file), template(name, uuid)));
        let mut problems = Vec::new();
        let templates = DeployTemplates::new(files.to_vec(), &mut problems);
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
        let made = &templates.find_by_name("CUSTOM_D").unwrap().uuid;
        assert_eq!((made, Uuid::parse_str(made).unwrap().get_version_num()), (&derive_uuid("CUSTOM_D"), 8));
    }
}
