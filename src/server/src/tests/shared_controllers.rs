//! Management controllers that the files of two machines name.

use super::reinstall::with_images;
use super::*;
use std::net::UdpSocket;
use testing::http::{Request, ResponseBehavior, Server as Controller};

/// Writes the files of both machines, each with the address of its controller.
fn with_controllers(urls: [&str; 2]) -> TempDir {
    let dir = with_images();
    let bmc = |url: &str| format!("bmc: {{url: '{url}', username: admin, password: hunter2}}\n");
    let one = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &bmc(urls[0]));
    let two = format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\n{}", bmc(urls[1]));
    for (name, text) in [("one", one), ("two", two)] {
        std::fs::write(dir.path().join(format!("machines/{name}.yaml")), text).unwrap();
    }
    dir
}

impl Running {
    async fn switch_power(&self, machine: &str, action: &str) -> Answer {
        self.v1("POST", &format!("/v1/machine/{machine}/power"), &json!({ "action": action })).await
    }

    /// Waits until the problem of each of the two files is logged.
    async fn reports_conflict(&self, addresses: [&str; 2]) {
        for (file, other, address) in [("one", TWO, addresses[0]), ("two", ONE, addresses[1])] {
            let problem = format!(
                "machines/{file}.yaml: the management controller {address} is also in the file of machine {other}"
            );
            self.heard(&problem).await;
        }
    }
}

/// Starts a Redfish controller with one system for each of these UUIDs.
fn chassis(uuids: [&'static str; 2]) -> Controller {
    Controller::start(Vec::new(), move |request: &Request| {
        let links: Vec<_> =
            (0..2).map(|number| json!({ "@odata.id": format!("/redfish/v1/Systems/{number}") })).collect();
        match (request.method.as_str(), request.path.strip_prefix("/redfish/v1/Systems")) {
            ("GET", Some("")) => ResponseBehavior::respond(200, &json!({ "Members": links }).to_string()),
            ("GET", Some(path)) => {
                let target = format!("/redfish/v1/Systems{path}/Actions/ComputerSystem.Reset");
                let actions = json!({ "#ComputerSystem.Reset": { "target": target } });
                let uuid = uuids[path.trim_matches('/').parse::<usize>().unwrap()];
                let system = json!({ "UUID": uuid, "PowerState": "On", "Actions": actions });
                ResponseBehavior::respond(200, &system.to_string())
            }
            _ => ResponseBehavior::respond(204, ""),
        }
    })
}

/// Returns the paths of the requests that change a system.
fn changes(controller: &Controller) -> Vec<String> {
    let all = controller.requests();
    all.iter().filter(|request| request.method != "GET").map(|request| request.path.clone()).collect()
}

/// The file of machine TWO is a copy of the file of machine ONE. Machine ONE is installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipmi_controller_in_two_files_receives_no_request() {
    let controller = UdpSocket::bind("127.0.0.1:0").unwrap();
    controller.set_nonblocking(true).unwrap();
    let url = format!("ipmi://{}", controller.local_addr().unwrap());
    let server = Running::start_in(with_controllers([&url, &url])).await;
    server.reports_conflict([&url, &url]).await;
    server.installed().await;
    for (machine, other) in [(ONE, "two"), (TWO, "one")] {
        for action in ["off", "cycle", "pxe"] {
            let refused = server.switch_power(machine, action).await;
            assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("controller-shared")), "{action}");
            let words = format!("the file of machine {other} also names the management controller {url}");
            assert!(refused.text().contains(&words), "{}", refused.text());
        }
    }
    let members = json!([{ "id": ONE, "imageid": "debian-13" }]);
    let rollout = json!({ "at_most": 1, "power_cycle": true, "members": members });
    let began = std::time::Instant::now();
    let refused = loop {
        let refused = server.v1("POST", "/v1/rollouts", &rollout).await;
        // The digest of the image is computed at first.
        if refused.text().contains("also names") || began.elapsed() > PATIENCE {
            break refused;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(refused.status == 409 && refused.text().contains("also names"), "{}", refused.text());
    let freed = server.v1("DELETE", &format!("/v1/machine/{ONE}/free"), &Value::Null).await;
    assert_eq!(freed.status, 200, "{}", freed.text());
    server.heard("one: cannot power off the freed machine: one: the power state and the boot device were not").await;
    assert!(controller.recv(&mut [0; 64]).is_err(), "the controller has received a request");
}

/// Systems with these paths belong to the machines. A copied file first contains the path of the other machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redfish_system_in_two_files_receives_no_request() {
    let controller = chassis([ONE, TWO]);
    let [first, second] = [0, 1].map(|number| controller.url(&format!("redfish/v1/Systems/{number}")));
    let addresses = [first.as_str(), &format!("{first}/")];
    let server = Running::start_in(with_controllers(addresses)).await;
    server.reports_conflict(addresses).await;
    for machine in [ONE, TWO] {
        let refused = server.switch_power(machine, "cycle").await;
        assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("controller-shared")));
    }
    assert_eq!(controller.requests().len(), 0);
    // The address in the file of machine ONE is corrected, but to the address of the other system.
    let text = server.file("machines/one.yaml").replace(&first, &second);
    server.write("machines/one.yaml", &text);
    server.heard("all files are valid again").await;
    for machine in [ONE, TWO] {
        let refused = server.switch_power(machine, "cycle").await;
        assert!(refused.status == 502 && refused.text().contains("belongs to machine"), "{}", refused.text());
    }
    assert_eq!(changes(&controller), [] as [String; 0]);
}

/// The systems of a chassis are selected by their UUIDs, or by their paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systems_of_one_redfish_controller_are_switched_individually() {
    for with_path in [false, true] {
        let controller = chassis([TWO, ONE]);
        let root = controller.url("").trim_end_matches('/').to_owned();
        let second = if with_path { root.clone() + "/redfish/v1/Systems/0" } else { root.clone() };
        let server = Running::start_in(with_controllers([&root, &second])).await;
        for machine in [ONE, TWO] {
            let answer = server.switch_power(machine, "cycle").await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let reset = |number: u32| format!("/redfish/v1/Systems/{number}/Actions/ComputerSystem.Reset");
        assert_eq!(changes(&controller), [reset(1), reset(0)]);
        assert!(!server.heard.text().contains("is also in the file of machine"), "{}", server.heard.text());
    }
}
