//! Conformance test against a real Ironic. `scripts/ironic` installs Ironic, and runs this test.
//!
//! The machines are simulated. The tests with virtual machines are in `scripts/ironic.d`.

mod deploy_scenarios;
mod inspection_raid_and_rescue_scenarios;
mod ironic_process;

use deploy_scenarios::*;
use inspection_raid_and_rescue_scenarios::*;
use ironic_process::Ironic;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

type Scenario = fn(&mut Ironic) -> String;

const SCENARIOS: [(&str, Scenario); 19] = [
    ("cleaning and a deploy, without a reboot in between", cleaning),
    ("manual cleaning, with a disk that is preserved", manual_cleaning),
    ("deploy by a template of two steps", deploy),
    ("deploy.install, everything in one step", everything_in_one_step),
    ("a step fails", failing_step),
    ("a layout that does not fit", refused_layout),
    ("an unknown step", unknown_step),
    ("an argument that was not declared", undeclared_argument),
    ("clients with wrong tokens, and a client that supports only TLS 1.2", wrong_token),
    ("a deploy on arrays of raid.apply_configuration", deploy_on_arrays),
    (
        "a deploy onto arrays that the proposed step deploy.create_configuration creates",
        deploy_on_arrays_of_the_proposal,
    ),
    ("arrays created by manual cleaning", arrays_by_cleaning),
    ("direct, with a raw image and a config drive", direct),
    ("direct, with a partition image", direct_partition),
    ("rescue and unrescue", rescue),
    ("service: a file for a machine that is in use", service),
    ("inspection", inspection),
    ("a deploy is aborted", abort),
    ("the conductor is killed in the middle of a step", conductor_away),
];

#[test]
#[ignore = "needs a real Ironic: scripts/ironic"]
fn judge_a_real_ironic_takes_the_agent() {
    let mut ironic = Ironic::start();
    let wanted = std::env::var("DROPHAMMER_SCENARIO").unwrap_or_default();
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let began = Instant::now();
        let run = AssertUnwindSafe(|| scenario(&mut ironic));
        match catch_unwind(run) {
            Ok(history) => println!("JUDGED {name}: {history}; {:.0} s", began.elapsed().as_secs_f64()),
            Err(why) => {
                let said = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied());
                println!("FAILED {name}: {}", said.unwrap_or_default());
                failed.push(*name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}; see {}/ironic.log", ironic.directory.display());
}
