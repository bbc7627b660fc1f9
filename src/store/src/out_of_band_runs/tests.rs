//! Tests of the boots to which the installation is served, and of the start, continuation and end of the steps of a
//! management controller.

use super::*;
use crate::boot_activity::BootActivity;
use crate::next_boot::{BootRequestSender, decide_boot};
use crate::reinstall_order_records::{ReinstallOrder, read_order, store_order};
use crate::{registered_boots, schema};
use model::deploy_steps::OutOfBandStep::{PowerOff, PowerOn, Reboot, ResetBios};
use std::time::Duration;

const EARLY: &str = "2026-11-27T10:00:00Z";
const LATE: &str = "2026-11-27T11:00:00Z";

fn boot(created: &str) -> MachineBoot {
    MachineBoot {
        machine: "m".to_owned(),
        hash: [created.as_bytes()[12]; 32],
        created: created.to_owned(),
        while_active: false,
        address: None,
        started: false,
        over: None,
    }
}

fn request(order: &str, steps: &[OutOfBandStep]) -> OutOfBandRequest {
    OutOfBandRequest { allocation: "a".to_owned(), order: order.to_owned(), steps: steps.to_vec() }
}

fn run(phase: RunPhase, completed: usize, steps: &[OutOfBandStep]) -> OutOfBandRun {
    let time = "2026-11-27T10:30:00Z".to_owned();
    let new = OutOfBandRun::new("m", &request("o", steps));
    OutOfBandRun { phase, completed, since: time.clone(), restarted: time, ..new }
}

/// Returns "admit", "wait", or the number of completed steps with which a run starts.
fn decide(stored: Option<&OutOfBandRun>, wanted: &OutOfBandRequest, created: &str) -> String {
    match decide_admission(stored, wanted, &boot(created)) {
        AdmissionDecision::Admit => "admit".to_owned(),
        AdmissionDecision::Wait => "wait".to_owned(),
        AdmissionDecision::Start(run) => {
            assert!(run.is_active() && run.is_for(&wanted.allocation, &wanted.order) && run.steps == wanted.steps);
            format!("start at {}", run.completed)
        }
    }
}

#[test]
fn only_a_boot_after_the_last_restart_receives_its_installation() {
    let steps = [ResetBios, Reboot];
    let wanted = request("o", &steps);
    let done = run(RunPhase::Done, 2, &steps);
    let failed = |failures| OutOfBandRun { failures, ..run(RunPhase::Failed, 1, &steps) };
    let never_restarted = OutOfBandRun { restarted: String::new(), ..done.clone() };
    for (stored, created, expected) in [
        (None, EARLY, "start at 0"),
        (Some(&done), LATE, "admit"),
        (Some(&done), EARLY, "wait"),
        (Some(&never_restarted), EARLY, "admit"),
        (Some(&run(RunPhase::Ready, 0, &steps)), LATE, "wait"),
        (Some(&run(RunPhase::Changing, 0, &steps)), LATE, "wait"),
        (Some(&run(RunPhase::Restarting, 1, &steps)), LATE, "wait"),
        (Some(&run(RunPhase::Booting, 1, &steps)), LATE, "wait"),
        // A later boot retries from the failed step. The number of retries is limited.
        (Some(&failed(1)), EARLY, "wait"),
        (Some(&failed(1)), LATE, "start at 1"),
        (Some(&failed(ATTEMPTS)), LATE, "wait"),
    ] {
        assert_eq!(decide(stored, &wanted, created), expected, "{stored:?}");
    }
}

#[test]
fn completed_steps_are_skipped_only_for_the_same_installation() {
    let done = run(RunPhase::Done, 2, &[ResetBios, Reboot]);
    let failed = OutOfBandRun { failures: ATTEMPTS, ..run(RunPhase::Failed, 1, &[ResetBios, Reboot]) };
    for (stored, wanted, expected) in [
        // Another order, and another allocation, start from the first step.
        (&done, request("p", &[ResetBios, Reboot]), "start at 0"),
        (&done, OutOfBandRequest { allocation: "b".to_owned(), ..request("o", &[ResetBios, Reboot]) }, "start at 0"),
        // After the template was corrected, the completed factory reset is not repeated.
        (&failed, request("o", &[ResetBios, PowerOff, PowerOn]), "start at 1"),
        (&done, request("o", &[ResetBios, Reboot, PowerOn]), "start at 2"),
        (&done, request("o", &[ResetBios]), "start at 1"),
        (&done, request("o", &[Reboot, ResetBios]), "start at 0"),
        (&failed, request("o", &[PowerOff, PowerOn]), "start at 0"),
    ] {
        assert_eq!(decide(Some(stored), &wanted, LATE), expected, "{wanted:?}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Registers the boot as the current one.
fn register(state: &ServerState, boot: &MachineBoot) {
    let boot = boot.clone();
    runtime()
        .block_on(state.run_durably(move |transaction| registered_boots::replace_boot(transaction, &boot, "10.0.0.1")))
        .unwrap();
}

#[test]
fn out_of_band_run_survives_server_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || ServerState::open(&dir.path().join("state.sqlite"), Duration::ZERO).unwrap();
    let (state, runtime) = (open(), runtime());
    let wanted = || request("", &[ResetBios]);
    // A boot that is not the machine's current one does not start a run.
    let early = boot(EARLY);
    assert_eq!(runtime.block_on(state.admit_boot(&early, wanted())).unwrap(), BootAdmission::Waits(false));
    assert_eq!(runtime.block_on(state.list_active_runs()).unwrap(), []);
    register(&state, &early);
    assert_eq!(runtime.block_on(state.admit_boot(&early, wanted())).unwrap(), BootAdmission::Waits(true));
    assert_eq!(runtime.block_on(state.admit_boot(&early, wanted())).unwrap(), BootAdmission::Waits(false));

    runtime.block_on(state.close());
    let state = open();
    let (started, current) = runtime.block_on(state.list_active_runs()).unwrap().remove(0);
    assert_eq!((started.phase, current.unwrap().hash), (RunPhase::Ready, early.hash));
    let restarted = "2026-11-27T10:30:00Z".to_owned();
    let booting = OutOfBandRun { restarted, ..started.with_phase(RunPhase::Booting, crate::now()) };
    assert!(runtime.block_on(state.replace_run(&started, Some(booting.clone()))).unwrap());
    // The restart has ended the boot. A decision that is based on an earlier state of the run changes nothing.
    let current = runtime.block_on(state.list_active_runs()).unwrap().remove(0).1;
    assert_eq!(current.unwrap().over, Some(false));
    assert!(!runtime.block_on(state.replace_run(&started, None)).unwrap());

    let done = OutOfBandRun { completed: 1, ..booting.with_phase(RunPhase::Done, crate::now()) };
    assert!(runtime.block_on(state.replace_run(&booting, Some(done.clone()))).unwrap());
    assert_eq!(runtime.block_on(state.list_active_runs()).unwrap(), []);
    assert_eq!(runtime.block_on(state.admit_boot(&early, wanted())).unwrap(), BootAdmission::Waits(false));
    let late = boot(LATE);
    register(&state, &late);
    assert_eq!(runtime.block_on(state.admit_boot(&late, wanted())).unwrap(), BootAdmission::Admitted);

    // The run is transferred to the machine's new id. It is deleted when the machine is freed.
    let renamed = state.run_durably(|transaction| rename_run(transaction, "m", "n"));
    runtime.block_on(renamed).unwrap();
    assert_eq!(runtime.block_on(state.find_out_of_band_run("m")).unwrap(), None);
    let found = runtime.block_on(state.find_out_of_band_run("n")).unwrap();
    assert_eq!(found, Some(OutOfBandRun { machine: "n".to_owned(), ..done }));
    runtime.block_on(state.free_machine("n")).unwrap();
    assert_eq!(runtime.block_on(state.find_out_of_band_run("n")).unwrap(), None);
}

#[test]
fn boots_caused_by_steps_do_not_count_as_attempts() {
    let connection = crate::sql::Connection::open_in_memory().unwrap();
    schema::upgrade_schema(&connection).unwrap();
    let transaction = connection.transaction().unwrap();
    let insert = "INSERT INTO allocations (machine, id, created, succeeded) VALUES ('m', 'a', '', 1)";
    transaction.execute(insert, []).unwrap();
    let text = serde_json::json!({"id": "o", "image": "i", "created": "", "attempts": 1, "begun": false,
        "without_marker": false, "given_up": false});
    let order: ReinstallOrder = serde_json::from_value(text).unwrap();
    store_order(&transaction, "m", "a", &order).unwrap();
    let boots = |times: usize| {
        let heard = BootActivity::new(Duration::ZERO);
        for _ in 0..times {
            decide_boot(&transaction, "m", "a", BootRequestSender::Firmware(&heard)).unwrap();
            // The boot registers.
            transaction.execute("UPDATE orders SET handed = NULL", []).unwrap();
        }
        let order = read_order(&transaction, "m", "a").unwrap().unwrap();
        (order.attempts, order.is_suspended())
    };
    store_run(&transaction, &run(RunPhase::Booting, 0, &[Reboot])).unwrap();
    assert_eq!(boots(5), (1, false));
    // A run of another order, or a completed run, has no effect.
    store_run(&transaction, &OutOfBandRun { order: "p".to_owned(), ..run(RunPhase::Booting, 0, &[Reboot]) }).unwrap();
    assert_eq!(boots(1), (2, false));
    store_run(&transaction, &run(RunPhase::Done, 1, &[Reboot])).unwrap();
    assert_eq!((boots(1), boots(1)), ((3, false), (3, true)));
}
