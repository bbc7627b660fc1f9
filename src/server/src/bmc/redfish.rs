//! Redfish (DSP0266): systems, their reset types, and their boot override.

pub(crate) mod bios;

use super::{PowerAction, bmc_refusal};
use common::error::{Context, Phase, Result};
use common::format::untrusted_text;
use linux::http;
use model::bmc::Bmc;
use model::machine_identity::{is_same_uuid, parse_usable_uuid, usable_uuid};
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{ETAG, IF_MATCH};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

const ANSWER: Duration = Duration::from_secs(60);
/// Maximum size of a response, enough for a system with all of its sensors.
const ANSWER_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
struct RedfishLink {
    #[serde(rename = "@odata.id")]
    id: String,
}

#[derive(Deserialize)]
struct RedfishSystems {
    #[serde(rename = "Members")]
    members: Vec<RedfishLink>,
}

#[derive(Deserialize)]
struct RedfishSystem {
    #[serde(default, rename = "UUID")]
    uuid: Option<String>,
    #[serde(default, rename = "PowerState")]
    power: Option<String>,
    #[serde(default, rename = "Actions")]
    actions: Value,
}

/// Client of one management controller.
struct RedfishClient<'a> {
    client: Client,
    bmc: &'a Bmc,
    url: &'a str,
}

pub(crate) fn perform_action(
    bmc: &Bmc,
    url: &str,
    system: Option<&str>,
    action: PowerAction,
    machine: Option<&str>,
) -> Result<()> {
    let asked = RedfishClient { client: http::new_device_client(bmc.insecure)?, bmc, url };
    let path = match system {
        Some(path) => path.to_owned(),
        None => asked.find_system(machine)?,
    };
    let (system, etag): (RedfishSystem, _) = asked.fetch(&path)?;
    match action {
        PowerAction::Pxe => asked.boot_pxe(&path, etag),
        _ => asked.reset_system(&path, &system, action),
    }
}

impl RedfishClient<'_> {
    /// Finds the path of the machine's system. A single system must not report the UUID of another machine; of several systems, exactly
    /// one must report the machine's UUID.
    fn find_system(&self, machine: Option<&str>) -> Result<String> {
        let (RedfishSystems { members }, _) = self.fetch("/redfish/v1/Systems")?;
        let wanted = machine.and_then(|id| Uuid::try_parse(id).ok());
        if let [one] = &members[..] {
            let path = self.check_link(&one.id)?;
            return match wanted.and_then(usable_uuid) {
                Some(wanted) => self.refuse_another(&path, wanted).map(|()| path),
                None => Ok(path),
            };
        }
        let mut found = Vec::new();
        for RedfishLink { id } in &members {
            let path = self.check_link(id)?;
            if let (Some(uuid), Some(wanted)) = (self.read_uuid(&path)?, wanted)
                && is_same_uuid(uuid, wanted)
            {
                found.push((uuid == wanted, path));
            }
        }
        // A UUID in the other byte order is accepted only if no system has the identical UUID.
        let exact = found.iter().any(|(is_exact, _)| *is_exact);
        found.retain(|(is_exact, _)| *is_exact == exact);
        if let [(_, path)] = &found[..] {
            return Ok(path.clone());
        }
        let all: Vec<&str> = members.iter().map(|link| link.id.as_str()).collect();
        let which = machine.map_or("is requested".to_owned(), |id| format!("has the id {id}"));
        Err(bmc_refusal(format!(
            "{} has {} systems, and it is unknown which of them {which}: append the path of the system to the address. Systems: {}",
            self.url,
            members.len(),
            all.join(", ")
        )))
    }

    /// Returns the UUID of a system, if it identifies a machine.
    fn read_uuid(&self, path: &str) -> Result<Option<Uuid>> {
        let (RedfishSystem { uuid, .. }, _) = self.fetch(path)?;
        Ok(uuid.as_deref().and_then(parse_usable_uuid))
    }

    /// Refuses a system that reports the UUID of another machine, as after an address was reassigned, swapped or mistyped.
    fn refuse_another(&self, path: &str, wanted: Uuid) -> Result<()> {
        match self.read_uuid(path)? {
            Some(uuid) if !is_same_uuid(uuid, wanted) => Err(bmc_refusal(format!(
                "management controller {} belongs to machine {uuid}, not to {wanted}: nothing was switched. Correct its address; \
                 if the address is right, append the path of the system: {}{path}",
                self.url, self.url
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that a link of the controller is a path on the controller itself.
    fn check_link(&self, link: &str) -> Result<String> {
        match link.starts_with('/') && !link.starts_with("//") {
            true => Ok(link.to_owned()),
            false => Err(bmc_refusal(format!("{} returned the link {link:?}, which is not a path", self.url))),
        }
    }

    fn reset_system(&self, path: &str, system: &RedfishSystem, action: PowerAction) -> Result<()> {
        let reset = &system.actions["#ComputerSystem.Reset"];
        let Some(target) = reset["target"].as_str() else {
            return Err(bmc_refusal(format!(
                "{}{path} cannot be switched: it does not support ComputerSystem.Reset",
                self.url
            )));
        };
        let is_off = system.power.as_deref() == Some("Off");
        let wanted: &[&str] = match action {
            PowerAction::Off => &["ForceOff"],
            PowerAction::Cycle if !is_off => &["ForceRestart", "PowerCycle"],
            _ => &["On", "ForceOn"],
        };
        let allowed = reset["ResetType@Redfish.AllowableValues"].as_array();
        let fits = |kind: &&&str| allowed.is_none_or(|all| all.iter().any(|one| one.as_str() == Some(**kind)));
        let Some(kind) = wanted.iter().find(fits) else {
            return Err(bmc_refusal(format!(
                "{}{path} supports none of the reset types {}",
                self.url,
                wanted.join(", ")
            )));
        };
        self.send_request(self.request(Method::POST, &self.check_link(target)?).json(&json!({ "ResetType": kind })))
            .map(drop)
    }

    fn boot_pxe(&self, path: &str, etag: Option<String>) -> Result<()> {
        let boot = json!({ "Boot": { "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe" } });
        let request = self.request(Method::PATCH, path).json(&boot);
        // Some controllers reject a change without the ETag.
        let request = etag.into_iter().fold(request, |request, etag| request.header(IF_MATCH, etag));
        self.send_request(request).map(drop)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let Bmc { username, password, .. } = self.bmc;
        let request = self.client.request(method, format!("{}{path}", self.url)).timeout(ANSWER);
        request.header("OData-Version", "4.0").basic_auth(username, Some(password.reveal()))
    }

    fn fetch<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<(T, Option<String>)> {
        let response = self.send_request(self.request(Method::GET, path))?;
        let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let what = || format!("cannot parse the response of {}{path}", self.url);
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(response, ANSWER_BYTES), &mut text)
            .context(Phase::Control, what)?;
        Ok((serde_json::from_slice(&text).context(Phase::Control, what)?, etag))
    }

    fn send_request(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().map_err(reqwest::Error::without_url);
        let response =
            response.context(Phase::Control, || format!("no response from the management controller {}", self.url))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "it rejected the username and password".to_owned(),
            status if status.is_redirection() => {
                "it redirects to another address, to which the password is not sent".to_owned()
            }
            _ => read_error_message(response),
        };
        Err(bmc_refusal(format!("management controller {} responded {status}: {said}", self.url)))
    }
}

/// Maximum length of a controller's error message, in bytes.
const WORDS_BYTES: usize = 300;

/// Returns Redfish's error message, shortened to one line.
fn read_error_message(response: Response) -> String {
    let mut text = Vec::new();
    let _ = std::io::Read::read_to_end(&mut std::io::Read::take(response, 64 << 10), &mut text);
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let error = &value["error"];
    let extended = error["@Message.ExtendedInfo"][0]["Message"].as_str();
    let said = extended.or(error["message"].as_str()).map(str::to_owned);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
    untrusted_text::sanitize_line(&untrusted_text::truncate_with_mark(&said, WORDS_BYTES))
}

#[cfg(test)]
mod tests;
