//! Registration of the address range of this server (`--range`) in a database that several servers share. dnsmasq runs
//! only while the registration is in force, so two servers never assign the same address.

use common::error::{Error, Phase, Result};
use http_server::server_log::ServerLog;
use pxe::pxe_options::AddressRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::ServerState;
use store::address_ranges::{RangeClaim, RegisteredRange};
use store::server_leases::{LEASE, RENEWAL};
use tokio::task::JoinHandle;

/// Time limit of a renewal; a renewal that exceeds it is repeated.
const ATTEMPT: Duration = Duration::from_secs(2);
const REPETITION: Duration = Duration::from_millis(200);
/// Time after the last renewal at which the server may no longer assign addresses. The remaining time until the
/// registration expires suffices to stop dnsmasq.
const PERMITTED: Duration = Duration::from_secs(LEASE.as_secs() - 4);

/// Registration of the range. A background task renews it until this value is dropped.
pub(crate) struct RangeRegistration {
    /// True while this server may assign addresses.
    pub permission: Arc<AtomicBool>,
    renewal: Option<JoinHandle<()>>,
}

impl RangeRegistration {
    /// Registers the range, and starts its renewal. Does nothing if the server has no range, or does not share its
    /// database.
    ///
    /// # Errors
    /// Returns an error if another server assigns some of the addresses, or if the database cannot be written.
    pub(crate) async fn register_range(
        state: &ServerState,
        range: Option<AddressRange>,
        watch: &ServerLog,
    ) -> Result<RangeRegistration> {
        let permission = Arc::new(AtomicBool::new(true));
        let Some(range) = range.filter(|_| state.is_shared()) else {
            return Ok(RangeRegistration { permission, renewal: None });
        };
        let began = Instant::now();
        match state.register_address_range(range.first, range.last).await? {
            RangeClaim::Registered(_) => {}
            RangeClaim::Overlaps(other) => return Err(refuse_overlap(range, &other)),
        }
        let renewal = renew_range(state.clone(), range, permission.clone(), began, watch.clone());
        Ok(RangeRegistration { permission, renewal: Some(tokio::spawn(renewal)) })
    }
}

impl RangeRegistration {
    pub(crate) fn is_registered(&self) -> bool {
        self.renewal.is_some()
    }
}

impl Drop for RangeRegistration {
    fn drop(&mut self) {
        self.renewal.iter().for_each(JoinHandle::abort);
    }
}

fn describe_overlap(range: AddressRange, other: &RegisteredRange) -> String {
    format!(
        "this server cannot assign the addresses {}-{}, because the server {} assigns the addresses {}-{}",
        range.first, range.last, other.server, other.first, other.last
    )
}

fn refuse_overlap(range: AddressRange, other: &RegisteredRange) -> Error {
    let why = format!(
        "--range: {}; specify a range that does not overlap, or omit --range. If that server has ended without releasing its range, the range is free {} seconds later",
        describe_overlap(range, other),
        LEASE.as_secs()
    );
    Error::refusal(Phase::Serve, why)
}

/// Renews the registration. If the renewal fails, withdraws the permission to assign addresses before the registration
/// expires.
async fn renew_range(
    state: ServerState,
    range: AddressRange,
    permission: Arc<AtomicBool>,
    mut renewed: Instant,
    watch: ServerLog,
) {
    loop {
        tokio::time::sleep(if renewed.elapsed() < RENEWAL { RENEWAL } else { REPETITION }).await;
        let began = Instant::now();
        let claim = tokio::time::timeout(ATTEMPT, state.register_address_range(range.first, range.last)).await;
        let problem = match claim {
            Ok(Ok(RangeClaim::Registered(_))) => {
                renewed = began;
                if !permission.swap(true, Ordering::SeqCst) {
                    watch.log_note(
                        "--range: the registration of the address range was renewed; this server assigns \
                        addresses again"
                            .to_owned(),
                    );
                }
                continue;
            }
            Ok(Ok(RangeClaim::Overlaps(other))) => describe_overlap(range, &other),
            Ok(Err(_)) | Err(_) if renewed.elapsed() < PERMITTED => continue,
            Ok(Err(error)) => format!("the registration of this server's range cannot be renewed: {error}"),
            Err(_) => {
                "the registration of this server's range cannot be renewed: the database does not respond".to_owned()
            }
        };
        if permission.swap(false, Ordering::SeqCst) {
            watch.log_problem(format!("--range: {problem}; dnsmasq is stopped until the range is registered again"));
        }
    }
}
