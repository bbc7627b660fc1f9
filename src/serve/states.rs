//! `DIR/image-states.yaml`: images that are hidden, and images that are blacklisted, as Ganeti has both. A hidden one is in no list
//! and installs. A blacklisted one is in no list and does not install; what runs it may be installed with it again. A name of an OS
//! definition is meant with all its variants. Names may stand there before there is anything of that name.

use super::digest;
use super::input::{Allocation, at, node};
use super::state::{FileStamp, Standing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const FILE: &str = "image-states.yaml";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(schemars::JsonSchema)]
pub struct States {
    #[serde(default)]
    pub hidden: BTreeSet<String>,
    #[serde(default)]
    pub blacklisted: BTreeSet<String>,
}

impl States {
    /// # Errors
    /// What is wrong with the file, with its place.
    pub fn read(text: &str) -> Result<States, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(States::default());
        }
        node::read(&node::parse(text)?)
    }

    pub fn is_hidden(&self, image: &str) -> bool {
        self.hidden.contains(image)
    }

    /// Of an image, or of a definition with or without its variant.
    pub fn is_blacklisted(&self, image: &str) -> bool {
        let os = image.split_once('+').map_or(image, |(os, _)| os);
        self.blacklisted.contains(image) || self.blacklisted.contains(os)
    }

    /// Why this is not installed now. What has begun goes on.
    pub fn bars(&self, allocation: &Allocation, standing: &Standing) -> Option<String> {
        match &standing.order {
            Some(order) if standing.is_installed() => {
                let runs = standing.image.as_deref().unwrap_or(&allocation.image);
                let bars = !order.begun && runs != order.image && self.is_blacklisted(&order.image);
                bars.then(|| {
                    format!(
                        "a reinstall with image {} is ordered, which is blacklisted since: the machine waits; take the order back",
                        order.image
                    )
                })
            }
            None if !standing.is_installed() && standing.first.is_none() => {
                let os = allocation.os.as_ref().filter(|os| self.is_blacklisted(os));
                let named = os.or(Some(&allocation.image)).filter(|image| self.is_blacklisted(image))?;
                Some(at(named, &format!("{} is blacklisted: nothing new is installed with it", &**named)))
            }
            _ => None,
        }
    }
}

/// The file as it is on the disk, with what was good before.
pub struct StatesFile {
    path: PathBuf,
    /// At the last look.
    stamp: Option<FileStamp>,
    newest: Result<(), String>,
    pub in_force: States,
}

impl StatesFile {
    pub fn new(dir: &Path) -> StatesFile {
        StatesFile { path: dir.join(FILE), stamp: None, newest: Ok(()), in_force: States::default() }
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(States::default()),
            read => read.map_err(|error| error.to_string()).and_then(|text| States::read(&text)),
        };
        self.newest = read.map(|states| self.in_force = states);
        before != (self.newest.clone(), self.in_force.clone())
    }

    pub fn problem(&self) -> Option<String> {
        let why = self.newest.as_ref().err()?;
        Some(super::folder::say(&self.path, why, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_a_definition_is_meant_with_its_variants() {
        let states = States::read("# a comment\nhidden: [debian-12]\nblacklisted: [debian-11, deb]\n").unwrap();
        assert!(states.is_hidden("debian-12") && !states.is_hidden("debian-11"));
        for (image, is) in
            [("debian-11", true), ("deb", true), ("deb+v", true), ("debian-12", false), ("debian-11x", false)]
        {
            assert_eq!(states.is_blacklisted(image), is, "{image}");
        }
        assert_eq!(States::read("# nothing\n"), Ok(States::default()));
        assert!(
            States::read("hiden: [a]\n").unwrap_err().contains("there is no field \"hiden\"; did you mean \"hidden\"?")
        );
        assert!(States::read("hidden: a\n").unwrap_err().starts_with("1:9: "));
    }

    #[test]
    fn what_cannot_be_used_keeps_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatesFile::new(dir.path());
        assert!(!file.look());
        fs::write(dir.path().join(FILE), "hidden: [a]\n").unwrap();
        assert!(file.look() && !file.look() && file.in_force.is_hidden("a"));
        fs::write(dir.path().join(FILE), "hidden: [a\n").unwrap();
        assert!(file.look() && file.in_force.is_hidden("a") && file.problem().unwrap().contains("image-states.yaml:"));
        fs::remove_file(dir.path().join(FILE)).unwrap();
        assert!(file.look() && file.in_force == States::default() && file.problem().is_none());
    }
}
