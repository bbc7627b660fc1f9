//! Registration of an adopted machine at a server.

use super::adoption_record::AdoptionRecord;
use super::foreign_system::ForeignSystem;
use super::{MachineAdoptionOptions, refuse};
use crate::server_commands::{OperatorClient, OperatorResponse, ServerOptions};
use api::machine_adoption::{AdoptionRequest, RemovedAdoption};
use api::operator_api::MachineSummary;
use common::encoding::percent_encode;
use common::error::Result;
use common::output::print_note;
use control::agent_api_types::RegisterRequest;
use layout_discovery::DiscoveredLayout;
use model::device_name::DevicePath;
use model::install_marker::InstallMarker;
use model::layout::{Layout, read_json};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

const LAYOUTS: &str = "/v1/filesystemlayout";

/// Requests that register the machine.
pub(crate) struct AdoptionRegistration {
    server: OperatorClient,
    layout: Layout,
    /// Device with the root filesystem.
    root: Option<DevicePath>,
    request: AdoptionRequest,
}

impl AdoptionRegistration {
    /// Creates the client, and checks that the server has no other machine and no other layout with these names.
    /// Changes nothing.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, and refuses if a name is already in use.
    pub(crate) fn prepare(
        options: &MachineAdoptionOptions,
        system: &ForeignSystem,
        found: &DiscoveredLayout,
    ) -> Result<AdoptionRegistration> {
        let server = OperatorClient::new(&options.of)?;
        let machines: Vec<MachineSummary> = send(&server, server.request(Method::GET, "/v1/machines"))?;
        let is_same = |machine: &&MachineSummary| {
            !machine.new && (machine.id.eq_ignore_ascii_case(&system.machine) || machine.name == system.name)
        };
        if let Some(machine) = machines.iter().find(is_same) {
            return Err(refuse(format!(
                "the server already has the machine {} ({}); free or rename that machine, or specify another --name",
                machine.name, machine.id
            )));
        }
        let request = AdoptionRequest {
            name: system.name.clone(),
            size: options.size.clone(),
            image: options.image.clone().unwrap_or_default(),
            layout: found.layout.id.clone(),
            marker: InstallMarker::default(),
            registration: RegisterRequest::new(system.machine.clone(), system.inventory.clone()),
        };
        Ok(AdoptionRegistration { server, layout: found.layout.clone(), root: found.root.clone(), request })
    }

    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    /// Creates the layout. Returns false if the server already has the same layout.
    ///
    /// # Errors
    /// Refuses if the server has another layout with this id.
    pub(crate) fn create_layout(&self) -> Result<bool> {
        let id = &self.layout.id;
        let get = self.server.request(Method::GET, &format!("{LAYOUTS}/{}", percent_encode(id, "")));
        if let OperatorResponse::Good(document) = self.server.send_json::<Value>(get)? {
            let is_same = read_json(&document).is_ok_and(|parsed| parsed.layout == self.layout);
            return match is_same {
                true => Ok(false),
                false => Err(refuse(format!(
                    "the server already has another layout {id:?}: specify that layout with --layout, or another id in the file"
                ))),
            };
        }
        let put = self.server.request(Method::PUT, LAYOUTS).json(&self.layout);
        send::<IgnoredAny>(&self.server, put).map(|_| true)
    }

    /// Deletes the layout after a refused registration. A failure is only reported, because the layout is harmless.
    pub(crate) fn delete_layout(&self) {
        delete_layout(&self.server, &self.layout.id);
    }

    /// Registers the machine as installed. The inventory was read before the marker was written, so the marker is added
    /// to the inventory. The server plans reinstalls with this inventory.
    ///
    /// # Errors
    /// Refuses if the server refuses the registration.
    pub(crate) fn register(&self, marker: &InstallMarker) -> Result<()> {
        let mut request = AdoptionRequest { marker: marker.clone(), ..self.request.clone() };
        let filesystems = request.registration.inventory.iter_mut().flat_map(|inventory| &mut inventory.filesystems);
        for filesystem in filesystems.filter(|filesystem| Some(&filesystem.device) == self.root.as_ref()) {
            filesystem.marker = Some(marker.clone());
        }
        let put = self.server.request(Method::PUT, &adoption_path(&marker.machine, None)).json(&request);
        send::<MachineSummary>(&self.server, put).map(drop)
    }

    /// Returns whether the server lists the machine as installed with this marker. Each adoption has a new allocation
    /// id, so an earlier adoption does not match.
    ///
    /// # Errors
    /// Returns an error if the list cannot be read, or the allocation is listed, but not as installed.
    pub(crate) fn is_registered(&self, marker: &InstallMarker) -> Result<bool> {
        let machines: Vec<MachineSummary> = send(&self.server, self.server.request(Method::GET, "/v1/machines"))?;
        match machines.iter().find(|machine| machine.allocation.as_deref() == Some(&*marker.allocation)) {
            None => Ok(false),
            Some(machine) if machine.installed => Ok(true),
            Some(machine) => Err(refuse(format!(
                "the server has a file of the machine {} with allocation {}, but does not list it as installed",
                machine.name, marker.allocation
            ))),
        }
    }
}

/// Removes the registration, and the layout if the adoption has created it.
///
/// # Errors
/// Returns an error if the server cannot be reached, if the machine was changed at the server since its adoption, or if
/// the options select a different server than the one at which the machine was adopted.
pub(crate) fn remove_registration(options: &MachineAdoptionOptions, record: &AdoptionRecord) -> Result<()> {
    let ServerOptions { server, .. } = &options.of;
    let of = ServerOptions { server: server.clone().or_else(|| record.server.clone()), ..options.of.clone() };
    let server = OperatorClient::new(&of)?;
    check_server(server.url(), record)?;
    let path = adoption_path(&record.machine, Some(&record.allocation));
    send::<RemovedAdoption>(&server, server.request(Method::DELETE, &path))?;
    if record.created_layout {
        delete_layout(&server, &record.layout);
    }
    Ok(())
}

/// Refuses a server at which the machine was not registered. Such a server would confirm that the machine is not
/// registered, and the registration at the other server would remain without a marker.
fn check_server(url: &str, record: &AdoptionRecord) -> Result<()> {
    match &record.server {
        Some(recorded) if recorded != url => Err(refuse(format!(
            "drophammer adopt --undo: the machine was registered at {recorded}, not at {url}: omit --server, or specify --server {recorded}"
        ))),
        _ => Ok(()),
    }
}

fn adoption_path(machine: &str, allocation: Option<&str>) -> String {
    let query = allocation.map(|allocation| format!("?allocation={}", percent_encode(allocation, "")));
    format!("/v1/machine/{}/adopt{}", percent_encode(machine, ""), query.unwrap_or_default())
}

fn delete_layout(server: &OperatorClient, id: &str) {
    let request = server.request(Method::DELETE, &format!("{LAYOUTS}/{}", percent_encode(id, "")));
    if let Err(error) = send::<IgnoredAny>(server, request) {
        print_note(&format!("layout {id} was not deleted on the server: {error}"));
    }
}

/// Sends a request.
///
/// # Errors
/// Returns the refusal of the server as a refusal.
fn send<T: DeserializeOwned>(server: &OperatorClient, request: RequestBuilder) -> Result<T> {
    match server.send_json(request)? {
        OperatorResponse::Good(response) => Ok(response),
        OperatorResponse::Refused(why) => Err(refuse(why)),
    }
}
