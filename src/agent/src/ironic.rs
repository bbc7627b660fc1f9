//! Agent for an Ironic conductor: looks up the node of this machine, sends heartbeats, and executes commands received
//! over HTTPS, one at a time. The protocol is that of ironic-python-agent.
//!
//! The steps are implemented in `step_runner`. The steps access the machine only through `machine_actions`.

mod api_client;
mod certificate;
mod command_result;
mod command_worker;
mod commands;
mod deploy_args;
mod direct_deploy;
mod inject_files;
mod inventory;
mod log_collection;
mod lookup;
mod machine_actions;
mod rescue;
mod root_disk;
mod routes;
mod server;
mod skipped_disks;
mod step_runner;
mod stored_credentials;

use api_client::{FoundIronicNode, HeartbeatRequest, IronicClient, IronicResult};
use command_worker::CommandWorker;
use commands::CommandList;
use common::error::{Context, Error, Phase, Result};
use common::output;
use lookup::LookupRetries;
use machine_actions::{MachineActions, MachineExecutor};
use model::agent_kernel_arguments::{AgentSettings, ConductorSettings};
use model::inventory::Inventory;
use nix::sys::reboot::{RebootMode, reboot};
use routes::RequestHandler;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Minimum interval between heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Number of additional heartbeats after the end of a command, with a delay that doubles each time. One heartbeat is
/// not sufficient: a conductor that is busy with the node accepts a heartbeat without reading the result of the
/// command.
const ADDITIONAL_HEARTBEATS: u32 = 5;

/// Time that the agent waits before it exits, so that the response to the last command is sent.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Action of the machine after the agent exits.
#[derive(Debug)]
pub(crate) enum IronicNextAction {
    BootAgain,
    /// The machine accepts logins until the conductor switches the power off.
    Rescue,
}

/// Message from the agent's HTTPS server to the heartbeat loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeartbeatSignal {
    /// A command has finished. The conductor reads the result of the command at the next heartbeat.
    ReportNow,
    End(IronicEnding),
}

/// Order of the conductor that the agent must exit. The variants differ in what the machine does afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IronicEnding {
    PowerOff,
    Reboot,
    /// The machine stays on for logins over the network.
    Rescue,
    /// The machine stays on, but accepts no further commands.
    Lockdown,
}

/// Serves the conductor until the machine is switched off.
///
/// # Errors
/// Fails if Ironic does not accept this machine within the time limit. The machine then waits at its console.
pub(crate) fn run_ironic_agent(
    conductor: &ConductorSettings,
    settings: &AgentSettings,
    inventory: &Inventory,
) -> Result<IronicNextAction> {
    let actions = Arc::new(MachineExecutor::new(settings));
    let agent = IronicAgent {
        conductor,
        inventory,
        directory: Path::new(stored_credentials::DIRECTORY),
        gap: HEARTBEAT_INTERVAL,
    };
    let ending = agent.serve_conductor(actions, &settings.consoles)?;
    thread::sleep(LAST_ANSWER);
    match ending {
        IronicEnding::Reboot => Ok(IronicNextAction::BootAgain),
        IronicEnding::Rescue => Ok(IronicNextAction::Rescue),
        IronicEnding::PowerOff => {
            nix::unistd::sync();
            match reboot(RebootMode::RB_POWER_OFF).context(Phase::Boot, || "power off")? {}
        }
        IronicEnding::Lockdown => {
            newroot::boot::network_shutdown::take_interfaces_down();
            output::print_line(
                "the conductor has disabled this machine (lockdown): its network is off, and the machine waits until it is powered off",
            );
            loop {
                thread::park();
            }
        }
    }
}

/// Agent for an Ironic conductor, with the state of one boot.
struct IronicAgent<'a> {
    conductor: &'a ConductorSettings,
    inventory: &'a Inventory,
    /// Directory with the state of this boot.
    directory: &'a Path,
    gap: Duration,
}

impl IronicAgent<'_> {
    fn serve_conductor(&self, actions: Arc<dyn MachineActions>, consoles: &[String]) -> Result<IronicEnding> {
        let conductor = self.conductor;
        let api = IronicClient::new(&conductor.api)?;
        let (signals, heard) = channel();
        let worker = Arc::new(CommandWorker::new(actions, consoles, signals));
        let commands = CommandList::new(worker.clone());
        let routes = Arc::new(RequestHandler::new(commands.clone()));
        let inspected = self.report_inventory(&api)?;
        if conductor.api.is_empty() {
            output::print_line("the inventory was accepted; waiting for Ironic to power off this machine");
            return self.wait_for_power(&heard);
        }
        let address = self.advertised_address(&api)?;
        let identity = certificate::load_or_create(self.directory, address)?;
        let listener = server::listen_on_port(conductor.listen_port)?;
        let port = listener.local_addr().context(Phase::Control, || "listen for the conductor")?.port();
        server::start_server(listener, &identity, routes.clone(), server::BOUNDS)?;
        let callback_url = format!("https://{}", SocketAddr::new(address, conductor.advertise_port.unwrap_or(port)));
        let mut node = match inspected.filter(|node| node.token.is_some()) {
            Some(node) => node,
            None => self.look_up(&api, Some(conductor.lookup))?,
        };
        loop {
            let token = self.obtain_token(&node)?;
            routes.set_token(&token);
            output::print_line(&format!(
                "this machine is node {node_uuid}, reachable by the conductor at {callback_url}",
                node_uuid = node.uuid
            ));
            let heartbeat = HeartbeatRequest {
                callback_url: callback_url.clone(),
                agent_token: token.clone(),
                agent_version: concat!("drophammer-", env!("CARGO_PKG_VERSION")).to_owned(),
                agent_verify_ca: identity.pem.clone(),
            };
            match self.send_heartbeats(&api, &node, &heartbeat, &heard) {
                Some(ending) => return Ok(ending),
                // After cleaning, an inspection or a deploy, the conductor no longer accepts heartbeats of the agent,
                // and usually switches the power off.
                None => {
                    let next = self.look_up(&api, None)?;
                    if next.token.as_ref().is_some_and(|new| *new != token) {
                        worker.release_all();
                        commands.drop_completed();
                    }
                    node = next;
                }
            }
        }
    }

    /// Sends heartbeats until the conductor orders the agent to exit, and returns this order. Returns `None` if the
    /// conductor no longer accepts heartbeats.
    fn send_heartbeats(
        &self,
        api: &IronicClient,
        node: &FoundIronicNode,
        heartbeat: &HeartbeatRequest,
        heard: &Receiver<HeartbeatSignal>,
    ) -> Option<IronicEnding> {
        let (mut said, mut hurried) = (String::new(), ADDITIONAL_HEARTBEATS);
        loop {
            let sent = Instant::now();
            let (pause, why) = match api.send_heartbeat(&node.uuid, heartbeat) {
                IronicResult::Success(()) if hurried < ADDITIONAL_HEARTBEATS => {
                    hurried += 1;
                    (self.gap * 2u32.pow(hurried), String::new())
                }
                IronicResult::Success(()) => (node.heartbeat.mul_f64(0.3 + 0.3 * fastrand::f64()), String::new()),
                IronicResult::Locked => (self.short_delay(), String::new()),
                IronicResult::Unavailable(error) => (self.short_delay(), error.to_string()),
                IronicResult::Unknown => (self.short_delay(), "Ironic no longer has the node (404)".to_owned()),
                IronicResult::Refused(error) => {
                    output::print_line(&error.to_string());
                    // The last command may have ordered the agent to exit. This order takes effect even if no conductor
                    // reads the result of the command.
                    return wait_for_ending(heard, self.short_delay());
                }
            };
            if !why.is_empty() && why != said {
                output::print_line(&why);
            }
            said = why;
            match heard.recv_timeout(pause) {
                Ok(HeartbeatSignal::End(ending)) => return Some(ending),
                Ok(HeartbeatSignal::ReportNow) => {
                    hurried = 0;
                    if let Some(ending) = wait_for_ending(heard, self.gap.saturating_sub(sent.elapsed())) {
                        return Some(ending);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The channel cannot be disconnected, because the worker that holds the sender outlives this loop.
                Err(RecvTimeoutError::Disconnected) => return Some(IronicEnding::Reboot),
            }
        }
    }

    /// Returns the delay before the next request after an error, or while the node is locked.
    fn short_delay(&self) -> Duration {
        self.gap.mul_f64(1.0 + fastrand::f64())
    }

    fn look_up(&self, api: &IronicClient, limit: Option<Duration>) -> Result<FoundIronicNode> {
        let macs = inventory::lookup_macs(self.inventory, self.conductor.boot_mac.as_deref());
        if macs.is_empty() {
            return Err(Error::new(
                Phase::Control,
                "this machine cannot be looked up in Ironic: none of its network interfaces has a MAC",
            ));
        }
        output::print_line(&format!(
            "asking Ironic for the node that has one of the MACs {macs}",
            macs = macs.join(", ")
        ));
        retry_lookup(limit, || api.look_up_node(&macs))
    }

    fn report_inventory(&self, api: &IronicClient) -> Result<Option<FoundIronicNode>> {
        let callbacks = &self.conductor.inspection;
        if callbacks.is_empty() {
            return Ok(None);
        }
        let boot_mac = self.conductor.boot_mac.as_deref();
        let found = inventory::inspection_report(self.inventory, &inventory::read_addresses(), boot_mac);
        output::print_line(&format!("sending the inventory to {callback_urls}", callback_urls = callbacks.join(", ")));
        retry_lookup(Some(self.conductor.lookup), || api.send_inventory(callbacks, &found))
    }

    /// Waits, after an inspection, until the conductor switches the power off. No messages are sent while waiting.
    fn wait_for_power(&self, heard: &Receiver<HeartbeatSignal>) -> Result<IronicEnding> {
        loop {
            match heard.recv() {
                Ok(HeartbeatSignal::End(ending)) => return Ok(ending),
                Ok(HeartbeatSignal::ReportNow) => {}
                Err(_) => thread::park(),
            }
        }
    }

    /// Determines the token of this boot, stores it, and returns it.
    fn obtain_token(&self, node: &FoundIronicNode) -> Result<String> {
        let told = self.conductor.token.clone();
        let token =
            lookup::choose_token(node, told.or_else(|| stored_credentials::read_token(self.directory, &node.uuid)))?;
        stored_credentials::write_token(
            self.directory,
            &stored_credentials::StoredToken { node: node.uuid.clone(), token: token.clone() },
        )?;
        Ok(token)
    }

    /// Returns the address that the conductor connects to: the configured address, or else the source address of the
    /// route to Ironic.
    fn advertised_address(&self, api: &IronicClient) -> Result<IpAddr> {
        if let Some(address) = self.conductor.advertise_host {
            return Ok(address);
        }
        let mut why = None;
        for place in api.hosts_and_ports() {
            match source_address_for(&place) {
                Ok(address) => return Ok(address),
                Err(error) => why = Some(error),
            }
        }
        let why = why.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
        Err(Error::with_source(Phase::Control, "no route from this machine to Ironic", why))
    }
}

/// Returns the source address of the route to a host, without sending packets.
fn source_address_for(place: &(String, u16)) -> std::io::Result<IpAddr> {
    use std::net::{Ipv4Addr, Ipv6Addr, ToSocketAddrs};
    let mut why = std::io::ErrorKind::NotFound.into();
    for to in place.to_socket_addrs()? {
        let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(to).and_then(|()| socket.local_addr()));
        match from {
            Ok(from) => return Ok(from.ip()),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn retry_lookup<T>(limit: Option<Duration>, mut ask: impl FnMut() -> IronicResult<T>) -> Result<T> {
    let (began, mut patience) = (Instant::now(), LookupRetries::new(limit));
    loop {
        let told = ask();
        if let IronicResult::Success(value) = told {
            return Ok(value);
        }
        thread::sleep(patience.next_delay(&told, began.elapsed(), fastrand::f64(), &output::print_line)?);
    }
}

/// Waits for at most `time` for the conductor's order that the agent must exit, and returns this order. Discards
/// requests for a heartbeat, because the caller either sends a heartbeat afterwards or sends no more heartbeats.
fn wait_for_ending(heard: &Receiver<HeartbeatSignal>, time: Duration) -> Option<IronicEnding> {
    let end = Instant::now() + time;
    loop {
        match heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(HeartbeatSignal::End(ending)) => return Some(ending),
            Ok(HeartbeatSignal::ReportNow) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod conformance_tests;
#[cfg(test)]
mod tests;
