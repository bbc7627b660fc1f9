//! Migration of a machine: the responses to the agents of both machines, the files after the migration, and restarts of
//! the server in between.

mod early_ends;
mod refusals;
mod unlisted_nic;

use super::reinstall::with_images;
use super::*;

const MARKED: &str = "a1";

pub(super) fn certificate(of: &str) -> String {
    format!("X-Ganeti-Signature: s/h\n{}", linux::pem_encoding::encode_pem("CERTIFICATE", of.as_bytes()))
}

pub(super) fn fingerprint(of: &str) -> String {
    linux::pem_encoding::certificate_fingerprint(&certificate(of)).unwrap()
}

pub(super) fn marker(machine: &str) -> Value {
    json!({ "machine": machine, "allocation": MARKED, "image": "debian-12", "layout": "default",
            "disks": [{ "device": "/dev/sda", "serial": "S1", "size_bytes": 1 }] })
}

pub(super) fn success(machine: &str) -> Value {
    json!({ "success": true, "message": "m", "allocationuuid": MARKED, "marker": marker(machine) })
}

pub(super) fn failure(untouched: bool) -> Value {
    json!({ "success": false, "message": "why", "allocationuuid": MARKED, "untouched": untouched, "step": "storage.find" })
}

pub(super) fn disks() -> Value {
    json!([{ "device": "/dev/sda", "serial": "N1", "size_bytes": 1_000_000_000u64 }])
}

/// Returns an inventory with one disk, with which both machines register.
pub(super) fn with_one_disk() -> model::inventory::Inventory {
    let disk = json!({ "name": "nvme0n1", "device": "/dev/nvme0n1", "serial": "N1", "size_bytes": 1_000_000_000u64,
        "sector_bytes": 512 });
    model::inventory::Inventory { disks: vec![serde_json::from_value(disk).unwrap()], ..Default::default() }
}

impl Running {
    /// Boots the ramdisk and registers, with one NVMe disk.
    pub(super) async fn ramdisk(&self, id: &str) -> String {
        let script = self.boot(&format!("uuid={id}")).await.text();
        let token = token_of(&script);
        let mut body = registration(id);
        body["inventory"] = json!(with_one_disk());
        let answer = self.call(&token, "POST", "/v1/machine/register", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        token
    }

    pub(super) async fn about_move(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call(&self.operator(), method, &format!("/v1/machine/{ONE}/move{path}"), &body).await
    }

    pub(super) async fn state(&self) -> String {
        let answer = self.about_move("GET", "", Value::Null).await;
        answer.json()["state"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
    }

    /// Starts a server on which machine one is installed, machine two has registered, and the migration is ordered.
    pub(super) async fn move_ordered() -> (Running, String) {
        let server = Running::start_in(with_images()).await;
        let order = server.order_move().await;
        (server, order)
    }

    /// Installs machine one, registers machine two, and orders the migration. Returns the id of the order.
    pub(super) async fn order_move(&self) -> String {
        let token = self.token(ONE).await;
        self.allocated(ONE, &token).await;
        assert_eq!(self.begins_first(ONE, &token, MARKED).await, 200);
        assert_eq!(self.report_to(ONE, &token, success(ONE)).await.status, 200);
        self.ramdisk(TWO).await;
        let answer = self.about_move("POST", "", json!({ "to": TWO })).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn report_to(&self, id: &str, token: &str, body: Value) -> Answer {
        self.call(token, "POST", &format!("/v1/machine/{id}/report"), &body).await
    }

    pub(super) async fn announce_waiting(&self, id: &str, token: &str, order: &str) -> Answer {
        let mut body = json!({ "order": order, "certificate": certificate(id) });
        match id == ONE {
            true => body["carried"] = json!({ "marker": marker(ONE), "filesystems": [] }),
            false => body["port"] = json!(4711),
        }
        self.call(token, "POST", &format!("/v1/machine/{id}/moving"), &body).await
    }

    /// Approves the certificates of these machines, as an operator does after comparing their fingerprints on the
    /// consoles.
    pub(super) async fn approves(&self, machines: &[&str]) -> Answer {
        let fingerprints: Vec<String> = machines.iter().map(|id| fingerprint(id)).collect();
        self.about_move("POST", "/approve", json!({ "fingerprints": fingerprints })).await
    }

    /// Approves both certificates. Machine one then sends two requests. The response to the first request contains
    /// the other machine's certificate, and the second request shows that machine one has received it.
    pub(super) async fn exchange_certificates(&self, one: &str) {
        let answer = self.approves(&[ONE, TWO]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        for _ in 0..2 {
            self.read_allocation(ONE, one).await;
        }
    }

    pub(super) async fn begins_to_receive(&self, token: &str) -> Answer {
        let body = json!({ "allocationuuid": MARKED, "order": "", "disks": disks() });
        self.call(token, "POST", &format!("/v1/machine/{TWO}/point-of-no-return"), &body).await
    }

    pub(super) async fn read_allocation(&self, id: &str, token: &str) -> Value {
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["allocation"].clone()
    }

    /// Returns the state of the machine's migration, as the machine receives it.
    async fn word(&self, id: &str, token: &str, order: &str) -> String {
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await.json();
        assert_eq!(answer["move"]["order"], json!(order), "{answer}");
        answer["move"]["state"].as_str().unwrap().to_owned()
    }

    /// Starts a migration whose machines are in their ramdisks, and whose target has passed the point of no return.
    async fn move_begun() -> (Running, String, String, String) {
        let (server, order) = Running::move_ordered().await;
        let [one, two] = server.begin_move(&order).await;
        (server, order, one, two)
    }

    /// Boots both machines into their ramdisks, and starts the copy. Returns the tokens of both boots.
    pub(super) async fn begin_move(&self, order: &str) -> [String; 2] {
        let [one, two] = [self.ramdisk(ONE).await, self.ramdisk(TWO).await];
        for (id, token) in [(ONE, &one), (TWO, &two)] {
            let answer = self.announce_waiting(id, token, order).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        self.exchange_certificates(&one).await;
        assert_eq!(self.begins_to_receive(&two).await.status, 200);
        [one, two]
    }

    pub(super) async fn is_disk(&self, id: &str) -> bool {
        self.boot(&format!("uuid={id}")).await.text().contains("sanboot")
    }

    pub(super) async fn files_say(&self, with: &str, without: &str) {
        let says = |name: &str| self.file(&format!("machines/{name}.yaml")).contains("allocation:");
        self.wait_until(|| says(with) && !says(without), "the allocation is in the other file").await;
    }
}

/// The server is restarted after each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_completes_across_server_restarts() {
    let (server, order) = Running::move_ordered().await;
    let server = server.restarted().await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    server.heard("this machine's system will be migrated to another machine (ordered)").await;
    let given = server.allocated(ONE, &one).await.allocation.unwrap();
    let moving = given.moving.clone().unwrap();
    assert_eq!(
        (moving.order.as_str(), moving.part, moving.started, moving.peer),
        (order.as_str(), model::machine_migration::MigrationSide::Source, false, None)
    );
    assert!(given.succeeded && !given.reinstall && given.image.url.is_empty() && given.order.is_none());
    // The server does not permit any agent to erase disks.
    for id in [ONE, TWO] {
        let body = json!({ "allocationuuid": MARKED, "order": "", "disks": disks() });
        let token = if id == ONE { &one } else { &two };
        let answer = server.call(token, "POST", &format!("/v1/machine/{id}/point-of-no-return"), &body).await;
        assert_eq!(answer.status, 409, "{id}: {}", answer.text());
    }
    let wait = server.call(&two, "GET", &format!("/v1/machine/{TWO}/wait?seconds=0"), &Value::Null).await;
    assert_eq!(wait.status, 204, "machine one does not wait yet");
    assert_eq!(server.read_allocation(TWO, &two).await, Value::Null);
    assert_eq!(server.announce_waiting(TWO, &two, &order).await.status, 409);
    assert_eq!(server.announce_waiting(ONE, &one, "another").await.status, 409);

    assert_eq!(server.announce_waiting(ONE, &one, &order).await.status, 200);
    let server = server.restarted().await;
    let given = server.allocated(TWO, &two).await.allocation.unwrap();
    let moving = given.moving.clone().unwrap();
    assert_eq!(
        (moving.part, moving.started, moving.disks[0].serial.as_str()),
        (model::machine_migration::MigrationSide::Target, false, "N1")
    );
    assert_eq!(moving.peer.unwrap().certificate, certificate(ONE));
    assert_eq!(moving.carried.unwrap().marker.machine, ONE);
    assert!(!given.succeeded && !given.reinstall && given.order.is_none() && given.installed.is_none());
    assert_eq!(
        (given.id.as_str(), given.hostname.as_str(), &given.former_machines[..]),
        (MARKED, "h", &[ONE.to_owned()][..])
    );
    assert_eq!(given.parse_layout().unwrap().layout, model::layout::read_yaml(LAYOUT).unwrap().layout);
    assert_eq!(server.begins_to_receive(&two).await.status, 409, "machine two does not wait");
    assert_eq!(server.announce_waiting(TWO, &two, &order).await.status, 200);
    assert_eq!(server.state().await, "planned");
    assert_eq!(server.read_allocation(ONE, &one).await["moving"]["peer"], Value::Null, "two is not approved");
    assert_eq!(server.approves(&[ONE, TWO]).await.status, 200);
    let peer = server.read_allocation(ONE, &one).await["moving"]["peer"].clone();
    assert_eq!((&peer["address"], &peer["certificate"]), (&json!("127.0.0.1:4711"), &json!(certificate(TWO))));

    let server = server.restarted().await;
    // The source has not fetched the certificate of the target. It might reject this certificate, or might not run at
    // all.
    for _ in 0..2 {
        let answer = server.begins_to_receive(&two).await;
        assert!(answer.status == 503 && answer.text().contains("has not fetched"), "{}", answer.text());
        server.read_allocation(ONE, &one).await;
    }
    for _ in 0..2 {
        assert_eq!(server.begins_to_receive(&two).await.status, 200);
    }
    assert_eq!(server.read_allocation(ONE, &one).await["moving"]["begun"], json!(true));
    assert_eq!(server.read_allocation(TWO, &two).await["begun_on"][0]["serial"], json!("N1"));
    let server = server.restarted().await;
    for id in [ONE, TWO] {
        assert!(!server.is_disk(id).await, "{id}");
    }
    // Both machines have booted again, so they must report again that they wait for the migration.
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 409, "this boot has not started");
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting(id, token, &order).await.status, 200);
    }
    assert_eq!(server.begins_to_receive(&two).await.status, 200);
    for (words, shown) in [("sda2 cannot be read", "sda2 cannot be read"), ("", "")] {
        let carried = json!({ "marker": marker(ONE), "filesystems": [] });
        let body = json!({ "order": order, "certificate": certificate(ONE), "carried": carried, "words": words });
        let answer = server.call(&one, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let migration = server.about_move("GET", "", Value::Null).await.json();
        assert_eq!(
            (&migration["from_says"], &migration["from_stands"], &migration["state"]),
            (&json!(shown), &json!(true), &json!("copying"))
        );
    }
    assert_eq!(server.report_to(ONE, &one, success(ONE)).await.status, 409, "one must not boot");
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 200);
    server.files_say("two", "one").await;
    assert!(
        server.file("machines/two.yaml").contains("  networks: [{asn: 42}]\n"),
        "{}",
        server.file("machines/two.yaml")
    );
    let server = server.restarted().await;
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 200, "its answer was lost");
    assert_eq!(server.state().await, "booting");
    assert_eq!(server.read_allocation(ONE, &one).await, Value::Null);
    assert_eq!(server.word(ONE, &one, &order).await, "booting");
    assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
    let event = json!({ "event": "Phoned Home", "message": "" });
    // `is_disk` has requested another boot of machine two. This new boot has not registered, so the token of the
    // previous boot is still valid.
    assert_eq!(server.call(&two, "POST", &format!("/v1/machine/{TWO}/event"), &event).await.status, 200);
    assert_eq!(server.state().await, "done");
    let one = server.ramdisk(ONE).await;
    assert_eq!(server.word(ONE, &one, &order).await, "done");
    let server = server.restarted().await;
    assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
    assert_eq!(server.about_move("POST", "/finish", Value::Null).await.status, 200);
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.status, 404);
    // Machine one never receives its old allocation again, but may receive another one.
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", MARKED, ""));
    server.heard("one.yaml:6:7: allocation a1 was migrated to another machine").await;
    assert!(!server.is_disk(ONE).await);
    let one = server.ramdisk(ONE).await;
    assert_eq!(server.read_allocation(ONE, &one).await, Value::Null);
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a9", ""));
    server.until_given(ONE, &one, "a9").await;
}

impl Running {
    async fn until_given(&self, id: &str, token: &str, allocation: &str) {
        for _ in 0..500 {
            if self.read_allocation(id, token).await["allocationuuid"] == allocation {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("allocation {allocation} is never handed out\n{}", self.heard.text());
    }
}

/// The restored database is older than the migration, and does not contain it. The operator follows
/// docs/after-restore.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_records_a_migration_missing_from_the_database() {
    let (server, _) = Running::move_ordered().await;
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.status, 200);
    server.write("machines/one.yaml", &format!("id: {ONE}\nname: one\nmacs: ['52:54:00:00:00:01']\nsize: c1\n"));
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", MARKED, ""));
    server.heard(&format!("`drophammer machine rename {ONE} {TWO}`")).await;
    assert!(!server.is_disk(TWO).await, "its file does not apply yet");
    let path = format!("/v1/machine/{ONE}/rename");
    let answer = server.call(&server.operator(), "POST", &path, &json!({ "id": TWO })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for turn in 0.. {
        let boots = [server.is_disk(ONE).await, server.is_disk(TWO).await];
        if boots == [false, true] {
            break;
        }
        assert!(turn < 250, "{boots:?}\n{}", server.heard.text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let server = server.restarted().await;
    assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
    // The old machine accepts another allocation.
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a9", ""));
    let one = server.ramdisk(ONE).await;
    server.until_given(ONE, &one, "a9").await;
}

/// A file that is missing for a moment does not end the migration or the copy, because the database records the
/// migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_machine_file_does_not_end_the_migration() {
    let (server, order, one, two) = Running::move_begun().await;
    let file = server.file("machines/one.yaml");
    std::fs::remove_file(server.dir.path().join("machines/one.yaml")).unwrap();
    while server.read_allocation(TWO, &two).await != Value::Null
        || server.read_allocation(ONE, &one).await != Value::Null
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.word(id, token, &order).await, "copying", "{id}");
    }
    let server = server.restarted().await;
    assert_eq!(server.read_allocation(ONE, &one).await, Value::Null);
    assert_eq!(server.word(ONE, &one, &order).await, "copying");
    server.write("machines/one.yaml", &file);
    while server.read_allocation(TWO, &two).await == Value::Null
        || server.read_allocation(ONE, &one).await == Value::Null
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.read_allocation(ONE, &one).await["moving"]["order"], json!(order));
    // Other machines do not receive data about the migration.
    let answer =
        server.call(&server.token(STRANGER).await, "GET", &format!("/v1/machine/{STRANGER}"), &Value::Null).await;
    assert!(answer.json().get("move").is_none(), "{}", answer.text());
}
