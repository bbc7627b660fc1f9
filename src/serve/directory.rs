//! The operator's directory: machines, layouts and images from YAML files, read again when they change.
//!
//! A file that is wrong is named and its last good version stays in force, and so is a machine whose image or layout
//! does not exist.

use super::digest::{self, Digests};
use super::input::{self, Image, Location, Machine};
use super::resolve::{Known, notes, resolve};
use super::state::{FileStamp, Standing, State};
use crate::layout::{self, Layout, set::Set};
use crate::problem;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// What an agent looks for beside an image.
const BESIDE: [&str; 4] = [".manifest", ".manifest.minisig", ".sha256", ".sha256.minisig"];

/// What is in force, as one consistent picture.
#[derive(Debug, Default)]
pub struct Directory {
    /// By id.
    machines: HashMap<String, Machine>,
    /// MAC to machine id.
    macs: HashMap<String, String>,
    /// Served path below `/images/` to the file.
    files: HashMap<String, PathBuf>,
    /// What their allocations can refer to.
    pub known: Known,
}

impl Directory {
    pub fn machine(&self, id: &str) -> Option<&Machine> {
        self.machines.get(id)
    }

    /// The machine with one of its MACs.
    pub fn machine_by_mac(&self, mac: &str) -> Option<&Machine> {
        self.machine(self.macs.get(mac)?)
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// An image, or one of [`BESIDE`] an image.
    pub fn image_file(&self, served: &str) -> Option<PathBuf> {
        if let Some(file) = self.files.get(served) {
            return Some(file.clone());
        }
        BESIDE.iter().find_map(|suffix| {
            let mut file = self.files.get(served.strip_suffix(suffix)?)?.clone().into_os_string();
            file.push(suffix);
            Some(file.into())
        })
    }

    /// Name to show for a machine: its own, or its id.
    pub fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.machine(id).map(|machine| machine.name.as_str()).filter(|name| !name.is_empty()).unwrap_or(id)
    }
}

/// Is there a file of a machine, good or bad?
pub fn has_machines(dir: &Path) -> bool {
    let listed = fs::read_dir(dir.join("machines")).into_iter().flatten().flatten();
    listed.into_iter().any(|entry| is_yaml(&entry.path()))
}

fn read_layout(text: &str) -> Result<Layout, String> {
    let parsed = layout::read_yaml(text).map_err(|problems| problem::lines(&problems))?;
    Ok(parsed.layout)
}

/// A YAML file and what it said.
struct Entry<T> {
    stamp: FileStamp,
    newest: Result<T, String>,
    /// The newest version that could be used.
    in_force: Option<T>,
}

struct Folder<T> {
    path: PathBuf,
    read: fn(&str) -> Result<T, String>,
    entries: BTreeMap<PathBuf, Entry<T>>,
}

impl<T: Clone> Folder<T> {
    fn new(path: PathBuf, read: fn(&str) -> Result<T, String>) -> Folder<T> {
        Folder { path, read, entries: BTreeMap::new() }
    }

    /// Reads what has changed; true when anything has. A folder that is not there is an empty one.
    fn look(&mut self) -> bool {
        let listed = fs::read_dir(&self.path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let found: BTreeSet<PathBuf> = listed.filter(|path| is_yaml(path)).collect();
        let before = self.entries.len();
        self.entries.retain(|path, _| found.contains(path));
        let mut changed = self.entries.len() != before;
        for path in found {
            let stamp = digest::stamp(&path).unwrap_or(FileStamp {
                path: path.display().to_string(),
                size: 0,
                mtime: "unreadable".to_owned(),
            });
            if self.entries.get(&path).is_some_and(|entry| entry.stamp == stamp) {
                continue;
            }
            changed = true;
            let newest = read_text(&path).and_then(|text| (self.read)(&text));
            let in_force = self.entries.remove(&path).and_then(|entry| entry.in_force);
            self.entries.insert(path, Entry { stamp, newest, in_force });
        }
        changed
    }

    /// Uses the newest version of every file that can be read, else the last one that could, and says what is wrong.
    fn in_force(&mut self, problems: &mut Vec<String>) -> Vec<(PathBuf, T)> {
        let mut all = Vec::new();
        for (path, entry) in &mut self.entries {
            match &entry.newest {
                Ok(newest) => entry.in_force = Some(newest.clone()),
                Err(why) => problems.push(say(path, why, entry.in_force.is_some())),
            }
            all.extend(entry.in_force.clone().map(|value| (path.clone(), value)));
        }
        all
    }
}

/// The directory as it is on the disk, with what was good before.
pub struct Loader {
    images_dir: PathBuf,
    machines: Folder<Machine>,
    layouts: Folder<Layout>,
    images: Folder<Image>,
    /// Of the image files, at the last look.
    stamps: Vec<Option<FileStamp>>,
    digests: Digests,
    state: State,
    /// Something else than a file has changed.
    stale: bool,
}

/// What a look at the directory gave.
pub struct Seen {
    pub directory: Directory,
    pub problems: Vec<String>,
    /// What is not wrong, but worth saying once.
    pub notes: Vec<String>,
}

impl Loader {
    pub fn new(dir: &Path, digests: Digests, state: State) -> Loader {
        Loader {
            images_dir: dir.join("images"),
            machines: Folder::new(dir.join("machines"), input::machine),
            layouts: Folder::new(dir.join("layouts"), read_layout),
            images: Folder::new(dir.join("images"), input::image),
            stamps: Vec::new(),
            digests,
            state,
            stale: true,
        }
    }

    /// A digest is ready: the next look gives a new picture.
    pub fn digest_done(&mut self, done: digest::Done) {
        self.digests.keep(done);
        self.stale = true;
    }

    /// The state has changed: as [`Loader::digest_done`].
    pub fn refresh(&mut self) {
        self.stale = true;
    }

    /// The new picture, when something has changed since the last look.
    pub fn look(&mut self) -> Option<Seen> {
        let mut changed = std::mem::take(&mut self.stale);
        changed |= self.machines.look();
        changed |= self.layouts.look();
        changed |= self.images.look();
        let stamps: Vec<_> = self.image_paths().iter().map(|path| digest::stamp(path).ok()).collect();
        changed |= stamps != self.stamps;
        self.stamps = stamps;
        changed.then(|| self.picture())
    }

    fn image_paths(&self) -> Vec<PathBuf> {
        let images = self
            .images
            .entries
            .values()
            .flat_map(|entry| entry.newest.as_ref().ok().into_iter().chain(&entry.in_force));
        images.filter_map(|image| self.file_of(image)).collect()
    }

    fn file_of(&self, image: &Image) -> Option<PathBuf> {
        match &image.at {
            Location::File(file) => Some(self.images_dir.join(file)),
            Location::Url(_) => None,
        }
    }

    fn picture(&mut self) -> Seen {
        let mut problems = Vec::new();
        let layouts = self.layouts.in_force(&mut problems);
        let layouts = unique("layout", layouts, |layout| &layout.id, &mut problems);
        let set = Set::new(layouts.values().map(|(path, layout)| (path.as_path(), layout)));
        problems.extend(set.collisions().iter().map(|collision| format!("layouts/: {collision}")));
        let images = self.images.in_force(&mut problems);
        let images = unique("image", images, |image| &image.id, &mut problems);
        let mut directory = Directory::default();
        // Those without a digest, because it is being computed or cannot be, leave their machines waiting.
        let mut ready = BTreeMap::new();
        for (id, (path, mut image)) in images {
            let mut usable = true;
            if let (Location::File(served), Some(file)) = (&image.at, self.file_of(&image)) {
                let digest = match image.digest.take() {
                    Some(given) => digest::stamp(&file).map(|_| Some(given)).map_err(|error| error.to_string()),
                    None => self.digests.of(&file),
                };
                if let Err(why) = &digest {
                    problems.push(format!("{}: {}: {why}", path.display(), file.display()));
                }
                directory.files.insert(served.clone(), file);
                image.digest = digest.ok().flatten();
                usable = image.digest.is_some();
            }
            ready.insert(id, usable.then_some(image));
        }
        let layouts = layouts.into_iter().map(|(id, (_, layout))| (id, layout)).collect();
        directory.known = Known { layouts, set, images: ready };
        let mut notes = Vec::new();
        self.add_machines(&mut directory, &mut problems, &mut notes);
        Seen { directory, problems, notes }
    }

    fn add_machines(&mut self, directory: &mut Directory, problems: &mut Vec<String>, said: &mut Vec<String>) {
        let (known, state) = (&directory.known, &self.state);
        let settle = |machine: &Machine| -> Result<Vec<String>, String> {
            let standing = standing(state, machine)?;
            resolve(machine, &standing, known)?;
            Ok(notes(machine, &standing, known))
        };
        let mut all = Vec::new();
        for (path, entry) in &mut self.machines.entries {
            let newest = entry.newest.as_ref().map_err(String::clone).and_then(settle);
            let machine = match newest {
                Ok(notes) => {
                    said.extend(notes.iter().map(|note| say(path, note, false)));
                    entry.in_force = entry.newest.clone().ok();
                    entry.in_force.clone()
                }
                Err(why) => {
                    let last = entry.in_force.clone().filter(|last| settle(last).is_ok());
                    problems.push(say(path, &why, last.is_some()));
                    last.or_else(|| entry.newest.clone().ok()).or_else(|| entry.in_force.clone())
                }
            };
            all.extend(machine.map(|machine| (path.clone(), machine)));
        }
        for (id, (path, machine)) in unique("machine", all, |machine| &machine.id, problems) {
            for mac in &machine.macs {
                if let Some(other) = directory.macs.insert(mac.clone(), id.clone()).filter(|other| *other != id) {
                    problems.push(format!("{}: {mac} belongs to machine {other} already", path.display()));
                    directory.macs.insert(mac.clone(), other);
                }
            }
            directory.machines.insert(id, machine);
        }
    }
}

fn standing(state: &State, machine: &Machine) -> Result<Standing, String> {
    let Some(allocation) = &machine.allocation else { return Ok(Standing::default()) };
    state.standing_blocking(&machine.id, &allocation.id).map_err(|error| error.to_string())
}

/// By id; of two files with the same id the first one by name counts.
fn unique<T>(
    kind: &str,
    all: Vec<(PathBuf, T)>,
    id: impl Fn(&T) -> &String,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (PathBuf, T)> {
    let mut by_id: BTreeMap<String, (PathBuf, T)> = BTreeMap::new();
    for (path, value) in all {
        match by_id.get(id(&value)) {
            Some((first, _)) => problems.push(format!(
                "{}: {kind} {} is in {} already, which counts",
                path.display(),
                id(&value),
                first.display()
            )),
            None => drop(by_id.insert(id(&value).clone(), (path, value))),
        }
    }
    by_id
}

fn say(path: &Path, why: &str, has_good: bool) -> String {
    let consequence = if has_good { " (its last good version stays in force)" } else { "" };
    let lines: Vec<String> = why.lines().map(|line| format!("{}:{}", path.display(), spaced(line))).collect();
    lines.join("\n") + consequence
}

/// `FILE:LINE:COLUMN: why`, or `FILE: why` where there is no line.
fn spaced(line: &str) -> String {
    if line.starts_with(|c: char| c.is_ascii_digit()) { line.to_owned() } else { format!(" {line}") }
}

fn is_yaml(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn read_text(path: &Path) -> Result<String, String> {
    const LIMIT: i64 = 4 << 20;
    let size = digest::stamp(path).map_err(|error| error.to_string())?.size;
    if size > LIMIT {
        return Err(format!("the file has {size} bytes, more than any description of a machine needs"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}
