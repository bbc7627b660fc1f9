//! Agent for an Ironic conductor: it looks up its node, sends heartbeats, and executes commands received over HTTPS, one at a time. The
//! protocol is that of ironic-python-agent.
//!
//! The steps are in `steps`; they act on the machine only through `hands`.

mod api;
mod certificate;
mod commands;
mod direct;
mod disks;
mod files;
mod hands;
mod inventory;
mod kept;
mod logs;
mod lookup;
mod order;
mod rescue;
mod routes;
mod server;
mod steps;
mod wire;
mod work;

use crate::error::{Context, Error, Phase, Result};
use crate::inventory::Inventory;
use crate::settings::{Conductor, Settings};
use crate::stdout;
use api::{Api, Heartbeat, Node, Told};
use commands::Commands;
use hands::{Hands, Metal};
use lookup::Patience;
use nix::sys::reboot::{RebootMode, reboot};
use routes::Routes;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use work::Worker;

/// Minimum interval between heartbeats.
const GAP: Duration = Duration::from_secs(5);

/// Number of early heartbeats after the end of a command, each after twice the delay. A conductor that is busy with the node accepts a
/// heartbeat without looking at the result.
const HURRIED: u32 = 5;

/// Time to send the response to a command that ends the agent.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Action of the machine after the agent ends.
#[derive(Debug)]
pub enum Next {
    BootAgain,
    /// Offers logins until the conductor switches the power off.
    Rescue,
}

/// Message from the server to the heartbeat loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// A command has ended. The conductor reads its result at the next heartbeat.
    Beat,
    End(Ending),
}

/// End of the agent, as ordered by the conductor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    PowerOff,
    Reboot,
    /// Stay on with network, for logins.
    Rescue,
    /// Stay on, and accept no further commands.
    Lockdown,
}

/// Serves the conductor until the machine is switched off.
///
/// # Errors
/// Fails if Ironic does not accept this machine within the time limit. The machine then waits at its console.
pub fn run(conductor: &Conductor, settings: &Settings, inventory: &Inventory) -> Result<Next> {
    let hands = Arc::new(Metal::new(settings));
    let agent = Agent { conductor, inventory, directory: Path::new(kept::DIRECTORY), gap: GAP };
    let ending = agent.serve(hands, &settings.consoles)?;
    thread::sleep(LAST_ANSWER);
    match ending {
        Ending::Reboot => Ok(Next::BootAgain),
        Ending::Rescue => Ok(Next::Rescue),
        Ending::PowerOff => {
            nix::unistd::sync();
            match reboot(RebootMode::RB_POWER_OFF).context(Phase::Boot, || "power off")? {}
        }
        Ending::Lockdown => {
            crate::boot::net::all_down();
            stdout::say(
                "the conductor has locked this machine down: its network is disabled, and it waits to be powered off",
            );
            loop {
                thread::park();
            }
        }
    }
}

/// Agent of one boot.
struct Agent<'a> {
    conductor: &'a Conductor,
    inventory: &'a Inventory,
    /// Directory of the state of this boot.
    directory: &'a Path,
    gap: Duration,
}

impl Agent<'_> {
    fn serve(&self, hands: Arc<dyn Hands>, consoles: &[String]) -> Result<Ending> {
        let conductor = self.conductor;
        let api = Api::new(&conductor.api)?;
        let (signals, heard) = channel();
        let worker = Arc::new(Worker::new(hands, consoles, signals));
        let commands = Commands::new(worker.clone());
        let routes = Arc::new(Routes::new(commands.clone()));
        let inspected = self.inspect(&api)?;
        if conductor.api.is_empty() {
            stdout::say("the inventory was accepted; waiting for Ironic to power off this machine");
            return self.wait_for_power(&heard);
        }
        let address = self.address(&api)?;
        let identity = certificate::of_boot(self.directory, address)?;
        let listener = server::listen(conductor.listen_port)?;
        let port = listener.local_addr().context(Phase::Control, || "listen for the conductor")?.port();
        server::start(listener, &identity, routes.clone(), server::BOUNDS)?;
        let callback_url = format!("https://{}", SocketAddr::new(address, conductor.advertise_port.unwrap_or(port)));
        let mut node = match inspected.filter(|node| node.token.is_some()) {
            Some(node) => node,
            None => self.look_up(&api, Some(conductor.lookup))?,
        };
        loop {
            let token = self.token(&node)?;
            routes.trust(&token);
            stdout::say(&format!("this machine is node {}, reachable for the conductor at {callback_url}", node.uuid));
            let heartbeat = Heartbeat {
                callback_url: callback_url.clone(),
                agent_token: token.clone(),
                agent_version: concat!("drophammer-", env!("CARGO_PKG_VERSION")).to_owned(),
                agent_verify_ca: identity.pem.clone(),
            };
            match self.beat(&api, &node, &heartbeat, &heard) {
                Some(ending) => return Ok(ending),
                // After cleaning, inspection and a deploy, the conductor forgets the agent, and usually switches the power off.
                None => {
                    let next = self.look_up(&api, None)?;
                    if next.token.as_ref().is_some_and(|new| *new != token) {
                        worker.leave();
                        commands.forget();
                    }
                    node = next;
                }
            }
        }
    }

    /// Sends heartbeats until an end is ordered. Returns `None` if the conductor no longer accepts them.
    fn beat(&self, api: &Api, node: &Node, heartbeat: &Heartbeat, heard: &Receiver<Signal>) -> Option<Ending> {
        let (mut said, mut hurried) = (String::new(), HURRIED);
        loop {
            let sent = Instant::now();
            let (pause, why) = match api.heartbeat(&node.uuid, heartbeat) {
                Told::Yes(()) if hurried < HURRIED => {
                    hurried += 1;
                    (self.gap * 2u32.pow(hurried), String::new())
                }
                Told::Yes(()) => (node.heartbeat.mul_f64(0.3 + 0.3 * fastrand::f64()), String::new()),
                Told::Locked => (self.soon(), String::new()),
                Told::Away(error) => (self.soon(), error.to_string()),
                Told::Unknown => (self.soon(), "Ironic no longer has the node (404)".to_owned()),
                Told::Refused(error) => {
                    stdout::say(&error.to_string());
                    // A command that ends the agent takes effect, although its result will not be read.
                    return ending_within(heard, self.soon());
                }
            };
            if !why.is_empty() && why != said {
                stdout::say(&why);
            }
            said = why;
            match heard.recv_timeout(pause) {
                Ok(Signal::End(ending)) => return Some(ending),
                Ok(Signal::Beat) => {
                    hurried = 0;
                    if let Some(ending) = ending_within(heard, self.gap.saturating_sub(sent.elapsed())) {
                        return Some(ending);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Cannot happen: the worker outlives this loop.
                Err(RecvTimeoutError::Disconnected) => return Some(Ending::Reboot),
            }
        }
    }

    /// Returns the delay after an error, or while the node is locked.
    fn soon(&self) -> Duration {
        self.gap.mul_f64(1.0 + fastrand::f64())
    }

    fn look_up(&self, api: &Api, limit: Option<Duration>) -> Result<Node> {
        let macs = inventory::macs(self.inventory, self.conductor.boot_mac.as_deref());
        if macs.is_empty() {
            return Err(Error::new(Phase::Control, "this machine lacks a network interface with a MAC for the lookup"));
        }
        stdout::say(&format!("asking Ironic which node has {}", macs.join(", ")));
        patiently(limit, || api.lookup(&macs))
    }

    fn inspect(&self, api: &Api) -> Result<Option<Node>> {
        let callbacks = &self.conductor.inspection;
        if callbacks.is_empty() {
            return Ok(None);
        }
        let boot_mac = self.conductor.boot_mac.as_deref();
        let found = inventory::inspected(self.inventory, &inventory::addresses(), boot_mac);
        stdout::say(&format!("sending the inventory to {}", callbacks.join(", ")));
        patiently(Some(self.conductor.lookup), || api.inspected(callbacks, &found))
    }

    /// Waits for the power off, without a message, after an inspection.
    fn wait_for_power(&self, heard: &Receiver<Signal>) -> Result<Ending> {
        loop {
            match heard.recv() {
                Ok(Signal::End(ending)) => return Ok(ending),
                Ok(Signal::Beat) => {}
                Err(_) => thread::park(),
            }
        }
    }

    /// Returns the token of this boot, and stores it.
    fn token(&self, node: &Node) -> Result<String> {
        let told = self.conductor.token.clone();
        let token = lookup::token(node, told.or_else(|| kept::token(self.directory, &node.uuid)))?;
        kept::keep_token(self.directory, &kept::Token { node: node.uuid.clone(), token: token.clone() })?;
        Ok(token)
    }

    /// Returns the address for the conductor: the configured one, or else the source address of the route to Ironic.
    fn address(&self, api: &Api) -> Result<IpAddr> {
        if let Some(address) = self.conductor.advertise_host {
            return Ok(address);
        }
        let mut why = None;
        for place in api.places() {
            match way_to(&place) {
                Ok(address) => return Ok(address),
                Err(error) => why = Some(error),
            }
        }
        let why = why.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
        Err(Error::with_source(Phase::Control, "no route from this machine to Ironic", why))
    }
}

/// Returns the source address of the route to a host, without sending anything.
fn way_to(place: &(String, u16)) -> std::io::Result<IpAddr> {
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

fn patiently<T>(limit: Option<Duration>, mut ask: impl FnMut() -> Told<T>) -> Result<T> {
    let (began, mut patience) = (Instant::now(), Patience::new(limit));
    loop {
        let told = ask();
        if let Told::Yes(value) = told {
            return Ok(value);
        }
        thread::sleep(patience.after(&told, began.elapsed(), fastrand::f64(), &stdout::say)?);
    }
}

/// Returns an end that is ordered within this time. Drops beats, since a heartbeat follows anyway.
fn ending_within(heard: &Receiver<Signal>, time: Duration) -> Option<Ending> {
    let end = Instant::now() + time;
    loop {
        match heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Signal::End(ending)) => return Some(ending),
            Ok(Signal::Beat) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod judge;
#[cfg(test)]
mod tests;
