//! Tests the next action of a run, for every relevant combination of phase, step and state of the machine.

use super::*;
use model::deploy_steps::BootDevice;
use model::deploy_steps::OutOfBandStep::{PowerOff, PowerOn, Reboot, ResetBios};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_secs(24 * 3600);

fn apply() -> OutOfBandStep {
    let setting = |name: &str, value: Value| BiosSetting { name: name.to_owned(), value };
    OutOfBandStep::ApplyBios { settings: vec![setting("Vmx", json!("On")), setting("Cores", json!(4))] }
}

fn disk() -> OutOfBandStep {
    OutOfBandStep::SetBootDevice { device: BootDevice::Disk, persistent: true }
}

fn run(step: OutOfBandStep, phase: RunPhase) -> OutOfBandRun {
    OutOfBandRun {
        machine: "m".to_owned(),
        allocation: "a".to_owned(),
        order: "o".to_owned(),
        steps: vec![step],
        completed: 0,
        phase,
        since: String::new(),
        restarted: String::new(),
        restarts: 0,
        restart_sent: false,
        failures: 0,
        message: String::new(),
    }
}

/// Returns the state of a system with this power state, and these current and pending values of the attribute `Vmx`.
fn system(power: &str, current: &str, pending: &str) -> SystemState {
    let values = |vmx: &str| json!({"Vmx": vmx, "Cores": 4, "Other": true});
    SystemState {
        power: Some(power.to_owned()),
        boot_targets: Vec::new(),
        bios: Some(BiosState::with_values(values(current), values(pending), json!([]))),
    }
}

/// Returns the observation of a machine that runs the ramdisk.
fn seen(system: &SystemState) -> RunObservation<'_> {
    RunObservation { system, in_ramdisk: true, booted: None, phase_age: SOON, is_shared: false }
}

fn word(action: &RunAction) -> &'static str {
    match action {
        RunAction::Wait => "wait",
        RunAction::Hold => "hold",
        RunAction::Change => "change",
        RunAction::SwitchOff => "switch off",
        RunAction::Restart => "restart",
        RunAction::Complete => "complete",
        RunAction::Finish => "finish",
        RunAction::Fail(_) => "fail",
    }
}

#[test]
fn step_starts_with_its_change_or_completes_at_once() {
    for (step, power, current, pending, expected) in [
        (apply(), "On", "Off", "Off", "change"),
        (apply(), "On", "On", "On", "complete"),
        // If only the current value is the requested one, a restart would replace this value. If only the pending value
        // is the requested one, a restart is needed to apply it.
        (apply(), "On", "On", "Off", "change"),
        (apply(), "On", "Off", "On", "change"),
        (apply(), "Off", "Off", "Off", "change"),
        (ResetBios, "On", "On", "On", "change"),
        (disk(), "On", "On", "On", "change"),
        (PowerOff, "On", "On", "On", "switch off"),
        (PowerOff, "Off", "On", "On", "complete"),
        (PowerOn, "On", "On", "On", "complete"),
        (PowerOn, "Off", "On", "On", "restart"),
        (Reboot, "On", "On", "On", "restart"),
        (Reboot, "Off", "On", "On", "restart"),
    ] {
        let system = system(power, current, pending);
        let action = decide_action(&run(step.clone(), RunPhase::Ready), &seen(&system));
        assert_eq!(word(&action), expected, "{step:?} {power} {current} {pending}");
    }
    let none = SystemState { bios: None, ..system("On", "On", "On") };
    assert_eq!(word(&decide_action(&run(apply(), RunPhase::Ready), &seen(&none))), "fail");
    let finished = OutOfBandRun { completed: 1, ..run(apply(), RunPhase::Ready) };
    assert_eq!(decide_action(&finished, &seen(&none)), RunAction::Finish);
}

/// The server may have been stopped at any time. Values that the service reports before the restart therefore prove
/// nothing.
#[test]
fn after_a_change_only_a_boot_completes_a_step() {
    let applied = system("On", "On", "On");
    let unchanged = system("On", "Off", "On");
    for (step, phase, system, booted, expected) in [
        (apply(), RunPhase::Changing, &applied, None, "change"),
        (apply(), RunPhase::Changing, &applied, Some(SOON), "change"),
        (ResetBios, RunPhase::Changing, &applied, None, "change"),
        (apply(), RunPhase::Restarting, &applied, None, "restart"),
        (apply(), RunPhase::Restarting, &applied, Some(SOON), "complete"),
        (apply(), RunPhase::Restarting, &unchanged, Some(SOON), "wait"),
        (apply(), RunPhase::Booting, &applied, None, "wait"),
        (apply(), RunPhase::Booting, &applied, Some(SOON), "complete"),
        (apply(), RunPhase::Booting, &unchanged, Some(SOON), "wait"),
        (apply(), RunPhase::Booting, &unchanged, Some(LATE), "fail"),
        (ResetBios, RunPhase::Booting, &unchanged, None, "wait"),
        (ResetBios, RunPhase::Booting, &unchanged, Some(SOON), "complete"),
        (Reboot, RunPhase::Booting, &unchanged, None, "wait"),
        (Reboot, RunPhase::Booting, &unchanged, Some(LATE), "complete"),
        (apply(), RunPhase::Done, &applied, Some(SOON), "wait"),
        (apply(), RunPhase::Failed, &applied, Some(SOON), "wait"),
    ] {
        let state = RunObservation { booted, ..seen(system) };
        assert_eq!(word(&decide_action(&run(step.clone(), phase), &state)), expected, "{step:?} {phase:?} {booted:?}");
    }
    let state = RunObservation { booted: Some(LATE), ..seen(&unchanged) };
    let RunAction::Fail(why) = decide_action(&run(apply(), RunPhase::Booting), &state) else { panic!() };
    assert!(why.contains("Vmx is \"Off\", not \"On\"; correct the template") && !why.contains("Cores"), "{why}");
}

/// The requests of another server may have been sent even if no response is recorded.
#[test]
fn unconfirmed_restart_or_reset_is_not_repeated() {
    let (on, off) = (system("On", "Off", "On"), system("Off", "Off", "On"));
    let unchanged = system("On", "Off", "Off");
    for (step, phase, restart_sent, system, booted, age, expected) in [
        (Reboot, RunPhase::Restarting, true, &on, None, SOON, "hold"),
        (Reboot, RunPhase::Restarting, true, &on, None, LATE, "fail"),
        (Reboot, RunPhase::Restarting, true, &on, Some(SOON), SOON, "complete"),
        (Reboot, RunPhase::Restarting, false, &on, None, SOON, "restart"),
        // Since the machine is still off, the unconfirmed request did not switch it on, and can be repeated.
        (PowerOn, RunPhase::Restarting, true, &off, None, SOON, "restart"),
        (apply(), RunPhase::Restarting, true, &on, Some(SOON), SOON, "wait"),
        (apply(), RunPhase::Changing, false, &on, None, SOON, "restart"),
        (apply(), RunPhase::Changing, false, &unchanged, None, SOON, "change"),
        (ResetBios, RunPhase::Changing, false, &on, None, SOON, "fail"),
        (PowerOff, RunPhase::Ready, false, &on, None, SOON, "switch off"),
        (disk(), RunPhase::Ready, false, &on, None, SOON, "change"),
    ] {
        let run = OutOfBandRun { restart_sent, ..run(step.clone(), phase) };
        let state = RunObservation { booted, phase_age: age, is_shared: true, ..seen(system) };
        assert_eq!(word(&decide_action(&run, &state)), expected, "{step:?} {phase:?} {restart_sent} {booted:?}");
    }
}

#[test]
fn nothing_is_changed_while_another_system_may_run() {
    for phase in [RunPhase::Ready, RunPhase::Changing, RunPhase::Restarting] {
        for step in [apply(), ResetBios, PowerOff, Reboot] {
            for power in ["On", "PoweringOn", "Off"] {
                if (&step, power, phase) == (&PowerOff, "Off", RunPhase::Ready) {
                    continue;
                }
                let system = system(power, "Off", "Off");
                let away = RunObservation { in_ramdisk: false, ..seen(&system) };
                let action = decide_action(&run(step.clone(), phase), &away);
                assert_eq!(action == RunAction::Wait, power != "Off", "{step:?} {phase:?} {power}: {action:?}");
            }
        }
    }
    let system = system("On", "Off", "Off");
    let away = RunObservation { in_ramdisk: false, phase_age: LATE, ..seen(&system) };
    let RunAction::Fail(why) = decide_action(&run(apply(), RunPhase::Ready), &away) else { panic!() };
    assert!(
        why.contains(
            "has not booted the ramdisk, and Redfish steps do not start while another system may be running; power-cycle the machine"
        ),
        "{why}"
    );
}

#[test]
fn restarts_and_waits_are_limited() {
    let system = system("On", "Off", "Off");
    let restarted = |restarts| OutOfBandRun { restarts, ..run(Reboot, RunPhase::Restarting) };
    assert_eq!(decide_action(&restarted(2), &seen(&system)), RunAction::Restart);
    let RunAction::Fail(why) = decide_action(&restarted(3), &seen(&system)) else { panic!() };
    assert!(why.contains("restarted 3 times without a new boot"), "{why}");
    let aged = |phase_age| RunObservation { phase_age, ..seen(&system) };
    for (phase, age, expected) in [
        (RunPhase::Booting, PHASE_TIMEOUT + SOON, "wait"),
        (RunPhase::Booting, BOOT_TIMEOUT + SOON, "fail"),
        (RunPhase::Ready, PHASE_TIMEOUT + SOON, "restart"),
    ] {
        assert_eq!(word(&decide_action(&run(Reboot, phase), &aged(age))), expected, "{phase:?}");
    }
}

#[test]
fn changes_without_a_restart_are_read_back() {
    for (step, power, age, expected) in [
        // The step is complete, because the request for the boot device has already verified the result.
        (disk(), "On", SOON, "complete"),
        (PowerOff, "Off", SOON, "complete"),
        (PowerOff, "On", SOON, "wait"),
        (PowerOff, "On", LATE, "fail"),
    ] {
        let system = system(power, "Off", "Off");
        let state = RunObservation { phase_age: age, ..seen(&system) };
        let action = decide_action(&run(step.clone(), RunPhase::Settling), &state);
        assert_eq!(word(&action), expected, "{step:?} {power}");
    }
}
