//! Predictions for `drophammer rack plan`: what each machine in a server's directory would receive after a change, without a server. Files
//! and database are only read, whether a server is running or not.

use super::api::told::on_the_wire;
use super::approved;
use super::definitions::{Definitions, Verified};
use super::digest::Digests;
use super::directory::{Directory, Loader};
use super::input::{Allocation, Machine, nearest};
use super::moves::handing::{self, Foreseen};
use super::operator::reinstalls::is_reinstallable;
use super::preview::{Registered, WAITS, of_row};
use super::resolve::{notes, nowhere, resolve};
use super::state::{Order, Standing, State, Words, now};
use super::templates::writing;
use super::{DATABASE, folder, wanted};
use crate::allocation;
use crate::error::{Context, Error, Phase, Result};
use crate::facts::StageTime;
use crate::plan::Verdicts;
use marked_yaml::{Span, Spanned};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Base URL in the predicted responses; never contacted.
const URL: &str = "http://server";

/// Requested change: installed machines would be reinstalled with it, and others installed with it. Without a change, the files apply.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Id of the image.
    pub image: Option<String>,
    /// Id of the layout.
    pub layout: Option<String>,
    /// True if installed machines are reinstalled with the image in their file.
    pub reinstall: bool,
}

impl Change {
    fn reinstalls(&self) -> bool {
        self.reinstall || self.image.is_some() || self.layout.is_some()
    }
}

/// Directory as it is now.
pub struct Rack {
    /// Directory to which approvals are written.
    dir: PathBuf,
    directory: Directory,
    state: State,
    /// Problems of the files. A machine may be missing because of one.
    pub problems: Vec<String>,
    /// Remarks that are not problems.
    pub notes: Vec<String>,
    /// Duration of the last installation in seconds, by machine.
    took: HashMap<String, f64>,
    /// Durations of the last installations in seconds, by size.
    by_size: HashMap<String, Vec<f64>>,
}

/// Predicted response to a machine.
#[derive(Debug, Clone)]
pub enum Outlook {
    /// Nothing would be done, for this reason.
    Nothing(String),
    /// The machine would get nothing, for this reason.
    Refused(String),
    /// Not predictable yet, for this reason.
    Unknown(String),
    Told(Box<allocation::Machine>),
}

/// Machine with its prediction.
#[derive(Debug, Clone)]
pub struct Seen {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub outlook: Outlook,
    pub registered: Option<Registered>,
    /// Installation to which an approval applies; see [`approved::installed`].
    pub installed: String,
    /// Expected duration in seconds: that of its last installation, or the median of machines of its size.
    pub seconds: Option<f64>,
}

/// Fields of a report that are needed here.
#[derive(Deserialize)]
struct Took {
    success: bool,
    #[serde(default)]
    timings: Vec<StageTime>,
}

impl Rack {
    /// Opens the state of `dir`, with the files of `new` in place of its own.
    ///
    /// # Errors
    /// The directory does not exist, or no server has run in it.
    pub fn open(dir: &Path, new: Option<&Path>) -> Result<Rack> {
        let files = new.unwrap_or(dir);
        if let Some(missing) = [dir, files].into_iter().find(|dir| !dir.is_dir()) {
            return Err(Error::refusal(Phase::Serve, format!("{} is not a directory", missing.display())));
        }
        if !folder::has_machines(files) {
            let message = format!("{}/machines does not contain a machine file", files.display());
            return Err(Error::refusal(Phase::Serve, message));
        }
        let state = State::open_to_read(&dir.join(DATABASE))?;
        let definitions = Definitions::new(files.join("os"), Verified::left_to_the_machine());
        let loader = Loader::new(files, Digests::known(state.clone()), definitions, state.clone());
        let mut loader = loader.unapproved();
        let seen = loader.look().ok_or_else(|| Error::new(Phase::Serve, "the directory could not be read"))?;
        let (mut directory, mut notes) = (seen.directory, Vec::new());
        for (id, image) in &mut directory.known.images {
            if image.is_none() {
                notes.push(format!("the digest of image {id} is not known yet: its manifest is not checked"));
                *image = Some(nowhere(id.clone()));
            }
        }
        let mut rack = Rack {
            dir: dir.to_owned(),
            directory,
            state,
            problems: seen.problems,
            notes,
            took: HashMap::new(),
            by_size: HashMap::new(),
        };
        rack.remember()?;
        Ok(rack)
    }

    /// Reads the durations of past installations.
    fn remember(&mut self) -> Result<()> {
        for (machine, report) in self.state.reports_blocking()? {
            // A report of a newer version may have another format.
            let Ok(Took { success: true, timings }) = serde_json::from_str(&report) else { continue };
            let seconds: f64 = timings.iter().map(|stage| stage.seconds).sum();
            if seconds > 0.0 && seconds.is_finite() {
                let size = self.directory.machine(&machine).and_then(|machine| machine.size.clone());
                self.by_size.entry(size.unwrap_or_default()).or_default().push(seconds);
                self.took.insert(machine, seconds);
            }
        }
        self.by_size.values_mut().for_each(|all| all.sort_by(f64::total_cmp));
        Ok(())
    }

    /// Returns ids and names of all machines with a file, sorted by name.
    pub fn machines(&self) -> Vec<(String, String)> {
        let all = self.directory.machines().map(|machine| (machine.id.clone(), machine.name.clone()));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|one, other| (&one.1, &one.0).cmp(&(&other.1, &other.0)));
        all
    }

    /// Checks that the layout and the image of a change exist.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn check(&self, change: &Change) -> Result<()> {
        let known = &self.directory.known;
        let layout = change.layout.as_ref().filter(|id| !known.layouts.contains_key(*id));
        let layout = layout.map(|id| ("layout", id, "layouts", nearest(id, known.layouts.keys().map(String::as_str))));
        let is_made = |id: &str| {
            let all = self.directory.machines().filter_map(|machine| machine.allocation.as_ref());
            all.filter_map(|allocation| allocation.definition.creates()).any(|os| os.to_string() == id)
        };
        let image = change.image.as_ref().filter(|id| !known.images.contains_key(*id) && !is_made(id));
        let image = image.map(|id| ("image", id, "images", nearest(id, known.images.keys().map(String::as_str))));
        match layout.or(image) {
            None => Ok(()),
            Some((what, id, folder, others)) => {
                Err(Error::refusal(Phase::Serve, format!("{what} {id:?} not found in {folder}/{others}")))
            }
        }
    }

    /// Returns the machine with its prediction after the change.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn see(&self, id: &str, change: &Change) -> Result<Seen> {
        let Some(machine) = self.directory.machine(id) else {
            return Err(Error::new(Phase::Serve, format!("machine {id} not found in machines/")));
        };
        let mut seen = Seen {
            id: id.to_owned(),
            name: machine.name.clone(),
            size: machine.size.clone(),
            outlook: Outlook::Nothing("its file contains no allocation".to_owned()),
            registered: None,
            installed: String::new(),
            seconds: self.seconds(id, machine.size.as_deref()),
        };
        if self.see_move(machine, &mut seen)? {
            return Ok(seen);
        }
        let Some(allocation) = &machine.allocation else { return Ok(seen) };
        let standing = self.standing(id, allocation)?;
        seen.installed = approved::installed(&standing);
        let is_installed = standing.is_installed();
        seen.outlook = self.outlook(machine.clone(), standing, change);
        self.see_registered(&mut seen, is_installed)?;
        Ok(seen)
    }

    /// Sets the prediction if a migration determines it, and returns whether one does. The change then does not apply.
    fn see_move(&self, machine: &Machine, seen: &mut Seen) -> Result<bool> {
        let Some(is) = self.state.live_move_blocking(&machine.id)? else { return Ok(false) };
        let of = handing::sender(&self.directory, &is);
        let standing = match of.and_then(|of| of.allocation.as_ref()) {
            Some(allocation) => self.standing(&is.a, allocation)?,
            None => Standing::default(),
        };
        seen.outlook = match handing::foreseen(is, &machine.id, standing, None, &self.directory) {
            Foreseen::AsEver => return Ok(false),
            Foreseen::Nothing(why) => Outlook::Nothing(why),
            Foreseen::Unknown(why) => Outlook::Unknown(why),
            Foreseen::Told(given) => self.told(machine, given.on_the_wire(URL, false)),
        };
        self.see_registered(seen, false)?;
        Ok(true)
    }

    fn standing(&self, id: &str, allocation: &Allocation) -> Result<Standing> {
        let mut standing = self.state.standing_blocking(id, &allocation.id)?;
        standing.generated = wanted::generate_blocking(&self.state, id, allocation, &self.directory.known)?;
        Ok(standing)
    }

    fn told(&self, machine: &Machine, allocation: allocation::Allocation) -> Outlook {
        Outlook::Told(Box::new(allocation::Machine {
            id: machine.id.clone(),
            name: machine.name.clone(),
            size: machine.size.clone().map(|id| allocation::Named { id }),
            allocation: Some(allocation),
            newest_move: None,
        }))
    }

    fn see_registered(&self, seen: &mut Seen, is_installed: bool) -> Result<()> {
        if matches!(seen.outlook, Outlook::Told(_))
            && let Some(row) = self.state.registered_blocking(&seen.id)?
        {
            match of_row(row, &seen.id, is_installed) {
                Ok(registered) => seen.registered = registered,
                Err(why) => seen.outlook = Outlook::Unknown(why),
            }
        }
        Ok(())
    }

    fn outlook(&self, mut machine: Machine, mut standing: Standing, change: &Change) -> Outlook {
        let known = &self.directory.known;
        let blank = |text: &String| Spanned::new(Span::new_blank(), text.clone());
        let mut file_says = String::new();
        if let Some(allocation) = &mut machine.allocation {
            file_says.clone_from(&allocation.image);
            if let Some(image) = change.image.as_ref().filter(|_| !standing.is_installed()) {
                allocation.image = blank(image);
            }
            if let Some(layout) = &change.layout {
                allocation.filesystemlayout = Some(blank(layout));
            }
        }
        if standing.is_installed() {
            if standing.adopted {
                return Outlook::Unknown(
                    "the operator reported it as installed, but it has not confirmed that yet".to_owned(),
                );
            }
            match &standing.order {
                Some(order) if order.begun && !order.given_up => {}
                Some(order) if order.given_up && !change.reinstalls() => {
                    let image = &order.image;
                    return Outlook::Unknown(format!(
                        "its reinstall with {image} was abandoned: it waits for the operator"
                    ));
                }
                Some(_) if !change.reinstalls() => {}
                None if !change.reinstalls() => {
                    let runs = standing.image.as_deref().unwrap_or("an unknown image");
                    let why = format!("installed with {runs}; no reinstall is ordered");
                    let notes = notes(&machine, &standing, known);
                    return Outlook::Nothing([vec![why], notes].concat().join("\n"));
                }
                _ => {
                    if let Some(why) = &machine.locked {
                        return Outlook::Refused(format!("it is locked: {why}"));
                    }
                    let words = Words { change_promise: change.layout.is_some(), ..Words::default() };
                    if let Err(why) = is_reinstallable(&machine, standing.clone(), known, &words) {
                        return Outlook::Refused(why.parts().1);
                    }
                    let earlier = standing.order.take().filter(|order| order.begun);
                    let image = change.image.clone().unwrap_or(file_says);
                    standing.order = Some(ordered(image, words, earlier));
                }
            }
        }
        match resolve(&machine, &standing, known) {
            Err(why) => Outlook::Refused(why),
            Ok(None) => Outlook::Unknown(WAITS.to_owned()),
            Ok(Some(assigned)) => {
                let allocation = on_the_wire(&assigned, standing, URL, false);
                self.told(&machine, allocation)
            }
        }
    }

    fn seconds(&self, id: &str, size: Option<&str>) -> Option<f64> {
        let of_size = || {
            let all = self.by_size.get(size?)?;
            all.get(all.len() / 2).copied()
        };
        self.took.get(id).copied().or_else(of_size)
    }

    /// Writes the approval atomically to the file that the server reads.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn approve(&self, seen: &Seen, verdicts: &Verdicts) -> Result<()> {
        let path = approved::path(&self.dir, &seen.id);
        let text = approved::text(verdicts, seen.installed.clone(), now());
        let text = text.map_err(|why| Error::refusal(Phase::Serve, why))?;
        // It contains no secrets, and the server may run as another user.
        let readable = || fs::set_permissions(&path, Permissions::from_mode(0o644));
        writing::put(&path, &text)
            .and_then(|()| readable())
            .context(Phase::Serve, || format!("write {}", path.display()))
    }
}

/// Returns the order as the server would store it.
pub fn ordered(image: String, words: Words, earlier: Option<Order>) -> Order {
    let Words { without_marker, change_promise, give_up, replace_newer } = words;
    Order {
        id: "planned".to_owned(),
        image,
        created: now(),
        attempts: 1,
        begun: earlier.is_some(),
        without_marker,
        change_promise,
        give_up,
        replace_newer,
        fencing: None,
        confirmed: true,
        disks: earlier.map(|earlier| earlier.disks).unwrap_or_default(),
        attempt: None,
        given_up: false,
        handed: None,
    }
}
