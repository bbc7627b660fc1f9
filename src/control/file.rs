//! A fleet without a server. What this machine is to become lies in a file of its own, on any web server or in the ramdisk. Only
//! the console hears what happens, and whoever `drophammer.report=` names. Nobody remembers it: the marker on the disks does.
//!
//! The file is the document of `GET /v1/machine/{id}`. It comes over HTTPS, or somebody whose key is known here has signed it.

use super::retry::{Attempt, BRIEF, PATIENT, Retries};
use super::wire::Report;
use super::{Acknowledged, Control};
use crate::allocation::Machine;
use crate::error::{Context, Error, Phase, Result};
use crate::facts::{Ended, Outcome};
use crate::http;
use crate::image::Keys;
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::{Extents, Memory};
use crate::stdout;
use place::Place;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

mod place;

/// For one answer.
const ANSWER: Duration = Duration::from_secs(30);

/// The largest layouts have some ten thousand bytes.
const DOCUMENT_BYTES: u64 = 4 << 20;

pub struct FileControl {
    client: Client,
    machine: String,
    /// Where the machine's file may be, in the order in which they are tried: one for each network card where they name one.
    places: Vec<Place>,
    /// Where the report is put.
    report: Option<Place>,
    keys: Keys,
    /// For a web server that is away.
    patient: Retries,
    /// For a signature that does not fit: it is uploaded after its file, or before.
    brief: Retries,
    seen: Mutex<Option<Seen>>,
}

/// A file that was read and is trusted.
#[derive(Clone)]
struct Seen {
    place: Place,
    etag: Option<HeaderValue>,
    machine: Machine,
}

/// What lies at a place.
enum Found {
    Nothing,
    /// What lay there before.
    Same,
    Document(Vec<u8>, Option<HeaderValue>),
}

impl FileControl {
    /// # Errors
    /// The machine has not what a place is named by, or TLS could not be set up.
    pub fn new(
        file: &str,
        report: Option<&str>,
        keys: Keys,
        machine: &str,
        inventory: &Inventory,
    ) -> Result<FileControl> {
        let places = place::all(file, machine, inventory)?;
        let report = report.map(|report| place::all(report, machine, inventory)).transpose()?;
        Ok(FileControl {
            client: http::client()?,
            machine: machine.to_owned(),
            places,
            report: report.and_then(|places| places.into_iter().next()),
            keys,
            patient: PATIENT,
            brief: BRIEF,
            seen: Mutex::default(),
        })
    }

    /// The machine by its file as it is now; none while there is no file.
    fn look(&self) -> Result<Option<Machine>> {
        for place in &self.places {
            let before = self.seen().clone().filter(|seen| seen.place == *place);
            // What does not fit now may fit as soon as the other of the two files is there as well.
            let found = self.brief.run(|| match self.trusted(place, before.as_ref()) {
                Ok(found) => Attempt::Done(found),
                Err(error) if error.is_refusal() => Attempt::Again(error),
                Err(error) => Attempt::Never(error),
            });
            // Of a control plane a refusal is that of the token, and there is none here.
            let found = found.map_err(|error| Error::new(error.phase, error.to_string()))?;
            if let Some(seen) = found {
                *self.seen() = Some(seen.clone());
                return Ok(Some(seen.machine));
            }
        }
        *self.seen() = None;
        Ok(None)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a file and what vouches for it. That it is not to be trusted, or not for this machine, is a refusal.
    fn trusted(&self, place: &Place, before: Option<&Seen>) -> Result<Option<Seen>> {
        let (text, etag) = match self.get(place, before.and_then(|seen| seen.etag.as_ref()))? {
            Found::Nothing => return Ok(None),
            Found::Same => return Ok(before.cloned()),
            Found::Document(text, etag) => (text, etag),
        };
        if !place.is_over_tls() {
            self.require_signature(place, &text)?;
        }
        let machine = self.understood(place, &text)?;
        Ok(Some(Seen { place: place.clone(), etag, machine }))
    }

    fn require_signature(&self, place: &Place, text: &[u8]) -> Result<()> {
        let unsigned = |why: String| Err(Error::refusal(Phase::Control, format!("{place} is not trusted: {why}")));
        if self.keys.0.is_empty() {
            return unsigned("it does not come over https, and no drophammer.key= says who may sign it".to_owned());
        }
        let signature = place.signature();
        match self.get(&signature, None)? {
            Found::Document(signature, _) => self.keys.signature(place.as_str(), text, &signature).map(drop),
            Found::Nothing | Found::Same => unsigned(format!(
                "it does not come over https, and there is no signature at {signature}; sign it: minisign -S -m FILE"
            )),
        }
    }

    fn understood(&self, place: &Place, text: &[u8]) -> Result<Machine> {
        let refused = |why: &str| Err(Error::refusal(Phase::Control, format!("{place} {why}")));
        let machine: Machine =
            serde_json::from_slice(text).context(Phase::Control, || format!("{place} is not understood"))?;
        // Whoever hands out another machine's file, signed as it is, would have this one erased.
        if !machine.id.eq_ignore_ascii_case(&self.machine) {
            return refused(&format!("is about machine {}, and this is {}", machine.id, self.machine));
        }
        let Some(allocation) = &machine.allocation else { return Ok(machine) };
        if allocation.id.is_empty() {
            return refused("has no allocationuuid: no marker could say that it is installed");
        }
        if allocation.reinstall
            && !allocation.order_id().is_some_and(|id| id.parse::<u64>().is_ok_and(|number| number > 0))
        {
            return refused(
                "says reinstall: true, which needs an order with a number as its id, so that it is carried out once: \
                 \"1\" for the first, a larger one for each that follows",
            );
        }
        Ok(machine)
    }

    /// Asks with patience for what lies there.
    fn get(&self, place: &Place, etag: Option<&HeaderValue>) -> Result<Found> {
        if !place.is_url() {
            return read(place);
        }
        self.patient.run(|| {
            let request = self.client.get(place.as_str()).timeout(ANSWER);
            let request = etag.into_iter().fold(request, |request, etag| request.header(IF_NONE_MATCH, etag));
            match request.send() {
                Ok(response) => answered(place, response),
                Err(error) => lost(place, error),
            }
        })
    }

    fn put(&self, place: &Place, report: &Report) -> Result<()> {
        self.brief.run(|| match self.client.put(place.as_str()).timeout(ANSWER).json(report).send() {
            Ok(response) if response.status().is_success() => Attempt::Done(()),
            Ok(response) => refused(place, response.status()),
            Err(error) => lost(place, error),
        })
    }
}

fn answered(place: &Place, response: Response) -> Attempt<Found> {
    match response.status() {
        StatusCode::NOT_FOUND | StatusCode::GONE => Attempt::Done(Found::Nothing),
        StatusCode::NOT_MODIFIED => Attempt::Done(Found::Same),
        StatusCode::OK => {
            let etag = response.headers().get(ETAG).cloned();
            match bounded(response) {
                Ok(Some(text)) => Attempt::Done(Found::Document(text, etag)),
                Ok(None) => Attempt::Never(too_long(place)),
                Err(error) => Attempt::Again(Error::with_source(Phase::Control, format!("read {place}"), error)),
            }
        }
        status => refused(place, status),
    }
}

fn refused<T>(place: &Place, status: StatusCode) -> Attempt<T> {
    let error = Error::new(Phase::Control, format!("{place}: the server answered {status}"));
    if http::is_passing(status) { Attempt::Again(error) } else { Attempt::Never(error) }
}

fn lost<T>(place: &Place, error: reqwest::Error) -> Attempt<T> {
    let never = http::is_certificate(&error);
    let error = Error::with_source(Phase::Control, format!("{place}: no answer"), error.without_url());
    if never { Attempt::Never(error) } else { Attempt::Again(error) }
}

fn read(place: &Place) -> Result<Found> {
    let text = match std::fs::File::open(place.as_str()).and_then(bounded) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        text => text.context(Phase::Control, || format!("read {place}"))?,
    };
    text.map(|text| Found::Document(text, None)).ok_or_else(|| too_long(place))
}

/// None when there is more than a document has.
fn bounded(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    from.take(DOCUMENT_BYTES + 1).read_to_end(&mut text)?;
    Ok(Some(text).filter(|text| text.len() as u64 <= DOCUMENT_BYTES))
}

fn too_long(place: &Place) -> Error {
    let most = crate::text::bytes(DOCUMENT_BYTES);
    Error::new(Phase::Control, format!("{place} has more than {most}: that is no machine's file"))
}

impl Control for FileControl {
    fn register(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait(&self, patience: Duration) -> Result<bool> {
        let is_allocated = self.look()?.is_some_and(|machine| machine.allocation.is_some());
        if !is_allocated {
            thread::sleep(http::jittered(patience));
        }
        Ok(is_allocated)
    }

    fn machine(&self) -> Result<Machine> {
        let seen = self.seen().as_ref().map(|seen| seen.machine.clone());
        Ok(seen.unwrap_or_default())
    }

    /// Is the file still what it was? Whoever takes it away or changes it until now has prevented what it asked for.
    fn point_of_no_return(
        &self,
        _: &str,
        _: Option<&str>,
        _: &[MarkedDisk],
        _: &[Extents],
        _: Option<&str>,
    ) -> Result<()> {
        let before = self.machine()?;
        if self.look()?.as_ref() == Some(&before) {
            return Ok(());
        }
        let message =
            "the machine's file was changed or taken away since it was read; start again to go by what it says now";
        Err(Error::refusal(Phase::Control, message))
    }

    /// The marker says what the next boot must know: a report that does not arrive stops nothing.
    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        if let Outcome::Succeeded { .. } = ended.outcome {
            stdout::say(&ended.message);
        }
        if let Some(place) = &self.report
            && let Err(error) = self.put(place, &Report::from(ended))
        {
            stdout::say(&format!("the report could not be delivered: {error}"));
        }
        Ok(Acknowledged::default())
    }

    fn remembers(&self) -> bool {
        false
    }

    fn memory(&self) -> Memory {
        Memory::DisksOnly
    }
}

#[cfg(test)]
mod tests;
