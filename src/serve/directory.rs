//! The operator's directory: machines, layouts, images and deploy templates from YAML files, read again when they change.
//!
//! An invalid file is reported, and its last good version stays in force. The same applies to a machine whose image or layout does not
//! exist.

mod duplicates;

use super::approved::{self, Approval, Approvals};
use super::definitions::{self, Choice, Definitions};
use super::digest::{self, Digests};
use super::folder::{Folder, say};
use super::input::{self, Image, Location, Machine};
use super::moves::overlay::Overlay;
use super::one_file::OneFile;
use super::registries::Registries;
use super::resolve::{Known, broken_promise, notes, resolve};
use super::sizes::{self, Size};
use super::state::{FileStamp, Standing, State};
use super::states::{self, States};
use super::templates::Templates;
use super::wanted;
use crate::contents::{self, Contents};
use crate::layout::{self, Layout, set::Set};
use crate::machine_identity::swapped_id;
use crate::problem;
use crate::steps::template::Template;
use marked_yaml::Spanned;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const MANIFEST: &str = ".manifest";

/// Upper limit of a manifest. The largest known ones have 4.4 MB.
const MANIFEST_BYTES: i64 = 8 << 20;

/// Suffixes of the files that an agent looks for next to an image.
const BESIDE: [&str; 4] = [MANIFEST, ".manifest.minisig", ".sha256", ".sha256.minisig"];

/// Consistent snapshot of everything in force.
#[derive(Debug, Default)]
pub struct Directory {
    /// Machines by id.
    machines: HashMap<String, Machine>,
    /// Ids of the machines whose files list a MAC, by MAC. It identifies a machine if there is only one.
    macs: HashMap<String, Vec<String>>,
    /// Files by the path below `/images/` at which they are served.
    files: HashMap<String, PathBuf>,
    /// Images as defined in their files, with the path of the file.
    pub images: BTreeMap<String, (PathBuf, Image)>,
    /// The file of each machine, by id.
    pub machine_files: HashMap<String, PathBuf>,
    /// The file of each layout in force.
    pub layout_files: BTreeMap<String, PathBuf>,
    /// The file of each size in force.
    pub size_files: BTreeMap<String, PathBuf>,
    /// Objects that allocations can refer to.
    pub known: Known,
    /// Problems for the operator. Set by the publisher of the snapshot.
    pub problems: Vec<String>,
}

impl Directory {
    pub fn machine(&self, id: &str) -> Option<&Machine> {
        self.machines.get(id)
    }

    /// Returns the machine whose id is this UUID, in either byte order. The identical spelling counts first.
    pub fn machine_by_uuid(&self, uuid: &str) -> Option<&Machine> {
        self.machine(uuid).or_else(|| self.machine(&swapped_id(uuid)?))
    }

    /// Returns all machines whose files list this MAC.
    pub fn machines_by_mac(&self, mac: &str) -> impl Iterator<Item = &Machine> {
        self.macs.get(mac).into_iter().flatten().filter_map(|id| self.machine(id))
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// Returns the file of an image, or a file next to an image (see [`BESIDE`]).
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

    /// Returns the name to show for a machine: its own, or its id.
    pub fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.machine(id).map(|machine| machine.name.as_str()).filter(|name| !name.is_empty()).unwrap_or(id)
    }
}

fn read_layout(text: &str) -> Result<Layout, String> {
    let parsed = layout::read_yaml(text).map_err(|problems| problem::lines(&problems))?;
    Ok(parsed.layout)
}

fn read_template(text: &str) -> Result<Template, String> {
    Template::read(text).map_err(|problems| problem::lines(&problems))
}

/// Reader of the directory, with the last good version of each file.
pub struct Loader {
    images_dir: PathBuf,
    machines: Folder<Machine>,
    layouts: Folder<Layout>,
    images: Folder<Image>,
    templates: Folder<Template>,
    approvals: Folder<Approval>,
    approved_only: bool,
    sizes: Folder<Size>,
    registries: Registries,
    states: OneFile<States>,
    /// Stamps of the image files and their manifests at the last scan.
    stamps: Vec<Option<FileStamp>>,
    digests: Digests,
    definitions: Definitions,
    state: State,
    /// True if something other than a file has changed.
    stale: bool,
}

/// Result of a scan of the directory.
#[derive(Default)]
pub struct Seen {
    pub directory: Directory,
    pub problems: Vec<String>,
    /// Remarks that are not problems, each logged once.
    pub notes: Vec<String>,
}

impl Loader {
    pub fn new(dir: &Path, digests: Digests, definitions: Definitions, state: State) -> Loader {
        Loader {
            images_dir: dir.join("images"),
            machines: Folder::new(dir.join("machines"), input::machine),
            layouts: Folder::new(dir.join("layouts"), read_layout),
            images: Folder::new(dir.join("images"), input::image),
            templates: Folder::optional(dir.join(super::templates::FOLDER), read_template),
            approvals: Folder::optional(dir.join(approved::FOLDER), approved::read),
            approved_only: false,
            sizes: Folder::optional(dir.join(sizes::FOLDER), Size::read),
            registries: Registries::new(dir),
            states: states::file(dir),
            stamps: Vec::new(),
            digests,
            definitions,
            state,
            stale: true,
        }
    }

    /// Sets whether machines without an approved plan get nothing to install.
    pub fn approved_only(self, approved_only: bool) -> Loader {
        Loader { approved_only, ..self }
    }

    /// Ignores approvals: for a plan that is about to be approved.
    pub fn unapproved(self) -> Loader {
        Loader { approvals: Folder::optional(PathBuf::new(), approved::read), ..self }
    }

    /// Stores a computed digest. The next scan returns a new snapshot.
    pub fn digest_done(&mut self, done: digest::Done) {
        self.digests.keep(done);
        self.stale = true;
    }

    /// Stores the result of a `verify`, as [`Loader::digest_done`] does.
    pub fn verified(&mut self, done: definitions::Done) {
        self.definitions.verified(done);
        self.stale = true;
    }

    /// Returns whether a `verify` is still running.
    pub fn waits(&self) -> bool {
        self.definitions.waits()
    }

    /// Notes that the database has changed. The next scan returns a new snapshot.
    pub fn refresh(&mut self) {
        self.stale = true;
    }

    /// Returns a new snapshot if anything has changed since the last scan.
    pub fn look(&mut self) -> Option<Seen> {
        let mut changed = std::mem::take(&mut self.stale);
        changed |= self.machines.look();
        changed |= self.layouts.look();
        changed |= self.images.look();
        changed |= self.definitions.look();
        changed |= self.templates.look();
        changed |= self.approvals.look();
        changed |= self.sizes.look();
        changed |= self.registries.look();
        changed |= self.states.look();
        changed |= self.digests.try_again();
        let stamps = self.image_paths().into_iter().flat_map(|path| [manifest_of(&path), path]);
        let stamps: Vec<_> = stamps.map(|path| digest::stamp(&path).ok()).collect();
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
        problems.extend(self.registries.problem());
        problems.extend(self.states.problem());
        let (mut directory, mut notes) = (Directory::default(), Vec::new());
        directory.images.clone_from(&images);
        // Machines wait for images without a digest, which is being computed or cannot be.
        let mut ready = BTreeMap::new();
        for (id, (path, mut image)) in images {
            let mut usable = true;
            if let (Location::File(served), Some(file)) = (&image.at, self.file_of(&image)) {
                let manifest = manifest_of(&file);
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
                match contents(&manifest, image.digest.as_deref()) {
                    Ok(contents) => image.contents = contents,
                    Err(why) => notes.push(format!("{}: {} is not used: {why}", path.display(), manifest.display())),
                }
            }
            problems.extend(self.registries.open(&mut image).map(|why| format!("{}: {why}", path.display())));
            ready.insert(id, usable.then_some(image));
        }
        directory.layout_files = layouts.iter().map(|(id, (path, _))| (id.clone(), path.clone())).collect();
        let layouts = layouts.into_iter().map(|(id, (_, layout))| (id, layout)).collect();
        let templates = Templates::new(self.templates.in_force(&mut problems), &mut problems);
        notes.extend(wanted::unusable(&templates));
        let approvals = Approvals::new(&self.approvals, self.approved_only, &mut problems);
        let sizes = self.sizes.in_force(&mut problems);
        let sizes = unique("size", sizes, |size| &size.id, &mut problems);
        directory.size_files = sizes.iter().map(|(id, (path, _))| (id.clone(), path.clone())).collect();
        let sizes = sizes.into_iter().map(|(id, (_, size))| (id, size)).collect();
        let states = self.states.in_force.clone();
        directory.known = Known { layouts, set, images: ready, templates, states, approvals, sizes };
        problems.extend(self.definitions.problems());
        self.add_machines(&mut directory, &mut problems, &mut notes);
        Seen { directory, problems, notes }
    }

    fn add_machines(&mut self, directory: &mut Directory, problems: &mut Vec<String>, said: &mut Vec<String>) {
        let (known, state, definitions) = (&directory.known, &self.state, &mut self.definitions);
        let moves = state.live_moves_blocking().unwrap_or_else(|error| {
            problems.push(error.to_string());
            Vec::new()
        });
        let files = self.machines.entries.values();
        let files = files.filter_map(|entry| entry.newest.as_ref().ok().or(entry.in_force.as_ref()).cloned());
        let overlay = Overlay::new(&moves, files);
        let mut settle = |machine: &Machine| -> Result<(Vec<String>, Option<String>), String> {
            let (machine, note) = with_definition(definitions, &overlay.of(machine).0);
            let standing = standing(state, &machine, known)?;
            resolve(&machine, &standing, known)?;
            let notes = notes(&machine, &standing, known).into_iter().chain(note).collect();
            Ok((notes, broken_promise(&machine, &standing, known)))
        };
        self.machines.say_unread(problems);
        let mut all = Vec::new();
        for (path, entry) in &mut self.machines.entries {
            let hidden = entry.newest.as_ref().ok().and_then(|machine| overlay.of(machine).1);
            problems.extend(hidden.map(|why| say(path, &why, false)));
            let newest = entry.newest.as_ref().map_err(ToString::to_string).and_then(&mut settle);
            let machine = match newest {
                Ok((notes, broken)) => {
                    problems.extend(broken.map(|why| say(path, &why, false)));
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
        let counts = |machine: &Machine| overlay.of(machine).0;
        let all = all.into_iter().map(|(path, machine)| (path, with_definition(definitions, &counts(&machine)).0));
        let all = all.collect();
        for (id, (path, machine)) in duplicates::without_shared_ids(all, problems) {
            duplicates::list_macs(&mut directory.macs, &path, &machine, problems);
            directory.machine_files.insert(id.clone(), path);
            directory.machines.insert(id, machine);
        }
    }
}

/// Returns the machine with the image and the definition to which its OS resolves, and a remark on them.
fn with_definition(definitions: &mut Definitions, machine: &Machine) -> (Machine, Option<String>) {
    let mut machine = machine.clone();
    let Some(allocation) = &mut machine.allocation else { return (machine, None) };
    let Some(Choice { settled, image, note }) = definitions.choose(allocation) else { return (machine, None) };
    if let (Some(image), Some(os)) = (image, &allocation.os) {
        allocation.image = Spanned::new(*os.span(), image);
    }
    allocation.definition = settled;
    (machine, note)
}

fn manifest_of(image: &Path) -> PathBuf {
    let mut path = image.as_os_str().to_owned();
    path.push(MANIFEST);
    path.into()
}

/// Reads from the manifest what the tree of an image contains; `None` without a manifest.
fn contents(manifest: &Path, digest: Option<&str>) -> Result<Option<Contents>, String> {
    let Some(digest) = digest else { return Ok(None) };
    let text = match digest::stamp(manifest) {
        Ok(file) if file.size > MANIFEST_BYTES => {
            return Err(format!("it has {} bytes, and the limit is {MANIFEST_BYTES}", file.size));
        }
        Ok(_) => std::fs::read(manifest).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    contents::of_manifest(&text, digest)
}

fn standing(state: &State, machine: &Machine, known: &Known) -> Result<Standing, String> {
    let Some(allocation) = &machine.allocation else { return Ok(Standing::default()) };
    let standing = state.standing_blocking(&machine.id, &allocation.id).map_err(|error| error.to_string())?;
    let generated = wanted::generate_blocking(state, &machine.id, allocation, known);
    let generated = generated.map_err(|error| error.to_string())?;
    let approved = match known.approvals.of_other(&machine.id, &allocation.id) {
        Some(other) => {
            let other = state.standing_blocking(&machine.id, &other).map_err(|error| error.to_string())?;
            known.approvals.in_force(&machine.id, &other)
        }
        None => known.approvals.in_force(&machine.id, &standing),
    };
    Ok(Standing { generated, approved, ..standing })
}

/// Indexes values by id. If two files have the same id, the first one by name takes precedence.
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
                "{}: {kind} {} is already defined in {}, which takes precedence",
                path.display(),
                id(&value),
                first.display()
            )),
            None => drop(by_id.insert(id(&value).clone(), (path, value))),
        }
    }
    by_id
}
