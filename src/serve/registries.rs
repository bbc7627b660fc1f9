//! `DIR/registries.json`: registry credentials for images whose files do not contain their own. The format is that of Docker's
//! `config.json`.

use super::input::{Image, Location};
use super::one_file::OneFile;
use crate::pull::{DockerConfig, for_url};
use std::path::Path;

pub struct Registries(OneFile<DockerConfig>);

impl Registries {
    pub fn new(dir: &Path) -> Registries {
        Registries(OneFile::new(dir.join("registries.json"), DockerConfig::parse))
    }

    /// As [`OneFile::look`].
    pub fn look(&mut self) -> bool {
        self.0.look()
    }

    /// As [`OneFile::problem`].
    pub fn problem(&self) -> Option<String> {
        self.0.problem()
    }

    /// Adds the credentials of its registries to an image. Returns a problem if there are credentials that cannot be used.
    pub fn open(&self, image: &mut Image) -> Option<String> {
        let Location::Url(url) = &image.at else { return None };
        let mut problem = None;
        for url in std::iter::once(url).chain(&image.mirrors) {
            match self.0.in_force.secret(url) {
                _ if for_url(&image.pull_secrets, url).is_some() => {}
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
    use crate::serve::input;
    use std::fs;

    #[test]
    fn images_get_what_opens_their_registries_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let mut registries = Registries::new(directory.path());
        assert!(!registries.look() && registries.problem().is_none());
        let config = r#"{"auths": {"r.example": {"auth": "dTpw"}, "m.example": {"auth": "djpx"}}, "credHelpers": {"h.example": "x"}}"#;
        fs::write(directory.path().join("registries.json"), config).unwrap();
        assert!(registries.look() && !registries.look());
        let opened = |registries: &Registries, more: &str| {
            let mut image = input::image(&format!("id: i\nurl: oci://r.example/debian:12\n{more}")).unwrap();
            let problem = registries.open(&mut image);
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
        assert!(registries.look());
        let problem = registries.problem().unwrap();
        assert!(problem.contains("registries.json:1:11: ") && !problem.contains("hunter2"), "{problem}");
        assert_eq!(opened(&registries, "").0, ["u@r.example"]);
        fs::remove_file(directory.path().join("registries.json")).unwrap();
        assert!(registries.look() && registries.problem().is_none());
        assert!(opened(&registries, "").0.is_empty());
    }
}
