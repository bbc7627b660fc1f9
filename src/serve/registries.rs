//! `DIR/registries.json`: what opens the registries of images whose files have no pull secret of their own. It is Docker's `config.json`.

use super::digest;
use super::input::{Image, Location};
use super::state::FileStamp;
use crate::pull::{DockerConfig, for_url};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file as it is on the disk, with what was good before.
pub struct Registries {
    path: PathBuf,
    /// At the last look.
    stamp: Option<FileStamp>,
    newest: Result<(), String>,
    in_force: DockerConfig,
}

impl Registries {
    pub fn new(dir: &Path) -> Registries {
        let in_force = DockerConfig::default();
        Registries { path: dir.join("registries.json"), stamp: None, newest: Ok(()), in_force }
    }

    /// Whether it has changed since the last look.
    pub fn look(&mut self) -> bool {
        let stamp = digest::stamp(&self.path).ok();
        if stamp == self.stamp && (stamp.is_some() || self.newest.is_ok()) {
            return false;
        }
        self.stamp = stamp;
        let before = (self.newest.clone(), self.in_force.clone());
        let read = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DockerConfig::default()),
            read => read.map_err(|error| error.to_string()).and_then(|text| DockerConfig::parse(&text)),
        };
        self.newest = read.map(|config| self.in_force = config);
        before != (self.newest.clone(), self.in_force.clone())
    }

    pub fn problem(&self) -> Option<String> {
        let why = self.newest.as_ref().err()?;
        Some(format!("{}: {why}; what it said before counts", self.path.display()))
    }

    /// Gives an image what opens its registries; says why there is something, and it is of no use.
    pub fn open(&self, image: &mut Image) -> Option<String> {
        let Location::Url(url) = &image.at else { return None };
        let mut problem = None;
        for url in std::iter::once(url).chain(&image.mirrors) {
            match self.in_force.secret(url) {
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
        assert!(problem.contains("docker-credential-x, which is not asked"), "{problem}");

        fs::write(directory.path().join("registries.json"), "{\"auths\": hunter2}").unwrap();
        assert!(registries.look());
        let problem = registries.problem().unwrap();
        assert!(problem.contains("registries.json: 1:11: ") && !problem.contains("hunter2"), "{problem}");
        assert_eq!(opened(&registries, "").0, ["u@r.example"]);
        fs::remove_file(directory.path().join("registries.json")).unwrap();
        assert!(registries.look() && registries.problem().is_none());
        assert!(opened(&registries, "").0.is_empty());
    }
}
