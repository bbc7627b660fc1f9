//! Tests of the agent against a simulated Ironic: its messages, and their times.

use super::step_runner::tests::{SimulatedMachine, machine};
use super::*;
use model::agent_kernel_arguments::ControlPlaneSource;
use std::sync::Mutex;
use testing::http::{Request, ResponseBehavior, Server};

fn conductor(cmdline: &str) -> ConductorSettings {
    match AgentSettings::from_cmdline(cmdline).unwrap().control {
        ControlPlaneSource::Conductor(conductor) => *conductor,
        other => panic!("{other:?}"),
    }
}

const FOUND: &str = r#"{"node": {"uuid": "n-1"}, "config": {"heartbeat_timeout": 300, "agent_token": "TOKEN"}}"#;

/// Returns a simulated Ironic that orders `standby.power_off` at the first heartbeat.
fn powers_off(token: &'static str) -> impl Fn(&Request) -> ResponseBehavior + Send + Sync {
    move |request| {
        if request.path.starts_with("/v1/lookup") {
            return ResponseBehavior::respond(200, &FOUND.replace("TOKEN", token));
        }
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        let (url, token) = (body["callback_url"].as_str().unwrap(), body["agent_token"].as_str().unwrap());
        let url = format!("{url}/v1/commands/?wait=true&agent_token={token}");
        thread::spawn(move || {
            let client = linux::http::client_builder(None).danger_accept_invalid_certs(true).build().unwrap();
            client.post(url).body(r#"{"name": "standby.power_off", "params": {}}"#).send().unwrap();
        });
        ResponseBehavior::respond(202, "")
    }
}

fn serve(server: &Server, directory: &Path) -> Result<IronicEnding> {
    let url = server.url("");
    let cmdline = format!("ipa-api-url={url} ipa-advertise-host=127.0.0.1 ipa-listen-port=0 ipa-lookup-timeout=60");
    let (conductor, inventory) = (conductor(&cmdline), machine("sata-1"));
    let agent = IronicAgent { conductor: &conductor, inventory: &inventory, directory, gap: Duration::from_millis(50) };
    agent.serve_conductor(Arc::new(SimulatedMachine::new(inventory.clone())), &[])
}

#[test]
fn agent_looks_up_sends_heartbeats_and_powers_off() {
    let (server, boot) = (Server::start(Vec::new(), powers_off("t-1")), tempfile::tempdir().unwrap());
    assert_eq!(serve(&server, boot.path()).unwrap(), IronicEnding::PowerOff);
    let paths: Vec<String> =
        server.requests().iter().map(|request| request.path.split('?').next().unwrap().to_owned()).collect();
    assert_eq!(paths[..2], ["/v1/lookup", "/v1/heartbeat/n-1"]);

    // The agent was restarted in this boot. Ironic has already issued the token, so the stored token is used.
    let server = Server::start(Vec::new(), powers_off("******"));
    assert_eq!(serve(&server, boot.path()).unwrap(), IronicEnding::PowerOff);
    let again = serve(&server, tempfile::tempdir().unwrap().path()).unwrap_err();
    assert!(again.is_refusal() && again.to_string().contains("has already issued the token"), "{again}");
}

/// The conductor forgets the agent, which then gets another token by a new lookup.
#[test]
fn rejected_token_causes_another_lookup() {
    let lookups = Mutex::new(0);
    let second = powers_off("t-2");
    let server = Server::start(Vec::new(), move |request: &Request| {
        let mut lookups = lookups.lock().unwrap();
        *lookups += u32::from(request.path.starts_with("/v1/lookup"));
        match *lookups {
            1 if request.path.starts_with("/v1/lookup") => {
                ResponseBehavior::respond(200, &FOUND.replace("TOKEN", "t-1"))
            }
            1 => ResponseBehavior::respond(
                400,
                r#"{"error_message": "{\"faultstring\": \"Invalid or missing agent token received.\"}"}"#,
            ),
            2 => ResponseBehavior::respond(404, ""),
            _ => second(request),
        }
    });
    assert_eq!(serve(&server, tempfile::tempdir().unwrap().path()).unwrap(), IronicEnding::PowerOff);
}

/// A busy conductor accepts the first heartbeats after the end of a command, but reads the result only at a later one.
#[test]
fn several_heartbeats_follow_the_end_of_a_command() {
    let beats = Mutex::new(0);
    let order = |request: &Request, name: &'static str| {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        let (url, token) = (body["callback_url"].as_str().unwrap(), body["agent_token"].as_str().unwrap());
        let url = format!("{url}/v1/commands/?wait=true&agent_token={token}");
        thread::spawn(move || {
            let client = linux::http::client_builder(None).danger_accept_invalid_certs(true).build().unwrap();
            client.post(url).body(format!("{{\"name\": \"{name}\", \"params\": {{}}}}")).send().unwrap();
        });
    };
    let server = Server::start(Vec::new(), move |request: &Request| {
        if request.path.starts_with("/v1/lookup") {
            return ResponseBehavior::respond(200, &FOUND.replace("TOKEN", "t-1"));
        }
        let mut beats = beats.lock().unwrap();
        *beats += 1;
        match *beats {
            1 => order(request, "image.install_bootloader"),
            4 => order(request, "standby.power_off"),
            _ => {}
        }
        ResponseBehavior::respond(202, "")
    });
    assert_eq!(serve(&server, tempfile::tempdir().unwrap().path()).unwrap(), IronicEnding::PowerOff);
}

#[test]
fn source_address_follows_the_route_to_ironic() {
    assert_eq!(source_address_for(&("127.0.0.1".to_owned(), 6385)).unwrap(), "127.0.0.1".parse::<IpAddr>().unwrap());
    assert!(source_address_for(&("no-such-host.invalid".to_owned(), 6385)).is_err());
}
