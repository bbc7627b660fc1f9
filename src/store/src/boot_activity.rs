//! Time of the most recent request of each boot, and the decision whether a boot is still active.

use crate::boot_token::RequestedBoot;
use crate::shared_clock::SharedClock;
use crate::token_hash::TokenHash;
use common::sync::lock_mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Duration for which a boot is considered active after its last request. Machines send a request at least once per
/// minute.
pub const ACTIVE_BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Shorter duration that applies if the next boot registers from the address of the previous boot. The machine has then
/// most likely restarted, so the previous boot counts as ended as soon as it has omitted one request.
pub const SAME_ADDRESS_BOOT_TIMEOUT: Duration = Duration::from_secs(70);

/// Duration that is added to [`ACTIVE_BOOT_TIMEOUT`] and [`SAME_ADDRESS_BOOT_TIMEOUT`] if several servers share the
/// database. It exceeds the interval at which the servers exchange the times of requests.
const EXCHANGE_MARGIN: Duration = Duration::from_secs(15);

/// Duration after which a boot that has not started an installation expires. The machine must then boot again.
const IDLE_BOOT_LIFETIME: time::Duration = time::Duration::hours(24);

/// Minimum number of stored boots at which inactive boots are removed.
const CLEANUP_MINIMUM: usize = 16 << 10;

/// Boot of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineBoot {
    pub machine: String,
    pub hash: TokenHash,
    pub(crate) created: String,
    /// True if another boot of the machine was active when this boot was requested.
    pub(crate) while_active: bool,
    /// Address from which the boot has registered; `None` if the boot was requested, but has not registered.
    pub address: Option<String>,
    /// True if the machine has passed the point of no return during this boot, after which the machine's disks may be
    /// erased.
    pub started: bool,
    /// True if the installation succeeded; `None` while the boot has not reported the end of its installation.
    pub over: Option<bool>,
}

impl MachineBoot {
    /// Returns a boot that was requested and has not registered yet. `hash` is the hash of the boot's token.
    pub fn from_request(hash: TokenHash, boot: RequestedBoot) -> MachineBoot {
        let created = boot.created.format(&Rfc3339).unwrap_or_default();
        let RequestedBoot { machine, while_active, .. } = boot;
        MachineBoot { machine, hash, created, while_active, address: None, started: false, over: None }
    }

    /// Returns whether this boot was requested after the time `other`, an RFC 3339 timestamp.
    pub fn is_newer_than(&self, other: &str) -> bool {
        let time = |text: &str| OffsetDateTime::parse(text, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        time(&self.created) > time(other)
    }

    /// Returns whether the boot has expired at the time `now` of the shared clock. A boot that has started an
    /// installation does not expire, because the duration of an installation depends on the machine's disks.
    pub fn is_expired(&self, now: OffsetDateTime) -> bool {
        let created = OffsetDateTime::parse(&self.created, &Rfc3339);
        !self.started && created.map_or(true, |created| now - created > IDLE_BOOT_LIFETIME)
    }
}

/// Time of a boot's last request: an instant for durations, and a time of day for display.
#[derive(Clone, Copy)]
struct LastCall {
    instant: Instant,
    time: OffsetDateTime,
}

/// For each boot: the time of its most recent request to the server.
#[derive(Clone)]
pub struct BootActivity {
    at: Arc<Mutex<HashMap<TokenHash, LastCall>>>,
    /// Number of stored boots at which the inactive boots are removed.
    cleanup_at: Arc<AtomicUsize>,
    /// Time at which the server started. Requests before this time are unknown, so a boot without a known request is
    /// assumed to have sent its last request at this time.
    started: Instant,
    pub quiet: Duration,
    /// True if other servers use the same database, and exchange the times of requests with this server.
    pub(crate) is_shared: bool,
    unshared: Arc<Mutex<HashSet<TokenHash>>>,
    pub(crate) clock: SharedClock,
    /// Duration without a request after which another boot may register from the same address; see
    /// [`SAME_ADDRESS_BOOT_TIMEOUT`].
    pub quiet_at_same_address: Duration,
}

impl BootActivity {
    pub(crate) fn new(quiet: Duration) -> BootActivity {
        BootActivity {
            at: Arc::default(),
            cleanup_at: Arc::new(AtomicUsize::new(CLEANUP_MINIMUM)),
            started: Instant::now(),
            quiet,
            is_shared: false,
            unshared: Arc::default(),
            clock: SharedClock::default(),
            quiet_at_same_address: SAME_ADDRESS_BOOT_TIMEOUT.min(quiet),
        }
    }

    pub fn record_call(&self, boot: &TokenHash) {
        let mut at = lock_mutex(&self.at);
        at.insert(*boot, LastCall { instant: Instant::now(), time: OffsetDateTime::now_utc() });
        if self.is_shared {
            lock_mutex(&self.unshared).insert(*boot);
        }
        // The next cleanup is due only when the number of entries has doubled, so that the average cost of cleanups per
        // call is constant.
        if at.len() >= self.cleanup_at.load(Ordering::Relaxed) {
            at.retain(|_, heard| heard.instant.elapsed() < self.quiet);
            self.cleanup_at.store(at.len() * 2 + CLEANUP_MINIMUM, Ordering::Relaxed);
        }
    }

    /// Returns whether the machine currently runs its ramdisk: the boot has not ended, and has contacted this server
    /// process recently.
    pub fn has_called_recently(&self, boot: &MachineBoot) -> bool {
        let at = lock_mutex(&self.at);
        boot.over.is_none() && at.get(&boot.hash).is_some_and(|heard| heard.instant.elapsed() < self.quiet)
    }

    /// Returns the time of the boot's last request; `None` if the boot has not contacted this server process.
    pub(crate) fn last_call(&self, boot: &TokenHash) -> Option<OffsetDateTime> {
        lock_mutex(&self.at).get(boot).map(|heard| heard.time)
    }

    pub fn time_since_call(&self, boot: &TokenHash) -> Duration {
        let at = lock_mutex(&self.at);
        at.get(boot).map_or(self.started, |heard| heard.instant).elapsed()
    }

    /// Returns whether the boot has not ended, and was active recently. If the boot has not contacted this server
    /// process, its last contact is assumed to be the start of the server.
    pub(crate) fn is_active(&self, boot: &MachineBoot) -> bool {
        self.is_active_within(boot, self.quiet)
    }

    /// Returns whether this boot is still active, and thus prevents another boot of the machine from registering at
    /// `address`.
    pub(crate) fn blocks_registration(&self, boot: &MachineBoot, address: &str) -> bool {
        let is_same = boot.address.as_deref() == Some(address);
        self.is_active_within(boot, if is_same { self.quiet_at_same_address } else { self.quiet })
    }

    fn is_active_within(&self, boot: &MachineBoot, patience: Duration) -> bool {
        // The margin never exceeds the duration itself, so that tests can specify that boots end immediately.
        let margin = if self.is_shared { EXCHANGE_MARGIN.min(self.quiet) } else { Duration::ZERO };
        boot.over.is_none() && self.time_since_call(&boot.hash) < patience + margin
    }

    /// Returns the boots that have sent requests since the last exchange, each with the time since its last request.
    pub(crate) fn take_unshared(&self) -> Vec<(TokenHash, Duration)> {
        let boots = std::mem::take(&mut *lock_mutex(&self.unshared));
        let at = lock_mutex(&self.at);
        boots.into_iter().filter_map(|boot| at.get(&boot).map(|heard| (boot, heard.instant.elapsed()))).collect()
    }

    /// Records requests that other servers have received, each with the time since the request.
    pub(crate) fn record_shared(&self, calls: impl Iterator<Item = (TokenHash, Duration)>) {
        let mut at = lock_mutex(&self.at);
        for (boot, age) in calls {
            let Some(instant) = Instant::now().checked_sub(age) else { continue };
            if at.get(&boot).is_none_or(|heard| heard.instant < instant) {
                at.insert(boot, LastCall { instant, time: OffsetDateTime::now_utc() - age });
            }
        }
    }
}
