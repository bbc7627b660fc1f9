//! Transfer of a machine to another one by their two agents: devices of the layout, over the protocol of `drophammer move`. Each agent
//! generates its key at boot, and the key never leaves its memory.

use super::certificate::{Certificate, Secret};
use super::ganeti::{Compression, Terms};
use super::key::{self, Pair};
use super::link::Port;
use super::onto::Onto;
use super::own::awaited::Disk;
use super::receiving::Waiting;
use super::sending::{self, Way};
use super::source::Source;
use super::tls::Ends;
use crate::carried::{self, Carried, Peer};
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// File in the ramdisk with the shared secret of both machines, in one line. Optional.
pub const SECRET_FILE: &str = "/etc/drophammer/move-secret";

/// Validity period of a certificate. A transfer that was interrupted for days can be resumed.
const HOURS: u32 = 24 * 7;

/// Backdating of a certificate: the clocks of these machines may be set to local time, or hours off.
const EARLIER: time::Duration = time::Duration::days(1);

/// Time that the sender tries to reach the peer before it asks the control plane for a new address.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time without any information from a control plane about the transfer after which it is considered ended.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// Tracker of the time since the control plane last had information about the transfer.
#[derive(Debug, Default)]
pub struct Silence(Option<Instant>);

/// Reaction to the missing information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// First occurrence, which is reported to the operator.
    Begins,
    Lasts,
    /// Timeout: the transfer is considered ended.
    Ends,
}

impl Silence {
    /// Records that the control plane had no information.
    pub fn heard(&mut self) -> Silent {
        self.heard_at(Instant::now())
    }

    fn heard_at(&mut self, now: Instant) -> Silent {
        match self.0 {
            Some(began) if now.saturating_duration_since(began) >= SILENCE => Silent::Ends,
            Some(_) => Silent::Lasts,
            None => {
                self.0 = Some(now);
                Silent::Begins
            }
        }
    }

    /// Resets the timer, because the control plane had information or did not answer.
    pub fn is_broken(&mut self) {
        self.0 = None;
    }
}

/// Key and certificate of this boot.
pub struct Own {
    pair: Pair,
    certificate: Certificate,
    secret: Option<Secret>,
}

impl Own {
    /// Generates the key and the certificate.
    ///
    /// # Errors
    /// Fails if no random numbers are available, or the secret file exists but contains no secret.
    pub fn make(secret_file: &Path) -> Result<Own> {
        let secret = secret_file.exists().then(|| super::secret(secret_file)).transpose()?;
        let pair = key::make(EARLIER, HOURS, secret.as_ref())?;
        let certificate = Certificate::read(&pair.certificate).map_err(|why| Error::new(Phase::Move, why))?;
        Ok(Own { pair, certificate, secret })
    }

    /// Returns the certificate to send to the peer.
    pub fn certificate(&self) -> &str {
        &self.pair.certificate
    }

    /// Describes for the console how the peer is authenticated, with the fingerprint of this machine.
    pub fn trust(&self) -> String {
        let own = self.fingerprint();
        match self.secret {
            Some(_) => format!(
                "both certificates are signed with the secret in the ramdisks, which the control plane does not know.\nCertificate of \
                 this machine:\n  {own}"
            ),
            None => format!(
                "the ramdisks contain no secret (/etc/drophammer/move-secret), so the operator must approve both \
                 certificates.\nCertificate of this machine:\n  {own}"
            ),
        }
    }

    /// Returns the fingerprint of the certificate of this boot.
    pub fn fingerprint(&self) -> String {
        carried::fingerprint(&self.pair.certificate).unwrap_or_default()
    }

    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns whether the peer may be trusted if its certificate is valid: because of the secret, or the operator's approval.
    pub fn may_trust(&self, peer: &Peer) -> bool {
        self.has_secret() || peer.approved
    }

    /// Checks the certificate of the peer before anything is erased.
    ///
    /// # Errors
    /// Refuses a certificate that is not valid now, or not signed as required.
    pub fn check(&self, peer: &Peer) -> Result<()> {
        self.ends(peer).map(drop)
    }

    fn ends(&self, peer: &Peer) -> Result<Ends> {
        self.ends_at(peer, OffsetDateTime::now_utc().unix_timestamp())
    }

    fn ends_at(&self, peer: &Peer, now: i64) -> Result<Ends> {
        let refuse = |why: String| {
            let hint = "compare the clocks of both machines, and the secrets of their ramdisks";
            Error::refusal(Phase::Move, format!("certificate of the other machine: {why}; {hint}"))
        };
        if !self.may_trust(peer) {
            return Err(Error::new(Phase::Move, "the operator has not approved the certificate of the other machine"));
        }
        let peer = super::good(&peer.certificate, self.secret.as_ref(), now).map_err(refuse)?;
        Ends::new(&self.pair.key, &self.certificate, peer).map_err(|why| Error::new(Phase::Move, why))
    }
}

/// Local device of the layout.
pub struct Device {
    /// Name that both ends use.
    pub name: String,
    pub path: DevicePath,
}

/// Sends devices, which are only read. Groups have no disk in common and are sent concurrently. The devices of a group are sent one after
/// another, since concurrent reads slow a disk down.
///
/// `fails` is called immediately for each failure, while the other groups continue.
///
/// # Errors
/// Fails if a device was not transferred completely.
pub fn send(
    own: &Own,
    peer: &Peer,
    order: &str,
    groups: &[Vec<Device>],
    say: &(dyn Fn(&str) + Sync),
    fails: &(dyn Fn(&Error) + Sync),
) -> Result<()> {
    let ends = own.ends(peer)?;
    let way = Way { to: &peer.address, ends: &ends, terms: terms(order)?, patience: PATIENCE, run: None };
    let group = |devices: &[Device]| {
        let ended = devices.iter().try_for_each(|Device { name, path }| {
            let source = Source::open(path.as_ref(), false)?;
            let figures = sending::one(name, &source, &way, usize::MAX)?;
            figures.lines().lines().for_each(say);
            Ok(())
        });
        ended.inspect_err(fails)
    };
    thread::scope(|scope| {
        let running: Vec<_> = groups.iter().map(|devices| scope.spawn(|| group(devices))).collect();
        let panicked = |_| Err(Error::new(Phase::Move, "a thread has panicked"));
        let ended: Vec<Result<()>> =
            running.into_iter().map(|running| running.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect()
    })
}

fn terms(order: &str) -> Result<Terms> {
    let magic = order.parse().map_err(|why| Error::new(Phase::Move, format!("order id {order:?}: {why}")))?;
    Ok(Terms { magic: Some(magic), compression: Compression::None, size_bytes: None })
}

/// Receiving end, which already listens before the plan is made.
pub struct Incoming {
    own: Own,
    port: Port,
    /// Inventory of the sender for which the plan was made.
    planned: Option<Carried>,
    news: Mutex<News>,
}

/// Latest information from the control plane.
#[derive(Default)]
struct News {
    peer: Option<(Peer, Ends)>,
    over: Option<String>,
}

/// Opens a destination without adapting a GPT: the machine's own partition tables come from the plan, and one inside of a device is
/// content.
fn unfitted(path: &Path) -> Result<Onto> {
    Ok(Onto::open(path)?.unfitted())
}

impl Incoming {
    /// Opens a listening socket on a free port.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub fn open(own: Own, planned: Option<Carried>) -> Result<Incoming> {
        // The first address also accepts IPv4, unless the kernel lacks IPv6.
        let port = Port::open("[::]:0").or_else(|_| Port::open("0.0.0.0:0"))?;
        Ok(Incoming { own, port, planned, news: Mutex::default() })
    }

    pub fn own(&self) -> &Own {
        &self.own
    }

    pub fn port(&self) -> Option<u16> {
        self.port.address.rsplit(':').next()?.parse().ok()
    }

    /// Sets the peer that may connect from now on. Ignores a peer whose certificate is neither approved nor signed with the secret.
    ///
    /// # Errors
    /// Refuses a certificate that is not valid, or not signed with the secret.
    pub fn hear(&self, peer: &Peer) -> Result<()> {
        if !self.own.may_trust(peer) {
            return Ok(());
        }
        let mut news = self.news();
        if news.peer.as_ref().is_some_and(|(known, _)| known.certificate == peer.certificate) {
            return Ok(());
        }
        news.peer = Some((peer.clone(), self.own.ends(peer)?));
        Ok(())
    }

    /// Returns whether a peer is known and may connect.
    pub fn knows_sender(&self) -> bool {
        self.news().peer.is_some()
    }

    /// Compares the inventory that the peer sends after each boot with the planned one, whose ids are part of the plan.
    pub fn compare(&self, carried: &Carried) {
        if self.planned.as_ref().is_some_and(|planned| !planned.fits_as(carried)) {
            self.end(
                "the other machine has rebooted, and its filesystems, arrays or partitions have other ids or sizes than this plan was \
                 made for; a new plan is required",
            );
        }
    }

    /// Ends the transfer.
    pub fn end(&self, why: &str) {
        self.news().over = Some(why.to_owned());
    }

    #[cfg(test)]
    pub fn is_over(&self) -> bool {
        self.news().over.is_some()
    }

    /// Opens the devices. Writes nothing.
    ///
    /// # Errors
    /// Fails if a device does not exist or is in use.
    pub fn begin(&self, order: &str, devices: Vec<Device>) -> Result<Arriving<'_>> {
        let open = |Device { name, path }: Device| {
            let path = AsRef::<Path>::as_ref(&path).to_owned();
            Disk::open(name, (path, unfitted), Some(order.to_owned()), None, false)
        };
        let disks = devices.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Arriving { incoming: self, waiting: Waiting::of(disks, terms(order)?) })
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the peer that may connect now, and its TLS configuration.
    fn ends(&self) -> Result<(Peer, Ends)> {
        let news = self.news();
        match (&news.over, &news.peer) {
            (Some(why), _) => Err(Error::new(Phase::Move, why.clone())),
            (None, Some(known)) => Ok(known.clone()),
            (None, None) => Err(Error::new(Phase::Move, "the control plane has not announced the sending machine")),
        }
    }
}

/// Devices that are being received.
pub struct Arriving<'i> {
    incoming: &'i Incoming,
    waiting: Waiting,
}

impl Arriving<'_> {
    /// Returns the number of bytes received.
    pub fn bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// Receives all devices. Returns the peer that sent them; its certificate identifies the boot.
    ///
    /// # Errors
    /// Fails if a device cannot be completed: it cannot be written, or the control plane has ended the transfer.
    pub fn until_whole(&self, say: &dyn Fn(&str)) -> Result<Peer> {
        let say = |line: &str| {
            say(line);
            Ok(())
        };
        // Data counts only if it comes from the peer that was announced last.
        let from = RefCell::new(Peer { certificate: String::new(), address: String::new(), approved: false });
        self.waiting.until_whole(&self.incoming.port, Duration::MAX, &say, || {
            let (peer, ends) = self.incoming.ends()?;
            *from.borrow_mut() = peer;
            Ok(ends)
        })?;
        Ok(from.into_inner())
    }
}

#[cfg(test)]
mod tests;
