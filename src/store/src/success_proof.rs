//! Proof of a reported success. A reported success is valid only if this server has recorded the start of the
//! attempt, and the attempt has written the reported install marker.
//!
//! | the report names | state of the allocation | result |
//! |---|---|---|
//! | the open order | an attempt of the order has started on this server | recorded if the marker is of that attempt |
//! | the open order | no attempt has started on this server | refused |
//! | the order that was completed last, with the recorded marker | any | repeated report: acknowledged, not recorded |
//! | any other order | any | refused |
//! | no order | installed | an accidental boot over PXE: acknowledged, nothing is recorded |
//! | no order | adopted by the operator | recorded if the marker is the one that the operator was shown |
//! | no order | the first installation has started on this server | recorded if the marker is of that attempt |
//! | no order | any other state | refused |
//!
//! A machine that needs confirmation after a restore boots its installed system. If the table would refuse its report
//! of success, the report is acknowledged, and the reported marker is stored as unverified.

use super::TokenHash;
use super::install_attempt::StartedAttempt;
use super::install_state::InstallState;
use super::reinstall_order_records::ReinstallOrder;
use common::format::truncate_bytes;
use control::agent_api_types::InstallReport;
use model::install_marker::attempt_proof::MarkerMismatch;
use model::install_marker::{InstallMarker, RecordedDisk};
use std::fmt;

/// Maximum length of an id in a refusal message, in bytes.
const ID_BYTES: usize = 128;

/// Effect of a report of success on the server's record of the allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SuccessEffect {
    /// The reinstall order is completed.
    Order(Box<ReinstallOrder>),
    /// The first installation is completed.
    Installation,
    /// The adoption by the operator is completed. The content of the reported marker is not verified.
    Adoption,
    /// The report does not change the record.
    NoEffect,
}

/// Reason why a reported success is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnprovenReason {
    /// The reinstall order with this id is not open.
    OrderNotOpen(String),
    /// No attempt that passed the point of no return is recorded on this server.
    NotBegun,
    /// The boot that started the attempt sent no digest of the attempt's secret, and another boot reports the success.
    OtherBoot,
    /// The report contains no install marker, or the marker of another allocation or reinstall order.
    OtherMarker,
    /// Another attempt has written the reported install marker.
    Mismatch(MarkerMismatch),
    /// The reported install marker is not the one that the operator adopted.
    NotAdopted,
}

impl UnprovenReason {
    /// Returns the stable code of the reason.
    pub fn code(&self) -> &'static str {
        match self {
            UnprovenReason::OrderNotOpen(_) => "success-order-not-open",
            UnprovenReason::NotBegun => "success-not-begun",
            UnprovenReason::OtherBoot => "success-other-boot",
            UnprovenReason::OtherMarker | UnprovenReason::Mismatch(_) => "success-other-marker",
            UnprovenReason::NotAdopted => "success-not-adopted",
        }
    }

    /// Returns the message that refuses the report, with a remedy for the operator. The machine shows the message on
    /// its console.
    pub fn explain(&self, machine: &str, allocation: &str) -> String {
        let remedy = match self {
            UnprovenReason::NotAdopted => format!(
                "run `drophammer machine adopt --waiting` to compare the markers; then run `drophammer machine adopt {machine}`, or erase the disk"
            ),
            UnprovenReason::OrderNotOpen(_) => format!(
                "to carry out the current order, boot the machine over PXE; `drophammer machine list` shows the order of {machine}"
            ),
            _ => format!(
                "to carry out the order, boot the machine over PXE; if the machine's system was replaced or restored by hand, boot the machine from its disk, and \
                cancel the order with `drophammer machine reinstall {machine} --cancel`"
            ),
        };
        format!(
            "the report of success for allocation {allocation} of machine {machine} is not recorded: {self}; {remedy}"
        )
    }
}

impl fmt::Display for UnprovenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnprovenReason::OrderNotOpen(order) => write!(f, "reinstall order {order} is not open"),
            UnprovenReason::NotBegun => {
                f.write_str("the server has no record of an attempt that passed the point of no return")
            }
            UnprovenReason::OtherBoot => f.write_str(
                "the attempt was started by another boot, which did not send a digest of the attempt's secret",
            ),
            UnprovenReason::OtherMarker => {
                f.write_str("the report does not contain an install marker with this allocation and order")
            }
            UnprovenReason::Mismatch(mismatch) => write!(f, "the install marker is of another attempt: {mismatch}"),
            UnprovenReason::NotAdopted => {
                f.write_str("the install marker differs from the install marker that the operator adopted")
            }
        }
    }
}

/// Evaluates a report of success that was sent by the boot with this token. Returns the effect of the report.
///
/// # Errors
/// Returns an error if the success is not proven.
pub(crate) fn evaluate_success(
    install_state: &InstallState,
    allocation: &str,
    boot: TokenHash,
    report: &InstallReport,
) -> Result<SuccessEffect, UnprovenReason> {
    let judged = match (&report.order, &install_state.order) {
        (Some(id), Some(order)) if *id == order.id => {
            let attempt = order.attempt.as_ref().ok_or(UnprovenReason::NotBegun);
            let proven = attempt.and_then(|attempt| check_marker(attempt, &order.disks, allocation, boot, report));
            proven.map(|()| SuccessEffect::Order(Box::new(order.clone())))
        }
        (Some(id), _) if is_repeated_success(install_state, id, report) => Ok(SuccessEffect::NoEffect),
        (Some(id), _) => Err(UnprovenReason::OrderNotOpen(truncate_bytes(id, ID_BYTES).escape_debug().to_string())),
        (None, _) if install_state.succeeded => Ok(SuccessEffect::NoEffect),
        (None, _) => evaluate_first_success(install_state, allocation, boot, report),
    };
    if install_state.unconfirmed { judged.or(Ok(SuccessEffect::NoEffect)) } else { judged }
}

fn evaluate_first_success(
    install_state: &InstallState,
    allocation: &str,
    boot: TokenHash,
    report: &InstallReport,
) -> Result<SuccessEffect, UnprovenReason> {
    let started = install_state.first.as_ref().ok_or(UnprovenReason::NotBegun);
    let proven = started.and_then(|first| check_marker(&first.to_attempt(), &first.disks, allocation, boot, report));
    match (proven, &install_state.adopted_marker) {
        (Ok(()), _) => Ok(SuccessEffect::Installation),
        (Err(why), _) if !install_state.adopted => Err(why),
        (Err(_), Some(adopted)) if report.marker.as_ref() != Some(adopted) => Err(UnprovenReason::NotAdopted),
        // The reported marker is the adopted one, or the operator was not shown a marker before the adoption. In the
        // latter case, any marker of this allocation is accepted.
        (Err(_), _) => Ok(SuccessEffect::Adoption),
    }
}

/// Checks that the attempt has written the reported install marker.
fn check_marker(
    attempt: &StartedAttempt,
    disks: &[RecordedDisk],
    allocation: &str,
    boot: TokenHash,
    report: &InstallReport,
) -> Result<(), UnprovenReason> {
    let Some(record) = &attempt.record else {
        return if attempt.by == boot { Ok(()) } else { Err(UnprovenReason::OtherBoot) };
    };
    let is_of = |marker: &&InstallMarker| marker.allocation == allocation && marker.order == report.order;
    let marker = report.marker.as_ref().filter(is_of).ok_or(UnprovenReason::OtherMarker)?;
    marker.check_attempt(record, disks).map_err(UnprovenReason::Mismatch)
}

/// Returns whether the reported success of the reinstall order is already recorded. The machine repeats its report if
/// it did not receive the server's response.
fn is_repeated_success(install_state: &InstallState, order: &str, report: &InstallReport) -> bool {
    let is_last = install_state.outcome.as_ref().is_some_and(|outcome| outcome.success && outcome.order == order);
    is_last && install_state.marker == report.marker
}
