//! Migration of a machine to other hardware, performed by the agents of both machines: the devices of the layout are
//! transferred with the protocol of `drophammer move`. Each agent generates its key at boot; the key never leaves the
//! agent's memory.

use super::destination_disk::TransferDestination;
use super::ganeti_certificate::PeerCertificate;
use super::ganeti_protocol::{GanetiCompression, GanetiTerms};
use super::key_generation::{self, KeyPairPem};
use super::protocol::receive_state::ReceivedDisk;
use super::receive_command::TransferReceiver;
use super::send_command::{self, TransferTarget};
use super::shared_secret::SharedSecret;
use super::source_disk::TransferSource;
use super::tls::TlsEndpoints;
use super::tls_connection::ListeningPort;
use common::error::{Error, Phase, Result};
use common::sync::lock_mutex;
use model::device_name::DevicePath;
use model::machine_migration::{MigratedMachine, MigrationPeer};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Optional file in the ramdisk that contains the secret shared by both machines, in one line.
pub const SECRET_FILE: &str = "/etc/drophammer/move-secret";

/// Validity period of a certificate, in hours: a week, so that a transfer that was interrupted for days can be resumed.
const HOURS: u32 = 24 * 7;

/// Time by which a certificate is backdated, because the machines' clocks may be set to local time or be hours wrong.
const EARLIER: time::Duration = time::Duration::days(1);

/// Time for which the sender tries to reach the peer, before the sender requests the peer's current address from the
/// control plane.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which the transfer is considered ended if no response of the control plane contains information about it.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Start of the current period in which all responses of the control plane lack information about the transfer; `None`
/// if there is no such period.
#[derive(Debug, Default)]
pub struct ControlSilence(Option<Instant>);

/// State of [`ControlSilence`] after a response without information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SilenceState {
    /// The response is the first one without information. It is reported to the operator.
    Started,
    /// Earlier responses also did not contain information, and the timeout has not elapsed.
    Continued,
    /// The timeout has elapsed, and the transfer is considered ended.
    TimedOut,
}

impl ControlSilence {
    /// Records that the control plane responded without information about the transfer.
    pub fn record_silence(&mut self) -> SilenceState {
        self.record_silence_at(Instant::now())
    }

    fn record_silence_at(&mut self, now: Instant) -> SilenceState {
        match self.0 {
            Some(began) if now.saturating_duration_since(began) >= CONTROL_PLANE_TIMEOUT => SilenceState::TimedOut,
            Some(_) => SilenceState::Continued,
            None => {
                self.0 = Some(now);
                SilenceState::Started
            }
        }
    }

    /// Resets the timeout. Called if the control plane has sent information about the transfer, or has not answered at
    /// all.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}

/// Key and certificate that the agent has generated at this boot.
pub struct OwnIdentity {
    pair: KeyPairPem,
    certificate: PeerCertificate,
    secret: Option<SharedSecret>,
}

impl OwnIdentity {
    /// Generates the key and the certificate.
    ///
    /// # Errors
    /// Fails if no random numbers are available, or the secret file exists but contains no secret.
    pub fn generate_identity(secret_file: &Path) -> Result<OwnIdentity> {
        let secret = secret_file.exists().then(|| super::read_secret(secret_file)).transpose()?;
        let pair = key_generation::generate_pair(EARLIER, HOURS, secret.as_ref())?;
        let certificate = PeerCertificate::parse_pem(&pair.certificate).map_err(|why| Error::new(Phase::Move, why))?;
        Ok(OwnIdentity { pair, certificate, secret })
    }

    /// Returns the certificate of this boot in PEM, which the control plane passes to the peer.
    pub fn certificate(&self) -> &str {
        &self.pair.certificate
    }

    /// Returns a message for the console that describes how the peer is authenticated and contains the fingerprint of
    /// this machine's certificate.
    pub fn describe_trust(&self) -> String {
        let own = self.fingerprint();
        match self.secret {
            Some(_) => format!(
                "both certificates are signed with the secret in the ramdisks, which the control plane does not have.\nCertificate of \
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
        linux::pem_encoding::certificate_fingerprint(&self.pair.certificate).unwrap_or_default()
    }

    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns whether the certificate of the peer can be verified with the shared secret, or was approved by the
    /// operator.
    pub fn may_trust(&self, peer: &MigrationPeer) -> bool {
        self.has_secret() || peer.approved
    }

    /// Checks the certificate of the peer before anything is erased.
    ///
    /// # Errors
    /// Refuses a certificate that is not valid now, or not signed with the shared secret. Fails if the certificate
    /// requires the operator's approval and was not approved.
    pub fn check_peer(&self, peer: &MigrationPeer) -> Result<()> {
        self.endpoints_for(peer).map(drop)
    }

    fn endpoints_for(&self, peer: &MigrationPeer) -> Result<TlsEndpoints> {
        self.endpoints_at(peer, OffsetDateTime::now_utc().unix_timestamp())
    }

    fn endpoints_at(&self, peer: &MigrationPeer, now: i64) -> Result<TlsEndpoints> {
        let refuse = |why: String| {
            let hint = "compare the clocks of both machines, and the secrets of their ramdisks";
            Error::refusal(Phase::Move, format!("certificate of the other machine: {why}; {hint}"))
        };
        if !self.may_trust(peer) {
            return Err(Error::new(Phase::Move, "the operator has not approved the certificate of the other machine"));
        }
        let peer = super::check_certificate(&peer.certificate, self.secret.as_ref(), now).map_err(refuse)?;
        TlsEndpoints::new(&self.pair.key, &self.certificate, peer).map_err(|why| Error::new(Phase::Move, why))
    }
}

/// Device of the layout on this machine.
pub struct TransferDevice {
    /// Name of the device, which is the same for sender and receiver.
    pub name: String,
    pub path: DevicePath,
}

/// Sends devices, which are opened read-only. Groups of devices that have no disk in common are sent concurrently. The
/// devices of a group are sent one after another, since concurrent reads slow a disk down.
///
/// `fails` is called as soon as a group fails; the other groups continue.
///
/// # Errors
/// Fails if a device was not transferred completely.
pub fn send_devices(
    own: &OwnIdentity,
    peer: &MigrationPeer,
    order: &str,
    groups: &[Vec<TransferDevice>],
    say: &(dyn Fn(&str) + Sync),
    fails: &(dyn Fn(&Error) + Sync),
) -> Result<()> {
    let ends = own.endpoints_for(peer)?;
    let way = TransferTarget {
        to: &peer.address,
        ends: &ends,
        terms: build_terms(order)?,
        patience: CONNECT_TIMEOUT,
        run: None,
    };
    let group = |devices: &[TransferDevice]| {
        let ended = devices.iter().try_for_each(|TransferDevice { name, path }| {
            let source = TransferSource::open_source(path.as_ref(), false)?;
            let figures = send_command::send_one_disk(name, &source, &way, usize::MAX)?;
            figures.format_lines().lines().for_each(say);
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

fn build_terms(order: &str) -> Result<GanetiTerms> {
    let magic = order.parse().map_err(|why| Error::new(Phase::Move, format!("order id {order:?}: {why}")))?;
    Ok(GanetiTerms { magic: Some(magic), compression: GanetiCompression::None, size_bytes: None })
}

/// Receiving end of a migration. The port is opened before the plan is made.
pub struct IncomingMigration {
    own: OwnIdentity,
    port: ListeningPort,
    /// Inventory of the sender for which the plan was made.
    planned: Option<MigratedMachine>,
    news: Mutex<PeerUpdate>,
}

/// Latest information about the migration from the control plane.
#[derive(Default)]
struct PeerUpdate {
    peer: Option<(MigrationPeer, TlsEndpoints)>,
    over: Option<String>,
}

/// Opens a destination without adapting a GPT. The partition tables of the machine are created by the plan. A GPT
/// inside a transferred device, for example the GPT of a virtual disk, is part of that device's content.
fn open_unfitted(path: &Path) -> Result<TransferDestination> {
    Ok(TransferDestination::open_destination(path)?.without_gpt_fit())
}

impl IncomingMigration {
    /// Opens a listening socket on a free port.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub fn open_port(own: OwnIdentity, planned: Option<MigratedMachine>) -> Result<IncomingMigration> {
        // A socket that is bound to the IPv6 address also accepts IPv4. If the kernel lacks IPv6, an IPv4 address is
        // bound.
        let port = ListeningPort::open("[::]:0").or_else(|_| ListeningPort::open("0.0.0.0:0"))?;
        Ok(IncomingMigration { own, port, planned, news: Mutex::default() })
    }

    pub fn own(&self) -> &OwnIdentity {
        &self.own
    }

    pub fn port(&self) -> Option<u16> {
        self.port.address.rsplit(':').next()?.parse().ok()
    }

    /// Sets the peer that may connect from now on. Without a shared secret, ignores a peer whose certificate is not
    /// approved.
    ///
    /// # Errors
    /// Refuses a certificate that is not valid, or not signed with the secret.
    pub fn set_peer(&self, peer: &MigrationPeer) -> Result<()> {
        if !self.own.may_trust(peer) {
            return Ok(());
        }
        let mut news = lock_mutex(&self.news);
        if news.peer.as_ref().is_some_and(|(known, _)| known.certificate == peer.certificate) {
            return Ok(());
        }
        news.peer = Some((peer.clone(), self.own.endpoints_for(peer)?));
        Ok(())
    }

    /// Returns whether a peer that may connect was set.
    pub fn knows_sender(&self) -> bool {
        lock_mutex(&self.news).peer.is_some()
    }

    /// Compares the inventory that the peer sends after each boot with the inventory for which the plan was made. If
    /// the inventories differ, the transfer is ended, because the plan contains ids from the earlier inventory.
    pub fn compare_inventory(&self, migrated_machine: &MigratedMachine) {
        if self.planned.as_ref().is_some_and(|planned| !planned.has_same_content(migrated_machine)) {
            self.end_transfer(
                "the other machine has rebooted, and its filesystems, arrays or partitions have other ids or sizes than in this plan; \
                 a new plan is required",
            );
        }
    }

    /// Ends the transfer.
    pub fn end_transfer(&self, why: &str) {
        lock_mutex(&self.news).over = Some(why.to_owned());
    }

    /// Returns whether the migration has ended.
    pub fn is_over(&self) -> bool {
        lock_mutex(&self.news).over.is_some()
    }

    /// Opens the devices. Writes nothing.
    ///
    /// # Errors
    /// Fails if a device does not exist or is in use.
    pub fn open_devices(&self, order: &str, devices: Vec<TransferDevice>) -> Result<ReceivingDevices<'_>> {
        let open = |TransferDevice { name, path }: TransferDevice| {
            let path = AsRef::<Path>::as_ref(&path).to_owned();
            ReceivedDisk::open_disk(name, (path, open_unfitted), Some(order.to_owned()), None, false)
        };
        let disks = devices.into_iter().map(open).collect::<Result<_>>()?;
        Ok(ReceivingDevices { incoming: self, waiting: TransferReceiver::with_disks(disks, build_terms(order)?) })
    }

    /// Returns the peer that may connect now, with the TLS configuration for this peer. Fails if the transfer has ended
    /// or no peer was set.
    fn current_endpoints(&self) -> Result<(MigrationPeer, TlsEndpoints)> {
        let news = lock_mutex(&self.news);
        match (&news.over, &news.peer) {
            (Some(why), _) => Err(Error::new(Phase::Move, why.clone())),
            (None, Some(known)) => Ok(known.clone()),
            (None, None) => Err(Error::new(Phase::Move, "the control plane has not announced the sending machine")),
        }
    }
}

/// Devices that are being received.
pub struct ReceivingDevices<'i> {
    incoming: &'i IncomingMigration,
    waiting: TransferReceiver,
}

impl ReceivingDevices<'_> {
    /// Returns the number of bytes received for all devices together.
    pub fn received_bytes(&self) -> u64 {
        self.waiting.received_bytes()
    }

    /// Receives all devices. Returns the peer that has sent the devices. The certificate of this peer identifies the
    /// boot of the sender.
    ///
    /// # Errors
    /// Fails if a device cannot be written, or the transfer is ended with [`IncomingMigration::end_transfer`].
    pub fn receive_all(&self, say: &dyn Fn(&str)) -> Result<MigrationPeer> {
        let say = |line: &str| {
            say(line);
            Ok(())
        };
        // Data is accepted only from the peer that was announced last.
        let from = RefCell::new(MigrationPeer { certificate: String::new(), address: String::new(), approved: false });
        self.waiting.receive_all(&self.incoming.port, Duration::MAX, &say, || {
            let (peer, ends) = self.incoming.current_endpoints()?;
            *from.borrow_mut() = peer;
            Ok(ends)
        })?;
        Ok(from.into_inner())
    }
}

#[cfg(test)]
mod tests;
