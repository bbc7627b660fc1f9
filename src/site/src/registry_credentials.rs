//! `DIR/registries.json`: registry credentials for images whose files do not contain their own. The format matches
//! Docker's `config.json`.

use crate::documents::SiteDocuments;
use crate::operator_files::{ImageLocation, ImageSpec};
use crate::watched_file::WatchedFile;
use model::registry_auth::{DockerConfig, find_for_url};
use std::path::Path;

pub(crate) struct RegistryCredentials(WatchedFile<DockerConfig>);

impl RegistryCredentials {
    pub(crate) fn new(dir: &Path) -> RegistryCredentials {
        RegistryCredentials(WatchedFile::new(dir.join("registries.json"), DockerConfig::parse))
    }

    /// Sets the source from which the file is read.
    pub(crate) fn set_documents(&mut self, documents: &SiteDocuments) {
        self.0.set_documents(documents);
    }

    /// Rescans the file, as [`WatchedFile::rescan`] does.
    pub(crate) fn reload(&mut self) -> bool {
        self.0.rescan()
    }

    /// Describes the problem of the file, as [`WatchedFile::describe_problem`] does.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.describe_problem()
    }

    /// Adds the credentials for an image's registries to the image. Returns a message if the credentials for one of
    /// these registries in `registries.json` cannot be used.
    pub(crate) fn add_credentials(&self, image: &mut ImageSpec) -> Option<String> {
        let ImageLocation::Url(url) = &image.at else { return None };
        let mut problem = None;
        for url in std::iter::once(url).chain(&image.mirrors) {
            match self.0.last_valid.find_credentials(url) {
                _ if find_for_url(&image.pull_secrets, url).is_some() => {}
                Ok(found) => image.pull_secrets.extend(found),
                Err(why) => problem = Some(format!("registries.json: {why}")),
            }
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files;
    use std::fs;

    #[test]
    fn images_get_only_the_credentials_of_their_registries() {
        let directory = tempfile::tempdir().unwrap();
        let mut registries = RegistryCredentials::new(directory.path());
        assert!(!registries.reload() && registries.problem().is_none());
        let config = r#"{"auths": {"r.example": {"auth": "dTpw"}, "m.example": {"auth": "djpx"}}, "credHelpers": {"h.example": "x"}}"#;
        fs::write(directory.path().join("registries.json"), config).unwrap();
        assert!(registries.reload() && !registries.reload());
        let opened = |registries: &RegistryCredentials, more: &str| {
            let mut image =
                operator_files::parse_image(&format!("id: i\nurl: oci://r.example/debian:12\n{more}")).unwrap();
            let problem = registries.add_credentials(&mut image);
            let secrets = image.pull_secrets.iter();
            (secrets.map(|secret| format!("{}@{}", secret.username, secret.registry)).collect::<Vec<_>>(), problem)
        };
        assert_eq!(opened(&registries, "").0, ["u@r.example"]);
        let mirrored = "mirrors: [oci://m.example/debian:12, oci://r.example/copy:12, oci://n.example/d:1]\n";
        assert_eq!(opened(&registries, mirrored).0, ["u@r.example", "v@m.example"]);
        let own = "pull_secret: {username: own, password: p}\n";
        assert_eq!(opened(&registries, own).0, ["own@r.example"]);
        let problem = opened(&registries, "mirrors: [oci://h.example/debian:12]\n").1.unwrap();
        assert!(problem.contains("docker-credential-x, which is not supported"), "{problem}");

        fs::write(directory.path().join("registries.json"), "{\"auths\": hunter2}").unwrap();
        assert!(registries.reload());
        let problem = registries.problem().unwrap();
        assert!(problem.contains("registries.json:1:11: ") && !problem.contains("hunter2"), "{problem}");
        assert_eq!(opened(&registries, "").0, ["u@r.example"]);
        fs::remove_file(directory.path().join("registries.json")).unwrap();
        assert!(registries.reload() && registries.problem().is_none());
        assert!(opened(&registries, "").0.is_empty());
    }
}
