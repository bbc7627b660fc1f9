//! Rollouts in the database: waves, failures, restarts, and servers that share the database.

use super::*;
use crate::rollouts::{
    MemberOrderOutcome, MemberRecord, MemberState, Rollout, RolloutChange, RolloutEvent, RolloutLimits, RolloutMember,
    RolloutOutcome, RolloutRecord, RolloutState,
};
use crate::server_leases::LeaseClaim;

pub(super) fn limits(at_most: u32, stop_after: u32) -> RolloutLimits {
    RolloutLimits { at_most, stop_after, ..RolloutLimits::default() }
}

fn request(state: &ServerState, machines: &[&str], limits: RolloutLimits) -> RolloutOutcome {
    let record = RolloutRecord { created: now(), limits, ..RolloutRecord::default() };
    let member =
        |machine: &&str| ((*machine).to_owned(), MemberRecord { image: "i1".to_owned(), ..MemberRecord::default() });
    wait(state.create_rollout(record, machines.iter().map(member).collect()))
}

/// Installs the machines, and creates a rollout of them. Returns its id.
pub(super) fn create(state: &ServerState, machines: &[&str], limits: RolloutLimits) -> i64 {
    machines.iter().for_each(|machine| install(state, machine));
    match request(state, machines, limits) {
        RolloutOutcome::Done(rollout) => rollout.id,
        other => panic!("{other:?}"),
    }
}

fn find(state: &ServerState, id: i64) -> Rollout {
    wait(state.find_rollout(id)).unwrap()
}

fn order(state: &ServerState, id: i64, number: usize) -> MemberOrderOutcome {
    let machine = find(state, id).members[number].machine.clone();
    wait(state.order_member((id, number), allocation(&machine), ReinstallOverrides::default(), None, None))
}

/// Updates the members, orders all members that are due, and returns the states as letters.
pub(super) fn advance(state: &ServerState, id: i64) -> String {
    wait(state.update_rollouts());
    for number in 0..find(state, id).members.len() {
        order(state, id, number);
    }
    letters(state, id)
}

fn letters(state: &ServerState, id: i64) -> String {
    let letter = |state| match state {
        MemberState::Waiting => 'w',
        MemberState::Ordered => 'o',
        MemberState::Installing => 'i',
        MemberState::Done => 'd',
        MemberState::Failed => 'f',
        MemberState::Skipped => 's',
    };
    find(state, id).member_states().into_iter().map(letter).collect()
}

fn boot(state: &ServerState, machine: &str) {
    wait(state.decide_next_boot(machine, FileAllocation::Allocated(allocation(machine).to_owned())));
}

fn begin(state: &ServerState, machine: &str) {
    boot(state, machine);
    let open = install_state(state, machine).order.unwrap();
    let started = wait(state.start_order(machine, allocation(machine), &open.id, start()));
    assert!(matches!(started, OrderStart::Permitted(..)), "{started:?}");
}

fn end(state: &ServerState, machine: &str, success: bool) {
    let open = install_state(state, machine).order.unwrap();
    let ended = InstallReport { untouched: !open.started && !success, ..report(success, &open.id) };
    wait(state.handle_report(machine, allocation(machine), BOOT, &ended));
}

/// The database is reopened after each step, as after a restart of the server.
#[test]
fn a_rollout_runs_in_waves_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3"], limits(2, 1));
    let mut reopen = |work: &dyn Fn(&ServerState)| {
        work(&state);
        state = open(&dir);
        advance(&state, id)
    };
    assert_eq!(reopen(&|_| ()), "oow");
    assert_eq!(reopen(&|state| boot(state, "m1")), "iow");
    assert_eq!(reopen(&|state| begin(state, "m1")), "iow");
    assert_eq!(reopen(&|state| end(state, "m1", true)), "doo");
    assert_eq!(reopen(&|state| begin(state, "m3")), "doi");
    assert_eq!(reopen(&|state| end(state, "m3", true)), "dod");
    assert_eq!(reopen(&|state| begin(state, "m2")), "did");
    assert_eq!(reopen(&|state| end(state, "m2", true)), "ddd");
    let rollout = find(&state, id);
    assert_eq!((rollout.state, rollout.record.reason.as_str()), (RolloutState::Finished, ""));
    for machine in ["m1", "m2", "m3"] {
        let ordered = wait(state.list_history(machine)).into_iter().filter(|entry| entry.kind == HistoryKind::Ordered);
        assert_eq!((ordered.count(), install_state(&state, machine).image.unwrap().as_str()), (1, "i1"), "{machine}");
    }
    assert_eq!(wait(state.list_active_rollouts()), []);
    assert!(matches!(request(&state, &["m1"], limits(1, 1)), RolloutOutcome::Done(_)), "m1 has ended");
}

#[test]
fn a_failure_stops_the_rollout_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3", "m4"], limits(2, 1));
    assert_eq!(advance(&state, id), "ooww");
    boot(&state, "m1");
    end(&state, "m1", false);
    let events = wait(state.update_rollouts());
    assert!(
        matches!(&events[0], RolloutEvent::MemberEnded { machine, state: MemberState::Failed, reason, .. } if machine == "m1" && reason == "m"),
        "{events:?}"
    );
    assert!(matches!(&events[1], RolloutEvent::StateChanged { state: RolloutState::Stopped, .. }), "{events:?}");
    assert_eq!(wait(state.update_rollouts()), [], "the same change is not reported again");
    assert_eq!(advance(&state, id), "foww", "the other machine is not affected");
    begin(&state, "m2");
    end(&state, "m2", true);
    assert_eq!(advance(&state, id), "fdww");
    assert!(find(&state, id).record.reason.starts_with("1 member has failed"));
    assert!(matches!(wait(state.change_rollout(id, RolloutChange::Resume)), RolloutOutcome::Done(_)));
    assert_eq!(advance(&state, id), "fdoo");
    assert_eq!(find(&state, id).state, RolloutState::Running);
}

#[test]
fn halt_spares_running_members_and_cancellation_withdraws_others() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3", "m4"], limits(2, 1));
    advance(&state, id);
    let change = |change| wait(state.change_rollout(id, change));
    assert!(matches!(change(RolloutChange::Halt("ann".to_owned())), RolloutOutcome::Done(_)));
    begin(&state, "m1");
    end(&state, "m1", true);
    assert_eq!((advance(&state, id).as_str(), find(&state, id).state), ("doww", RolloutState::Halted));
    assert!(matches!(change(RolloutChange::Resume), RolloutOutcome::Done(_)));
    assert_eq!(advance(&state, id), "doow");
    begin(&state, "m3");
    wait(state.update_rollouts());
    assert!(matches!(change(RolloutChange::Cancel("ann".to_owned())), RolloutOutcome::Done(_)));
    assert_eq!(letters(&state, id), "dsis");
    assert!(install_state(&state, "m2").order.is_none() && install_state(&state, "m3").order.is_some());
    assert!(matches!(change(RolloutChange::Resume), RolloutOutcome::Refused(why) if why.contains("was canceled")));
    end(&state, "m3", true);
    assert_eq!((advance(&state, id).as_str(), find(&state, id).state), ("dsds", RolloutState::Canceled));
    assert_eq!(wait(state.change_rollout(id + 1, RolloutChange::Resume)), RolloutOutcome::NotFound);
}

#[test]
fn unorderable_member_is_skipped_and_counts_as_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3", "m4"], limits(4, 3));
    wait(state.place_order("m1", "m1", "other", ReinstallOverrides::default(), None));
    assert_eq!(order(&state, id, 1), MemberOrderOutcome::NotDue, "it is the turn of the first member");
    assert!(matches!(order(&state, id, 0), MemberOrderOutcome::Skipped(why) if why.contains("with image other")));
    let other = wait(state.order_member((id, 1), "no-allocation", ReinstallOverrides::default(), None, None));
    assert!(matches!(other, MemberOrderOutcome::Skipped(why) if why.contains("is not installed")));
    assert!(!wait(state.skip_member((id, 1), "again".to_owned())));
    assert!(wait(state.skip_member((id, 2), "locked".to_owned())));
    let rollout = find(&state, id);
    assert_eq!((letters(&state, id).as_str(), rollout.state), ("sssw", RolloutState::Stopped));
    assert_eq!(rollout.members[2].record.reason, "locked");
    assert_eq!(order(&state, id, 3), MemberOrderOutcome::NotDue);
    assert!(
        matches!(request(&state, &["m4"], limits(1, 1)), RolloutOutcome::Refused(why) if why.contains("is a member of rollout"))
    );
}

/// Places an order, starts it, and fails until it is abandoned. Returns its id.
fn abandon(state: &ServerState, machine: &str) -> String {
    wait(state.place_order(machine, allocation(machine), "other", ReinstallOverrides::default(), None));
    loop {
        let open = install_state(state, machine).order.unwrap();
        if open.given_up {
            return open.id;
        }
        boot_and_register(state, machine);
        wait(state.start_order(machine, allocation(machine), &open.id, start()));
        end(state, machine, false);
    }
}

#[test]
fn only_orders_abandoned_before_the_request_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m1");
    let known = abandon(&state, "m1");
    let RolloutOutcome::Done(Rollout { id, .. }) = request(&state, &["m1", "m2"], limits(2, 9)) else { panic!() };
    install(&state, "m2");
    let replaced = wait(state.order_member((id, 0), "m1", ReinstallOverrides::default(), Some(&known), None));
    let (new, old) = match replaced {
        MemberOrderOutcome::Ordered { order, replaced: Some(old) } => (order, old),
        other => panic!("{other:?}"),
    };
    assert!(new.started && old.id == known, "the new order continues the abandoned one");
    assert!(find(&state, id).members[0].record.reason.contains("abandoned after its point of no return"));
    wait(state.update_rollouts());
    assert_eq!(letters(&state, id), "ow", "the machine has not booted yet");
    assert!(claims(&state, (id, 0)), "the machine waits at its console");
    let later = abandon(&state, "m2");
    let skipped = order(&state, id, 1);
    assert!(matches!(&skipped, MemberOrderOutcome::Skipped(why) if why.contains("separately")), "{skipped:?}");
    assert_eq!(install_state(&state, "m2").order.unwrap().id, later);
}

#[test]
fn canceled_or_replaced_order_ends_its_member() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3"], limits(3, 9));
    assert_eq!(advance(&state, id), "ooo");
    wait(state.cancel_order("m1", "m1"));
    wait(state.place_order("m2", "m2", "other", ReinstallOverrides::default(), None));
    // The machine `m3` is reinstalled again later, which replaces the outcome of the member's reinstall.
    begin(&state, "m3");
    end(&state, "m3", true);
    wait(state.place_order("m3", "m3", "later", ReinstallOverrides::default(), None));
    begin(&state, "m3");
    end(&state, "m3", true);
    assert_eq!(advance(&state, id), "ffd");
    let reasons: Vec<String> = find(&state, id).members.into_iter().map(|member| member.record.reason).collect();
    assert_eq!(reasons, ["the reinstall order was canceled", "the reinstall order was replaced by another order", ""]);
}

/// The members are stored with several statements.
#[test]
fn rollout_of_many_machines_is_created_and_canceled() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let machines: Vec<String> = (0..450).map(|number| format!("m{number}")).collect();
    let names: Vec<&str> = machines.iter().map(String::as_str).collect();
    let RolloutOutcome::Done(created) = request(&state, &names, limits(5, 1)) else { panic!() };
    assert_eq!(find(&state, created.id), created);
    let due = wait(state.find_due_member(created.id)).map(|(number, member)| (number, member.machine));
    assert_eq!(due, Some((0, "m0".to_owned())));
    let other = request(&state, &["other", "m449"], limits(1, 1));
    let is_refused = |why: &str| why.starts_with("machine m449 is a member of rollout 1, which has not ended");
    assert!(matches!(&other, RolloutOutcome::Refused(why) if is_refused(why)), "{other:?}");
    let RolloutOutcome::Done(canceled) =
        wait(state.change_rollout(created.id, RolloutChange::Cancel("ann".to_owned())))
    else {
        panic!()
    };
    let is_skipped = |member: &RolloutMember| member.state == MemberState::Skipped && member.record.reason == "ann";
    assert!(canceled.members.iter().all(is_skipped), "{:?}", canceled.member_states());
    assert_eq!((canceled.state, canceled.members.len()), (RolloutState::Canceled, 450));
    assert_eq!(wait(state.list_active_rollouts()), []);
    assert!(matches!(request(&state, &["m449"], limits(1, 1)), RolloutOutcome::Done(_)));
}

/// Earlier versions did not store the images with the rollout.
#[test]
fn images_of_an_older_rollout_are_read_from_its_members() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    create(&state, &["m1", "m2"], limits(1, 1));
    let images = || wait(state.list_rollouts())[0].record.images.clone();
    assert_eq!(images(), ["i1"]);
    let older = "UPDATE rollouts SET document = replace(document, '\"images\":[\"i1\"],', '')";
    assert_eq!(wait(state.run_durably(move |transaction| transaction.execute(older, []))), 1);
    assert_eq!(wait(state.find_rollout(1)).unwrap().record.images, [] as [&str; 0]);
    assert_eq!(images(), ["i1"]);
}

fn claims(state: &ServerState, key: (i64, usize)) -> bool {
    matches!(wait(state.claim_power_cycle(key)), LeaseClaim::Claimed(_))
}

#[test]
fn power_cycle_is_claimed_once_and_failure_cancels_order() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2"], limits(1, 2));
    assert!(!claims(&state, (id, 0)), "it is not ordered");
    advance(&state, id);
    assert!(claims(&state, (id, 0)) && !claims(&state, (id, 0)));
    assert!(wait(state.fail_member((id, 0), "no controller".to_owned())));
    assert!(!wait(state.fail_member((id, 0), "again".to_owned())));
    assert!(install_state(&state, "m1").order.is_none());
    assert_eq!(advance(&state, id), "fo");
}

#[test]
fn canceled_or_started_orders_are_not_power_cycled() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2", "m3"], limits(3, 9));
    assert_eq!(advance(&state, id), "ooo");
    wait(state.cancel_order("m1", "m1"));
    begin(&state, "m2");
    // The claims do not depend on the stored states of the members, which are outdated here.
    let claims = [0, 1, 2].map(|number| claims(&state, (id, number)));
    assert_eq!(claims, [false, false, true]);
}

#[test]
fn renamed_machine_remains_member_and_restore_halts_rollouts() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = create(&state, &["m1", "m2"], limits(1, 1));
    advance(&state, id);
    assert_eq!(wait(state.rename_machine("m1", "n1")), RenameOutcome::Done);
    assert_eq!(wait(state.update_rollouts()), []);
    assert_eq!((find(&state, id).members[0].machine.as_str(), letters(&state, id).as_str()), ("n1", "ow"));
    let (rollout, member) = wait(state.find_membership("n1")).unwrap();
    assert_eq!((rollout.id, member.state), (id, MemberState::Ordered));
    assert_eq!(wait(state.find_membership("m1")), None);
    wait(state.run_durably(crate::rollouts::halt_restored));
    let restored = find(&state, id);
    assert!(restored.state == RolloutState::Halted && restored.record.reason.contains("restored"), "{restored:?}");
}

/// Two servers that share a database order the same members at the same time.
#[test]
fn two_servers_order_each_member_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let machines: Vec<String> = (0..8).map(|number| format!("m{number}")).collect();
    let names: Vec<&str> = machines.iter().map(String::as_str).collect();
    let id = create(&state, &names, limits(5, 1));
    let servers = match test_engine::is_postgres("") {
        true => [open(&dir), open(&dir)],
        // A SQLite file belongs to one server, whose tasks share the connection.
        false => [state.clone(), state.clone()],
    };
    let ordered: usize = std::thread::scope(|scope| {
        let count = |server: &ServerState| {
            let all = (0..40).map(|round| order(server, id, round % 8));
            all.filter(|outcome| matches!(outcome, MemberOrderOutcome::Ordered { .. })).count()
        };
        let counts = servers.each_ref().map(|server| scope.spawn(move || count(server)));
        counts.into_iter().map(|count| count.join().unwrap()).sum()
    });
    assert_eq!((ordered, letters(&state, id).as_str()), (5, "ooooowww"));
    for machine in &machines {
        let entries = wait(state.list_history(machine)).into_iter().filter(|entry| entry.kind == HistoryKind::Ordered);
        assert!(entries.count() <= 1, "{machine}");
    }
}
