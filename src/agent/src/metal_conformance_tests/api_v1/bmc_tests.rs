//! Tests of metal-api's BMC record. A registration replaces this record, so the agent first reads the record and then
//! sends it back.

use super::*;

/// Tests that the record is unchanged after a registration, and that the commands for metal-bmc contain the credentials
/// of the BMC.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_bmc() {
    let first = First::start();
    let known = first.rack.log()["ipmi"].clone();
    assert_eq!(known["password"], json!("bmc-password-1"));
    let (control, _) = first.boots();
    control.register_machine(&machine()).unwrap();
    assert_eq!(first.rack.log()["ipmi"], known);
    first.rack.steer("refuse", &json!({"call": "GET ipmi", "status": 503, "message": "is being started"}));
    control.register_machine(&machine()).unwrap();
    assert_eq!(first.rack.log()["ipmi"], known);
    // Even a registration that metal-api refuses replaces the record.
    let mut alone = machine();
    alone.nics[1].neighbors.clear();
    control.register_machine(&alone).unwrap_err();
    assert_eq!(first.rack.log()["ipmi"], known);
    first.rack.steer("allocate", &allocation(ONE, "default"));
    assert!(control.wait_for_allocation(PATIENCE).unwrap());
    control.report_result(&InstallResult { allocation: ONE.into(), ..ended() }).unwrap();
    assert_eq!(first.rack.log()["commands"], json!([["DISK", known]]), "metal-bmc has the machine boot from its disk");
    first.calls();
}

/// Tests that the machine does not register if the record cannot be read, and that a machine unknown to the control
/// plane registers without a record.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_bmc_that_cannot_be_read() {
    let first = First::start();
    let known = first.rack.log()["ipmi"].clone();
    let (control, _) = first.boots();
    first.rack.steer("set", &json!({"hmac": "another-key"}));
    let error = control.register_machine(&machine()).unwrap_err().to_string();
    println!("{error}");
    assert!(
        error.starts_with("not registered: a registration would erase the control plane's record of the BMC"),
        "{error}"
    );
    assert!(error.contains("rejects the hmac of pixie's configuration"), "{error}");
    assert!(!first.calls().contains(&"Register".to_owned()));
    assert_eq!(first.rack.log()["ipmi"], known);
    first.rack.steer("set", &json!({"hmac": "view-key", "ipmi": null}));
    control.register_machine(&machine()).unwrap();
    assert_eq!(first.calls()[first.calls().len() - 4..], ["GET ipmi", "GET machine", "SuperUserPassword", "Register"]);
    // A record without credentials, as created by metal-bmc, remains without credentials. metal-api then sends the
    // credentials of its superuser.
    let mut created = known.clone();
    for name in ["mac", "user", "password", "interface"] {
        created[name] = json!("");
    }
    first.rack.steer("set", &json!({"ipmi": created}));
    control.register_machine(&machine()).unwrap();
    let ipmi = first.rack.log()["ipmi"].clone();
    assert_eq!((&ipmi["user"], &ipmi["password"], &ipmi["address"]), (&json!(""), &json!(""), &known["address"]));
    first.calls();
}
