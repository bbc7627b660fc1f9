//! Requests to one controller, including redirects, ETags, and the error messages of controllers.
//!
//! Each request opens a new connection, because some controllers close connections without notice. The password is
//! never sent to another origin.

use super::etag;
use super::session::Session;
use crate::{Unguarded, WriteGuard, WriteKind, bmc_refusal};
use common::bounded_read::read_whole;
use common::error::{Context, Phase, Result};
use common::format::untrusted_text_limits;
use linux::http;
use model::bmc::Bmc;
use reqwest::blocking::Client;
use reqwest::header::{ETAG, HeaderMap, IF_MATCH, LOCATION};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::cell::RefCell;
use std::time::Duration;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response, in bytes. A system resource with all of its sensors is smaller.
const ANSWER_BYTES: u64 = 4 << 20;
/// Maximum number of redirects of one request.
const REDIRECTS: usize = 4;
/// Maximum number of pages of a collection. Each page of a controller contains at least a few dozen members.
const MEMBER_PAGES: usize = 64;
/// Maximum length of a controller's error message, in bytes.
const MESSAGE_BYTES: usize = 300;

/// Client of one management controller.
pub(crate) struct RedfishClient<'a> {
    http: Client,
    pub(super) bmc: &'a Bmc,
    /// URL of the controller, without a path.
    pub(super) url: &'a str,
    /// Session; `None` if the controller accepts Basic authentication, or no session was opened yet.
    pub(super) session: RefCell<Option<Session>>,
    pub(super) guard: &'a dyn WriteGuard,
}

/// Request to a controller.
pub(super) struct RedfishRequest<'a> {
    pub method: Method,
    pub path: &'a str,
    pub body: Option<&'a Value>,
    pub if_match: Option<&'a str>,
    /// True if the request is sent without credentials.
    pub is_anonymous: bool,
}

impl<'a> RedfishRequest<'a> {
    pub(super) fn new(method: Method, path: &'a str) -> RedfishRequest<'a> {
        RedfishRequest { method, path, body: None, if_match: None, is_anonymous: false }
    }
}

/// Response of a controller, which may be an error.
pub(super) struct RedfishResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Vec<u8>,
}

/// Resource, with the ETags that are sent in a request to change it.
pub(super) struct RedfishResource {
    pub document: Value,
    etag: Option<String>,
}

impl<'a> RedfishClient<'a> {
    pub(super) fn new(bmc: &'a Bmc, url: &'a str) -> Result<RedfishClient<'a>> {
        let http = http::new_device_client(bmc.insecure)?;
        Ok(RedfishClient { http, bmc, url, session: RefCell::new(None), guard: &Unguarded })
    }

    /// Reads a resource.
    pub(super) fn fetch(&self, path: &str) -> Result<RedfishResource> {
        let response = self.send(&RedfishRequest::new(Method::GET, path))?;
        let etag = response.header(ETAG.as_str()).map(str::to_owned);
        let body = self.expect_success(response)?.body;
        let document = serde_json::from_slice(&body)
            .context(Phase::Control, || format!("cannot parse the response of {url}{path}", url = self.url))?;
        Ok(RedfishResource { document, etag })
    }

    /// Reads the links to the members of a collection. Large collections consist of several pages.
    ///
    /// # Errors
    /// Returns an error if a page cannot be read, or the collection has more than [`MEMBER_PAGES`] pages.
    pub(super) fn fetch_members(&self, path: &str) -> Result<Vec<String>> {
        let (mut members, mut next) = (Vec::new(), Some(path.to_owned()));
        for _ in 0..MEMBER_PAGES {
            let Some(page) = next else { return Ok(members) };
            let document = self.fetch(&page)?.document;
            let links = document["Members"].as_array().into_iter().flatten();
            members.extend(links.filter_map(|link| link["@odata.id"].as_str()).map(str::to_owned));
            next = document["Members@odata.nextLink"].as_str().map(str::to_owned);
        }
        let too_long =
            || bmc_refusal(format!("the list at {url}{path} has more than {MEMBER_PAGES} pages", url = self.url));
        next.map_or(Ok(members), |_| Err(too_long()))
    }

    /// Changes a resource that was read before. If the controller rejects the ETag, repeats the request with other
    /// forms of the ETag.
    pub(super) fn patch(&self, path: &str, resource: &RedfishResource, body: &Value) -> Result<RedfishResponse> {
        let attempts = etag::list_attempts(resource.etag.as_deref(), resource.document["@odata.etag"].as_str());
        let mut attempts = attempts.iter();
        loop {
            let if_match = attempts.next().and_then(Option::as_deref);
            let request = RedfishRequest { body: Some(body), if_match, ..RedfishRequest::new(Method::PATCH, path) };
            let response = self.send_change(&request, WriteKind::Settings)?;
            if !response.rejects_etag() || attempts.len() == 0 {
                return Ok(response);
            }
        }
    }

    pub(super) fn post(&self, path: &str, body: &Value, write: WriteKind) -> Result<RedfishResponse> {
        self.send_change(&RedfishRequest { body: Some(body), ..RedfishRequest::new(Method::POST, path) }, write)
    }

    /// Sends a request that changes the machine, if the guard permits it.
    fn send_change(&self, request: &RedfishRequest, write: WriteKind) -> Result<RedfishResponse> {
        self.guard.permit(write)?;
        let response = self.send(request)?;
        self.guard.confirm();
        Ok(response)
    }

    /// Sends a request, and follows redirects to the same controller. Opens a session if the controller requires one.
    pub(super) fn send(&self, request: &RedfishRequest) -> Result<RedfishResponse> {
        let mut url = self.resolve_link(request.path)?;
        let mut may_open_session = !request.is_anonymous && request.method != Method::DELETE;
        for _ in 0..=REDIRECTS + 1 {
            let response = self.send_once(request, &url)?;
            // A session is opened even if the controller offers Basic authentication, because some controllers offer
            // Basic authentication although it is disabled. If an existing session is rejected, it has expired, and is
            // replaced.
            if may_open_session && response.status == StatusCode::UNAUTHORIZED {
                may_open_session = false;
                self.open_session().map_err(|why| {
                    let rejected = self.explain_rejection(&response);
                    bmc_refusal(format!("{rejected}; opening a session has also failed: {why}"))
                })?;
                continue;
            }
            match self.find_redirect(&request.method, &url, &response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(bmc_refusal(format!(
            "management controller {url} redirects {path} more than {REDIRECTS} times",
            url = self.url,
            path = request.path
        )))
    }

    fn send_once(&self, request: &RedfishRequest, url: &Url) -> Result<RedfishResponse> {
        let Bmc { username, password, .. } = self.bmc;
        let builder = self
            .http
            .request(request.method.clone(), url.clone())
            .timeout(REQUEST_TIMEOUT)
            .header("OData-Version", "4.0");
        let builder = request.body.iter().fold(builder, |builder, body| builder.json(body));
        let builder = request.if_match.iter().fold(builder, |builder, etag| builder.header(IF_MATCH, *etag));
        let builder = match &*self.session.borrow() {
            _ if request.is_anonymous => builder,
            Some(session) => builder.header("X-Auth-Token", &session.token),
            None => builder.basic_auth(username, Some(password.reveal())),
        };
        let failed = || format!("no response from the management controller {url}", url = self.url);
        let response = builder.send().map_err(reqwest::Error::without_url).context(Phase::Control, failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read_whole(response, ANSWER_BYTES).context(Phase::Control, failed)?;
        let too_long = || {
            bmc_refusal(format!(
                "the response of {url}{path} is longer than {ANSWER_BYTES} bytes",
                url = self.url,
                path = request.path
            ))
        };
        Ok(RedfishResponse { status, headers, body: body.ok_or_else(too_long)? })
    }

    /// Resolves a link in a response. Fails if the target is on another host.
    fn resolve_link(&self, link: &str) -> Result<Url> {
        let base = Url::parse(self.url)
            .context(Phase::Control, || format!("cannot parse the address {url}", url = self.url))?;
        let url = base.join(link).ok().filter(|url| url.origin() == base.origin());
        url.ok_or_else(|| {
            bmc_refusal(format!(
                "management controller {url} returned the link {link:?}, which is not a path on this controller",
                url = self.url
            ))
        })
    }

    /// Returns the URL to which the response redirects the request; `None` if it is not a redirect. GET requests follow
    /// every redirect. Other requests follow redirects with status 307 or 308. A redirect with another status is
    /// followed only if the new path differs from the old one by a trailing slash alone. Status 303 is never followed,
    /// because it would change the method.
    fn find_redirect(&self, method: &Method, url: &Url, response: &RedfishResponse) -> Result<Option<Url>> {
        if !matches!(response.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = response.header(LOCATION.as_str()).and_then(|location| url.join(location).ok());
        let refused = |why: String| {
            bmc_refusal(format!(
                "management controller {url} responded {status}: {why}",
                url = self.url,
                status = response.status
            ))
        };
        let Some(next) = location else { return Err(refused("the redirect address is invalid".to_owned())) };
        if next.origin() != url.origin() {
            let origin = next.origin().ascii_serialization();
            return Err(refused(format!(
                "the request is redirected to another address, {origin}, to which the password is not sent; if that address belongs to this controller, specify that address for the controller"
            )));
        }
        let preserves = matches!(response.status.as_u16(), 307 | 308) || *method == Method::GET;
        let is_same =
            next.path().trim_end_matches('/') == url.path().trim_end_matches('/') && response.status.as_u16() != 303;
        match preserves || is_same {
            true => Ok(Some(next)),
            false => Err(refused(format!(
                "the {method} request is redirected to another path, {path}",
                path = untrusted_text_limits::sanitize_line(next.path())
            ))),
        }
    }

    /// Returns the response. If its status is an error, returns an error with the controller's message.
    pub(super) fn expect_success(&self, response: RedfishResponse) -> Result<RedfishResponse> {
        match response.status.is_success() {
            true => Ok(response),
            false => Err(bmc_refusal(self.explain_rejection(&response))),
        }
    }

    fn explain_rejection(&self, response: &RedfishResponse) -> String {
        let message = response.message().replace(self.bmc.password.reveal(), "…");
        let message =
            untrusted_text_limits::sanitize_line(&untrusted_text_limits::truncate_with_mark(&message, MESSAGE_BYTES));
        let said = match response.status {
            StatusCode::UNAUTHORIZED if message.is_empty() => "the BMC rejected the username and password".to_owned(),
            StatusCode::UNAUTHORIZED => format!("the BMC rejected the username and password: {message}"),
            _ if message.is_empty() => "the response contains no reason".to_owned(),
            _ => message,
        };
        format!("management controller {url} responded {status}: {said}", url = self.url, status = response.status)
    }
}

impl RedfishResponse {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the body as JSON; `None` if the body is not JSON, or the response is an error.
    pub(super) fn document(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok().filter(|_| self.status.is_success())
    }

    /// Returns whether the body contains the text.
    pub(super) fn mentions(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.body).contains(text)
    }

    /// Returns whether a controller that responds with this status may accept the request in another form, or at a
    /// later time.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self.status.as_u16(), 400 | 404 | 405 | 409 | 422 | 501)
    }

    fn rejects_etag(&self) -> bool {
        let names_etag =
            || ["etag", "if-match", "precondition"].iter().any(|word| self.message().to_lowercase().contains(word));
        matches!(self.status.as_u16(), 412 | 428) || self.status == StatusCode::BAD_REQUEST && names_etag()
    }

    /// Returns the messages in Redfish's format. A message without text is represented by its id and arguments.
    fn message(&self) -> String {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let error = &value["error"];
        let extended = [error, &value].into_iter().map(|one| &one["@Message.ExtendedInfo"]).find(|one| !one.is_null());
        let extended: &[Value] = match extended {
            Some(Value::Array(all)) => all,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        let mut messages: Vec<String> = extended.iter().filter_map(format_message).collect();
        messages.dedup();
        match error["message"].as_str() {
            _ if !messages.is_empty() => messages.join(" "),
            Some(message) => message.to_owned(),
            None => String::from_utf8_lossy(&self.body).into_owned(),
        }
    }
}

fn format_message(message: &Value) -> Option<String> {
    if let Some(text) = message["Message"].as_str().filter(|text| !text.is_empty()) {
        return Some(text.to_owned());
    }
    // Both spellings are tried, because older versions of iLO use the spelling MessageID.
    let id = message["MessageId"].as_str().or(message["MessageID"].as_str())?;
    let args = message["MessageArgs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    Some(if args.is_empty() { id.to_owned() } else { format!("{id}: {}", args.join(", ")) })
}
