//! Control plane without a server. The allocation of each machine is a file on any web server or in the ramdisk.
//! Progress is only printed on the console. The final report is also sent to the URL in `drophammer.report=`. The
//! only persistent record is the install marker on the disks.
//!
//! The file has the format of `GET /v1/machine/{id}`. It must be served over HTTPS, or be signed with a trusted key.

use super::agent_api_types::InstallReport;
use super::retry::{AttemptResult, ONE_MINUTE_RETRIES, RetryPolicy, TEN_MINUTE_RETRIES};
use super::{AttemptNotice, ControlPlane, ReportAcknowledgement};
use common::bounded_read::read_whole;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::output;
use common::sync::lock_mutex;
use linux::http;
use machine_file_url::FileLocation;
use model::allocation::{AssignedMachine, OrderNumber, RecordSource};
use model::install_report::{InstallOutcome, InstallResult};
use model::inventory::Inventory;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, PRAGMA};
use std::sync::Mutex;
use std::time::Duration;
use std::{io, thread};

mod machine_file_url;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a machine file, in bytes. The largest layouts have some tens of kilobytes.
const DOCUMENT_BYTES: u64 = 4 << 20;

/// Function that verifies the signature of a document with the keys that the agent trusts. Its arguments are the name,
/// the content and the signature of the document.
pub type SignatureVerifier = Box<dyn Fn(&str, &[u8], &[u8]) -> Result<()> + Send + Sync>;

/// Control plane that consists of one file per machine.
pub struct FileControl {
    client: Client,
    machine: String,
    /// Possible locations of the machine file, in the order in which they are tried. If the pattern contains `{mac}`,
    /// there is one location for each network interface.
    locations: Vec<FileLocation>,
    /// URL to which the report is sent.
    report: Option<FileLocation>,
    /// Function that verifies signatures; `None` if the agent does not trust any key.
    verifier: Option<SignatureVerifier>,
    /// Retry policy if the web server cannot be reached.
    patient: RetryPolicy,
    /// Retry policy if the signature does not match the file. The mismatch may be temporary, because the file and its
    /// signature are uploaded one after the other.
    brief: RetryPolicy,
    seen: Mutex<Option<TrustedFile>>,
}

/// Trusted machine file.
#[derive(Clone)]
struct TrustedFile {
    place: FileLocation,
    etag: Option<HeaderValue>,
    machine: AssignedMachine,
}

/// Use of HTTP caches between this machine and the web server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheUse {
    Permitted,
    /// Caches must ask the web server whether the file has changed.
    Revalidated,
}

/// Result of a request for a file.
enum FetchResult {
    /// The file does not exist.
    Missing,
    /// The file has not changed since the last request.
    NotModified,
    /// New content, and its ETag.
    Document(Vec<u8>, Option<HeaderValue>),
}

impl FileControl {
    /// Creates the control plane, and expands the location patterns for this machine.
    ///
    /// # Errors
    /// Fails if a pattern contains a property that the machine lacks, or if TLS cannot be set up.
    pub fn new(
        file: &str,
        report: Option<&str>,
        verifier: Option<SignatureVerifier>,
        machine: &str,
        inventory: &Inventory,
    ) -> Result<FileControl> {
        let locations = machine_file_url::expand_pattern(file, machine, inventory)?;
        let report = report.map(|report| machine_file_url::expand_pattern(report, machine, inventory)).transpose()?;
        Ok(FileControl {
            client: http::new_client()?,
            machine: machine.to_owned(),
            locations,
            report: report.and_then(|locations| locations.into_iter().next()),
            verifier,
            patient: TEN_MINUTE_RETRIES,
            brief: ONE_MINUTE_RETRIES,
            seen: Mutex::default(),
        })
    }

    /// Reads the current machine file. Returns `None` if the file does not exist.
    fn read_current_machine(&self, caches: CacheUse) -> Result<Option<AssignedMachine>> {
        for place in &self.locations {
            let before = lock_mutex(&self.seen).clone().filter(|seen| seen.place == *place);
            // If the signature does not match, the file and its signature are read again, because the signature may be
            // uploaded later than the file.
            let found = self.brief.run_attempts(|| match self.read_trusted(place, before.as_ref(), caches) {
                Ok(found) => AttemptResult::Done(found),
                Err(error) if error.is_refusal() => AttemptResult::Transient(error),
                Err(error) => AttemptResult::Permanent(error),
            });
            // Callers interpret a refusal as a rejected token. Reading a file does not involve a token, so a refusal is
            // converted to an ordinary error.
            let found = found.map_err(|error| Error::new(error.phase, error.to_string()))?;
            if let Some(seen) = found {
                *lock_mutex(&self.seen) = Some(seen.clone());
                return Ok(Some(seen.machine));
            }
        }
        *lock_mutex(&self.seen) = None;
        Ok(None)
    }

    /// Reads a file and verifies its signature. Fails if the file is not trusted, or belongs to another machine.
    fn read_trusted(
        &self,
        place: &FileLocation,
        before: Option<&TrustedFile>,
        caches: CacheUse,
    ) -> Result<Option<TrustedFile>> {
        let (text, etag) = match self.fetch_location(place, before.and_then(|seen| seen.etag.as_ref()), caches)? {
            FetchResult::Missing => return Ok(None),
            FetchResult::NotModified => return Ok(before.cloned()),
            FetchResult::Document(text, etag) => (text, etag),
        };
        if !place.is_over_tls() {
            self.require_signature(place, &text, caches)?;
        }
        let machine = self.parse_machine(place, &text)?;
        Ok(Some(TrustedFile { place: place.clone(), etag, machine }))
    }

    fn require_signature(&self, place: &FileLocation, text: &[u8], caches: CacheUse) -> Result<()> {
        let unsigned = |why: String| {
            Err(Error::refusal(Phase::Control, format!("{place} is not trusted: {why}"))
                .with_code(ErrorCode::AllocationUntrusted))
        };
        let Some(verifier) = &self.verifier else {
            return unsigned(
                "the file is not served over https, and a signature cannot be verified without the kernel argument drophammer.key=".to_owned(),
            );
        };
        let signature = place.signature_location();
        match self.fetch_location(&signature, None, caches)? {
            FetchResult::Document(signature, _) => verifier(place.as_str(), text, &signature),
            FetchResult::Missing | FetchResult::NotModified => unsigned(format!(
                "the file is not served over https, and a signature is missing at {signature}; sign the file with minisign -S -m FILE"
            )),
        }
    }

    fn parse_machine(&self, place: &FileLocation, text: &[u8]) -> Result<AssignedMachine> {
        let refused = |why: &str| {
            Err(Error::refusal(Phase::Control, format!("{place}: {why}")).with_code(ErrorCode::OtherMachine))
        };
        let machine: AssignedMachine =
            serde_json::from_slice(text).context(Phase::Control, || format!("{place} cannot be parsed"))?;
        // Without this check, a web server could make this machine erase its disks by serving the validly signed file
        // of another machine.
        if !machine.id.eq_ignore_ascii_case(&self.machine) {
            return refused(&format!(
                "the file is for machine {file_machine}, but this is machine {own_machine}",
                file_machine = machine.id,
                own_machine = self.machine
            ));
        }
        let Some(allocation) = &machine.allocation else { return Ok(machine) };
        if allocation.id.is_empty() {
            return refused("the file lacks an allocationuuid, which the install marker requires");
        }
        if allocation.reinstall && allocation.order_id().and_then(OrderNumber::parse).is_none() {
            return refused(&format!(
                "the allocation has reinstall: true, which requires an order whose id is a number from 1 to {}, so that the reinstall is carried out only once: \
                 \"1\" for the first reinstall, and a larger number for each later reinstall",
                OrderNumber::LARGEST
            ));
        }
        Ok(machine)
    }

    /// Reads the file at a location. Retries if the web server is unreachable.
    fn fetch_location(
        &self,
        place: &FileLocation,
        etag: Option<&HeaderValue>,
        caches: CacheUse,
    ) -> Result<FetchResult> {
        if !place.is_url() {
            return read_local_file(place);
        }
        self.patient.run_attempts(|| {
            let request = self.client.get(place.as_str()).timeout(REQUEST_TIMEOUT);
            let request = etag.into_iter().fold(request, |request, etag| request.header(IF_NONE_MATCH, etag));
            let request = match caches {
                CacheUse::Permitted => request,
                CacheUse::Revalidated => request.header(CACHE_CONTROL, "no-cache").header(PRAGMA, "no-cache"),
            };
            match request.send() {
                Ok(response) => evaluate_response(place, response),
                Err(error) => connection_failure(place, error),
            }
        })
    }

    fn put_report(&self, place: &FileLocation, report: &InstallReport) -> Result<()> {
        self.brief.run_attempts(|| match self.client.put(place.as_str()).timeout(REQUEST_TIMEOUT).json(report).send() {
            Ok(response) if response.status().is_success() => AttemptResult::Done(()),
            Ok(response) => status_failure(place, response.status()),
            Err(error) => connection_failure(place, error),
        })
    }
}

fn evaluate_response(place: &FileLocation, response: Response) -> AttemptResult<FetchResult> {
    match response.status() {
        StatusCode::NOT_FOUND | StatusCode::GONE => AttemptResult::Done(FetchResult::Missing),
        StatusCode::NOT_MODIFIED => AttemptResult::Done(FetchResult::NotModified),
        StatusCode::OK => {
            let etag = response.headers().get(ETAG).cloned();
            match read_whole(response, DOCUMENT_BYTES) {
                Ok(Some(text)) => AttemptResult::Done(FetchResult::Document(text, etag)),
                Ok(None) => AttemptResult::Permanent(size_limit_error(place)),
                Err(error) => {
                    AttemptResult::Transient(Error::with_source(Phase::Control, format!("read {place}"), error))
                }
            }
        }
        status => status_failure(place, status),
    }
}

fn status_failure<T>(place: &FileLocation, status: StatusCode) -> AttemptResult<T> {
    let error = Error::new(Phase::Control, format!("{place}: the server answered {status}"));
    if http::is_retryable(status) { AttemptResult::Transient(error) } else { AttemptResult::Permanent(error) }
}

fn connection_failure<T>(place: &FileLocation, error: reqwest::Error) -> AttemptResult<T> {
    let never = http::is_untrusted_certificate(&error);
    let error = Error::with_source(Phase::Control, format!("{place}: no answer"), error.without_url());
    if never { AttemptResult::Permanent(error) } else { AttemptResult::Transient(error) }
}

fn read_local_file(place: &FileLocation) -> Result<FetchResult> {
    let text = match std::fs::File::open(place.as_str()).and_then(|file| read_whole(file, DOCUMENT_BYTES)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FetchResult::Missing),
        text => text.context(Phase::Control, || format!("read {place}"))?,
    };
    text.map(|text| FetchResult::Document(text, None)).ok_or_else(|| size_limit_error(place))
}

fn size_limit_error(place: &FileLocation) -> Error {
    let most = common::format::format_bytes(DOCUMENT_BYTES);
    Error::new(Phase::Control, format!("{place} is larger than {most}, the limit for a machine file"))
}

impl ControlPlane for FileControl {
    fn register_machine(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        let is_allocated =
            self.read_current_machine(CacheUse::Permitted)?.is_some_and(|machine| machine.allocation.is_some());
        if !is_allocated {
            thread::sleep(http::add_jitter(patience));
        }
        Ok(is_allocated)
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        let seen = lock_mutex(&self.seen).as_ref().map(|seen| seen.machine.clone());
        Ok(seen.unwrap_or_default())
    }

    /// Checks that the file has not changed since it was read: the operator can cancel the installation by removing
    /// or changing the file. A cache must not answer with the earlier file.
    fn announce_point_of_no_return(&self, _: &AttemptNotice) -> Result<()> {
        let before = self.fetch_machine()?;
        if self.read_current_machine(CacheUse::Revalidated)?.as_ref() == Some(&before) {
            return Ok(());
        }
        let message =
            "the machine file was changed or removed after this boot had read the file; reboot to use the current file";
        Err(Error::refusal(Phase::Control, message))
    }

    /// Sends the report, with retries for a short time. A failure is printed, but not returned, because the next boot
    /// reads the result from the install marker.
    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        if let InstallOutcome::Succeeded { .. } = ended.outcome {
            output::print_line(&ended.message);
        }
        if let Some(place) = &self.report
            && let Err(error) = self.put_report(place, &InstallReport::from(ended))
        {
            output::print_line(&format!("the report could not be sent: {error}"));
        }
        Ok(ReportAcknowledgement::default())
    }

    fn records_installations(&self) -> bool {
        false
    }

    fn install_memory(&self) -> RecordSource {
        RecordSource::DisksOnly
    }
}

#[cfg(test)]
mod tests;
