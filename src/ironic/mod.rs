//! A conductor of Ironic is in charge, and asks: the agent looks up who it is, says that it is alive, and does what is ordered over
//! HTTPS, one step after the other. What goes over the wire is that of ironic-python-agent.
//!
//! The steps are in `steps`; what they do to the machine goes through `hands` and nothing else.

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

/// Between two heartbeats lie this long at least, however often one is asked for.
const GAP: Duration = Duration::from_secs(5);

/// So many heartbeats follow a command's end sooner than others, each after twice the pause: a conductor that is busy with the node
/// takes one, says so, and does not look at the result.
const HURRIED: u32 = 5;

/// The answer to a command that ends the agent gets so long.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// What the machine does when the agent has ended.
#[derive(Debug)]
pub enum Next {
    BootAgain,
    /// Logins are offered until the conductor cuts the power.
    Rescue,
}

/// What the server has to tell the loop of heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// A command has ended: the conductor looks at its result when it hears a heartbeat.
    Beat,
    End(Ending),
}

/// How the conductor wants the agent to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    PowerOff,
    Reboot,
    /// Stay on with its network, for a person who logs in.
    Rescue,
    /// Stay on, and take no orders any more.
    Lockdown,
}

/// Serves the conductor until the power goes.
///
/// # Errors
/// Ironic does not take this machine within its patience. The machine waits for a person.
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
            match reboot(RebootMode::RB_POWER_OFF).context(Phase::Boot, || "switch the power off")? {}
        }
        Ending::Lockdown => {
            crate::boot::net::all_down();
            stdout::say(
                "the conductor has locked this machine: its network is down, and it waits for the power to be cut",
            );
            loop {
                thread::park();
            }
        }
    }
}

struct Agent<'a> {
    conductor: &'a Conductor,
    inventory: &'a Inventory,
    /// For what this boot must remember.
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
            stdout::say("the inventory was taken; the power is Ironic's to switch now");
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
            stdout::say(&format!("this machine is node {}; the conductor reaches it at {callback_url}", node.uuid));
            let heartbeat = Heartbeat {
                callback_url: callback_url.clone(),
                agent_token: token.clone(),
                agent_version: concat!("drophammer-", env!("CARGO_PKG_VERSION")).to_owned(),
                agent_verify_ca: identity.pem.clone(),
            };
            match self.beat(&api, &node, &heartbeat, &heard) {
                Some(ending) => return Ok(ending),
                // After cleaning, inspection and a deploy the conductor forgets the agent, and cuts the power as a rule.
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

    /// Sends heartbeats until an end is asked for; nothing when the conductor does not take them any more.
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
                Told::Unknown => (self.soon(), "Ironic does not know the node any more (404)".to_owned()),
                Told::Refused(error) => {
                    stdout::say(&error.to_string());
                    // What has ended meanwhile ends here: nobody reads its result.
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
                // The worker lives as long as this does.
                Err(RecvTimeoutError::Disconnected) => return Some(Ending::Reboot),
            }
        }
    }

    /// A pause after an error, or while the node is locked.
    fn soon(&self) -> Duration {
        self.gap.mul_f64(1.0 + fastrand::f64())
    }

    fn look_up(&self, api: &Api, limit: Option<Duration>) -> Result<Node> {
        let macs = inventory::macs(self.inventory, self.conductor.boot_mac.as_deref());
        if macs.is_empty() {
            return Err(Error::new(Phase::Control, "this machine has no network card with a MAC to look it up by"));
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

    /// An inspection ends without a word.
    fn wait_for_power(&self, heard: &Receiver<Signal>) -> Result<Ending> {
        loop {
            match heard.recv() {
                Ok(Signal::End(ending)) => return Ok(ending),
                Ok(Signal::Beat) => {}
                Err(_) => thread::park(),
            }
        }
    }

    /// That of this boot.
    fn token(&self, node: &Node) -> Result<String> {
        let told = self.conductor.token.clone();
        let token = lookup::token(node, told.or_else(|| kept::token(self.directory, &node.uuid)))?;
        kept::keep_token(self.directory, &kept::Token { node: node.uuid.clone(), token: token.clone() })?;
        Ok(token)
    }

    /// Where the conductor reaches this machine: as it was told, else where the way to Ironic begins.
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
        Err(Error::with_source(Phase::Control, "no way leads from this machine to Ironic", why))
    }
}

/// Nothing is sent: the kernel only says which address it would use.
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

/// An end that is asked for within this time. Beats are dropped: one follows anyway.
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
