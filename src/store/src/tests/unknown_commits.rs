//! Group of transactions whose commit has an unknown outcome, because the connection is lost after the commit was
//! sent. Each caller gets an error that states this, and repeats its request. The repetition has the same result
//! whether the group was committed or not.

use super::lossy_proxy::{Loss, LossyProxy};
use super::postgres::{disable_group_limit, open_at};
use super::*;
use crate::store_address::PostgresAddress;
use ::testing::postgres::{self, PrivatePostgres};
use common::error_code::ErrorCode;
use std::sync::mpsc;

/// Number of requests in the group.
const REQUESTS: usize = 4;

fn place(state: &ServerState, machine: &str) -> ReinstallOrder {
    match wait(state.place_order(machine, machine, "i1", ReinstallOverrides::default(), None)) {
        OrderOutcome::Placed { order, .. } => order,
        other => panic!("{other:?}"),
    }
}

/// Results of an order, a point of no return, a report, and a boot request, each for a different machine.
struct GroupResults {
    placed: Result<OrderOutcome>,
    started: Result<OrderStart>,
    reported: Result<ReportOutcome>,
    booted: Result<BootDecision>,
}

impl GroupResults {
    fn errors(self) -> Vec<common::error::Error> {
        let all = [self.placed.err(), self.started.err(), self.reported.err(), self.booted.err()];
        all.into_iter().flatten().collect()
    }
}

struct FourMachines {
    names: [String; REQUESTS],
    orders: [String; REQUESTS],
}

impl FourMachines {
    /// Installs the machines, and brings each to the state before its request.
    fn new(state: &ServerState, prefix: &str) -> FourMachines {
        let names = ["ordered", "started", "reported", "booted"].map(|name| format!("{prefix}-{name}"));
        names.iter().for_each(|name| install(state, name));
        let mut orders = [const { String::new() }; REQUESTS];
        for (name, order) in names.iter().zip(&mut orders).skip(1) {
            *order = place(state, name).id;
        }
        for number in [1, 2] {
            boot_and_register(state, &names[number]);
        }
        let permitted = wait(state.start_order(&names[2], &names[2], &orders[2], start()));
        assert!(matches!(permitted, OrderStart::Permitted(_, true)));
        FourMachines { names, orders }
    }

    /// Sends the four requests at the same time, so that they are one group. Runs `blocked` before the group runs.
    fn send(&self, state: &ServerState, blocked: impl FnOnce()) -> GroupResults {
        let [ordered, started, reported, booted] = &self.names;
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let files = FileAllocation::Allocated(booted.clone());
        let success = report(true, &self.orders[2]);
        let release = async {
            while state.count_own_jobs() < REQUESTS {
                tokio::task::yield_now().await;
            }
            blocked();
            drop(until);
        };
        let all = async {
            let (placed, started, reported, booted, ()) = tokio::join!(
                state.place_order(ordered, ordered, "i1", ReinstallOverrides::default(), None),
                state.start_order(started, started, &self.orders[1], start()),
                state.handle_report(reported, reported, BOOT, &success),
                state.decide_next_boot(booted, files),
                release
            );
            GroupResults { placed, started, reported, booted }
        };
        RUNTIME.with(|runtime| runtime.block_on(all))
    }

    fn read(&self, state: &ServerState, number: usize) -> InstallState {
        install_state(state, &self.names[number])
    }
}

/// Checks that either all transactions of the group are stored, or none.
fn check_stored(state: &ServerState, machines: &FourMachines, is_stored: bool) {
    assert_eq!(machines.read(state, 0).order.is_some(), is_stored);
    assert_eq!(machines.read(state, 1).order.unwrap().started, is_stored);
    assert_eq!(machines.read(state, 2).order.is_none(), is_stored);
    assert_eq!(machines.read(state, 3).order.unwrap().attempts, u32::from(is_stored));
}

/// Repeats the requests of the group, and checks that each has its effect once.
fn check_repetition(state: &ServerState, machines: &FourMachines, was_stored: bool) {
    let repeated = machines.send(state, || ());
    let Ok(OrderOutcome::Placed { order, .. }) = repeated.placed else { panic!() };
    let Ok(OrderStart::Permitted(_, news)) = repeated.started else { panic!() };
    assert_eq!(news, !was_stored, "the point of no return is recorded once");
    let reported = repeated.reported.unwrap();
    assert_eq!((reported.news, reported.unproven), (!was_stored, None));
    assert!(matches!(repeated.booted.unwrap().next, BootTarget::Attempt(order) if order.attempts == 1));

    assert_eq!(machines.read(state, 0).order.map(|open| open.id), Some(order.id), "one order is open");
    assert!(machines.read(state, 1).order.unwrap().started);
    let done = machines.read(state, 2);
    assert_eq!((done.order, done.image.as_deref()), (None, Some("i1")));
    let history = wait(state.list_history(&machines.names[2]));
    let completed = history.iter().filter(|entry| entry.order.as_ref() == Some(&machines.orders[2]));
    assert_eq!(completed.filter(|entry| entry.kind == HistoryKind::Installed).count(), 1);
    assert_eq!(machines.read(state, 3).order.unwrap().attempts, 1);
}

#[test]
fn each_request_of_a_group_with_an_unknown_outcome_fails_and_can_be_repeated() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    server.create_database("desk");
    let proxy = LossyProxy::start(&server);
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&PostgresAddress::parse(&proxy.url("desk")).unwrap(), &dir);
    disable_group_limit(&state);
    for (loss, is_stored) in [(Loss::Response, true), (Loss::Request, false)] {
        let machines = FourMachines::new(&state, &format!("{loss:?}").to_lowercase());
        let errors = machines.send(&state, || proxy.arm(loss)).errors();
        assert_eq!(errors.len(), REQUESTS, "none of the requests is acknowledged");
        for error in errors {
            assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
            assert!(error.to_string().contains("may or may not be stored"), "{error}");
        }
        check_stored(&state, &machines, is_stored);
        check_repetition(&state, &machines, is_stored);
    }
}
