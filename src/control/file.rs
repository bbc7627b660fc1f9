//! Control plane without a server: the allocation of this machine is in a file of its own, on any web server or in the ramdisk. Progress is
//! reported only on the console, and to the URL of `drophammer.report=`. The only persistent state is the install marker on the disks.
//!
//! The file has the format of `GET /v1/machine/{id}`. It must be served over HTTPS or signed with a known key.

use super::retry::{Attempt, BRIEF, PATIENT, Retries};
use super::wire::Report;
use super::{Acknowledged, AttemptNotice, Control};
use crate::allocation::{Machine, OrderNumber};
use crate::error::{Context, Error, Phase, Result};
use crate::facts::{Ended, Outcome};
use crate::http;
use crate::image::Keys;
use crate::inventory::Inventory;
use crate::plan::Memory;
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

/// Timeout of a request.
const ANSWER: Duration = Duration::from_secs(30);

/// Size limit of a document. The largest layouts have some ten thousand bytes.
const DOCUMENT_BYTES: u64 = 4 << 20;

/// Control plane that reads a file.
pub struct FileControl {
    client: Client,
    machine: String,
    /// Possible locations of the machine's file, in the order of attempts: one per network interface if the pattern contains `{mac}`.
    places: Vec<Place>,
    /// Destination of the report.
    report: Option<Place>,
    keys: Keys,
    /// Retries for an unreachable web server.
    patient: Retries,
    /// Retries for a signature mismatch: the file and its signature are not uploaded at the same time.
    brief: Retries,
    seen: Mutex<Option<Seen>>,
}

/// File that was read and is trusted.
#[derive(Clone)]
struct Seen {
    place: Place,
    etag: Option<HeaderValue>,
    machine: Machine,
}

/// Result of a request.
enum Found {
    Nothing,
    /// Not modified.
    Same,
    Document(Vec<u8>, Option<HeaderValue>),
}

impl FileControl {
    /// Resolves the locations.
    ///
    /// # Errors
    /// Fails if the machine lacks a property that the pattern contains, or TLS cannot be set up.
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

    /// Reads the machine's current file. Returns `None` if there is none.
    fn look(&self) -> Result<Option<Machine>> {
        for place in &self.places {
            let before = self.seen().clone().filter(|seen| seen.place == *place);
            // A mismatch may resolve itself once both the file and its signature are uploaded.
            let found = self.brief.run(|| match self.trusted(place, before.as_ref()) {
                Ok(found) => Attempt::Done(found),
                Err(error) if error.is_refusal() => Attempt::Again(error),
                Err(error) => Attempt::Never(error),
            });
            // Callers interpret a refusal as a rejected token, which does not exist here.
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

    /// Reads a file and verifies its signature. Refuses a file that is not trusted or belongs to another machine.
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
            return unsigned(
                "it is not served over https, and a signature cannot be verified without drophammer.key=".to_owned(),
            );
        }
        let signature = place.signature();
        match self.get(&signature, None)? {
            Found::Document(signature, _) => self.keys.signature(place.as_str(), text, &signature).map(drop),
            Found::Nothing | Found::Same => unsigned(format!(
                "it is not served over https, and a signature is missing at {signature}; sign it with minisign -S -m FILE"
            )),
        }
    }

    fn understood(&self, place: &Place, text: &[u8]) -> Result<Machine> {
        let refused = |why: &str| Err(Error::refusal(Phase::Control, format!("{place} {why}")));
        let machine: Machine =
            serde_json::from_slice(text).context(Phase::Control, || format!("{place} cannot be parsed"))?;
        // Serving the validly signed file of another machine would otherwise have this one erased.
        if !machine.id.eq_ignore_ascii_case(&self.machine) {
            return refused(&format!("is for machine {}, but this is machine {}", machine.id, self.machine));
        }
        let Some(allocation) = &machine.allocation else { return Ok(machine) };
        if allocation.id.is_empty() {
            return refused("lacks an allocationuuid, which the install marker requires");
        }
        if allocation.reinstall && allocation.order_id().and_then(OrderNumber::parse).is_none() {
            return refused(&format!(
                "has reinstall: true, which requires an order whose id is a number from 1 to {}, so that it is carried out only once: \
                 \"1\" for the first, and a larger one for each later reinstall",
                OrderNumber::LARGEST
            ));
        }
        Ok(machine)
    }

    /// Reads a location, with retries.
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

/// Reads a document. Returns `None` if it exceeds the size limit.
fn bounded(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    from.take(DOCUMENT_BYTES + 1).read_to_end(&mut text)?;
    Ok(Some(text).filter(|text| text.len() as u64 <= DOCUMENT_BYTES))
}

fn too_long(place: &Place) -> Error {
    let most = crate::text::bytes(DOCUMENT_BYTES);
    Error::new(Phase::Control, format!("{place} is larger than {most}, the limit for the file of a machine"))
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

    /// Checks that the file has not changed. Until now, an operator can cancel by removing or changing the file.
    fn point_of_no_return(&self, _: &AttemptNotice) -> Result<()> {
        let before = self.machine()?;
        if self.look()?.as_ref() == Some(&before) {
            return Ok(());
        }
        let message =
            "the file of this machine was changed or removed since it was read; reboot to use its current contents";
        Err(Error::refusal(Phase::Control, message))
    }

    /// Sends the report, best effort: all that the next boot needs is in the install marker.
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
