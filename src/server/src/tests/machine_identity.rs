//! Identity of machines at boot, at registration and for `machine add`, with default UUIDs of vendors, moved NICs, and
//! shared UUIDs and MACs.

use super::*;
use control::agent_api_types::RegisterRequest;
use model::inventory::{Inventory, Nic, SystemInfo};

/// Default UUID of a board vendor, in the byte order of SMBIOS 2.6. The next constant is the same UUID in the byte
/// order of earlier firmware.
const DEFAULT: &str = "03000200-0400-0500-0006-000700080009";
const DEFAULT_SWAPPED: &str = "00020003-0004-0005-0006-000700080009";
const OTHER: &str = "4c4c4544-0051-3010-8031-b2c04f33bbbb";
const DOCK: &str = "00:0e:c6:12:34:56";
const OWN: &str = "52:54:00:00:bb:01";
const BMC_NIC: &str = "be:3a:f2:b6:05:9f";

/// Returns a registration with an inventory that contains the firmware's UUID, and NICs with their drivers.
fn inventoried(id: &str, uuid: Option<&str>, nics: &[(&str, &str)]) -> Value {
    let nic = |(mac, driver): &(&str, &str)| Nic { mac: (*mac).into(), driver: (*driver).into(), ..Nic::default() };
    let inventory = Inventory {
        system: SystemInfo { uuid: uuid.map(str::to_owned), ..SystemInfo::default() },
        nics: nics.iter().map(nic).collect(),
        ..Inventory::default()
    };
    json!(RegisterRequest::new(id.to_owned(), inventory))
}

async fn registers(server: &Running, query: &str, id: &str, body: &Value) -> (String, Answer) {
    let script = server.boot(query).await.text();
    assert!(script.contains(&format!("drophammer.machine={id} ")), "{query}: {script}");
    let token = token_of(&script);
    let answer = server.call(&token, "POST", "/v1/machine/register", body).await;
    (token, answer)
}

async fn operator(server: &Running, method: &str, path: &str, body: Value) -> Answer {
    let token = std::fs::read_to_string(server.dir.path().join("operator.token")).unwrap();
    server.call(token.trim(), method, path, &body).await
}

/// Waits until the server has read a file that was written after its start.
async fn knows(server: &Running, id: &str) {
    let began = std::time::Instant::now();
    loop {
        let listed = operator(server, "GET", "/v1/machines", Value::Null).await.json();
        if listed.as_array().unwrap().iter().any(|machine| machine["id"] == id) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{listed}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates a directory in which file `one` lists the MAC of a dock.
fn with_dock() -> TempDir {
    let dir = directory();
    std::fs::write(dir.path().join("machines/one.yaml"), machine_file(ONE, "one", DOCK, "a1", "")).unwrap();
    dir
}

fn is_local_disk(script: &str) -> bool {
    script.contains("sanboot") && !script.contains("/boot/vmlinuz")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_uuid_identifies_no_machine() {
    let server = Running::start().await;
    for default in [
        DEFAULT,
        DEFAULT_SWAPPED,
        "03020100-0504-0706-0809-0a0b0c0d0e0f",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "78563412-3412-7856-90ab-cddeefaabbcc",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "8a95d198-7f46-11e5-bf8b-08002704d48e",
    ] {
        let by_mac = server.boot(&format!("uuid={default}&mac=52:54:00:00:00:02")).await.text();
        assert!(by_mac.contains(&format!("drophammer.machine={TWO} ")), "{default}: {by_mac}");
        for query in [format!("uuid={default}"), format!("uuid={default}&mac=52:54:00:00:00:ff")] {
            let answer = server.boot(&query).await;
            assert!(
                answer.status == 400 && answer.text().contains("its `uuid` is not usable"),
                "{query}: {}",
                answer.text()
            );
        }
        let body = json!({ "name": "first" });
        let answer = operator(&server, "POST", &format!("/v1/machine/{default}/file"), body).await;
        assert!(answer.status == 400 && answer.text().contains("choose a new UUID"), "{default}: {}", answer.text());
    }
    // A UUID that differs from a default UUID in a few digits does identify a machine.
    let near = "03000200-0400-0500-0006-000700080109";
    assert!(server.boot(&format!("uuid={near}")).await.text().contains(&format!("drophammer.machine={near} ")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_with_a_default_uuid_is_refused() {
    let dir = directory();
    std::fs::write(dir.path().join("machines/old.yaml"), format!("id: {DEFAULT}\nname: old\n")).unwrap();
    let server = Running::start_in(dir).await;
    server.heard("machines/old.yaml:1:5: ").await;
    server.heard("choose a new UUID and list `macs`").await;
    let answer = operator(&server, "POST", &format!("/v1/machine/{ONE}/rename"), json!({ "id": DEFAULT })).await;
    assert!(answer.status == 400 && answer.text().contains("choose a new UUID"), "{}", answer.text());
    // A machine that an earlier version installed under a default UUID can be renamed.
    let answer = operator(&server, "POST", &format!("/v1/machine/{DEFAULT}/rename"), json!({ "id": STRANGER })).await;
    assert!(answer.status == 409 && answer.text().contains("the server has no record of machine"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_mac_with_another_uuid_boots_its_disk() {
    let server = Running::start_in(with_dock()).await;
    let (_, answer) =
        registers(&server, &format!("uuid={ONE}&mac={DOCK}"), ONE, &inventoried(ONE, Some(ONE), &[(DOCK, "e1000e")]))
            .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let script = server.boot(&format!("uuid={OTHER}&mac={DOCK}")).await.text();
    assert!(is_local_disk(&script), "{script}");
    let alarm = |line: &&str| line.contains(ONE) && line.contains(OTHER) && line.contains("machine rename");
    let heard = || server.heard.text().lines().filter(alarm).count();
    server.wait_until(|| heard() == 1, "one alarm that contains both UUIDs").await;
    // The machine itself still boots through this NIC, even if the UUID in its file and the UUID from its firmware have
    // different byte orders.
    for own in [ONE, "44454c4c-5100-1030-8052-b4c04f4d0001"] {
        let script = server.boot(&format!("uuid={own}&mac={DOCK}")).await.text();
        assert!(script.contains(&format!("drophammer.machine={ONE} ")), "{own}: {script}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_of_another_machine_is_refused() {
    let server = Running::start_in(with_dock()).await;
    let (token, answer) = registers(
        &server,
        &format!("uuid=&mac={DOCK}"),
        ONE,
        &inventoried(ONE, Some(ONE), &[(DOCK, "e1000e"), ("52:54:00:00:aa:01", "e1000e")]),
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(token);
    // The firmware of the other machine sends no UUID, but the agent on that machine reports one.
    let body = inventoried(ONE, Some(OTHER), &[(DOCK, "e1000e"), (OWN, "e1000e")]);
    let (token, answer) = registers(&server, &format!("uuid=&mac={DOCK}"), ONE, &body).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains(ONE) && answer.text().contains(OTHER), "{}", answer.text());
    let shown = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
    assert_eq!(shown.status, 401, "it has not registered");
    let select = format!("SELECT registered FROM machines WHERE id = '{ONE}'");
    let kept = engine::run_sql(server.dir.path(), &select);
    assert!(kept.contains("52:54:00:00:aa:01") && !kept.contains(OWN), "{kept}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unproven_machine_is_installed_over_blank_disks_only() {
    let server = Running::start_in(with_dock()).await;
    let body = inventoried(ONE, Some(OTHER), &[(DOCK, "e1000e"), (OWN, "e1000e")]);
    let query = format!("uuid={OTHER}&mac={DOCK}");
    // Each boot has the same result, because an earlier registration does not prove the identity of a machine.
    for _ in 0..2 {
        let (token, answer) = registers(&server, &query, ONE, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.allocated(ONE, &token).await;
        let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
        let named = answer["allocation"]["blank_only"].as_str().unwrap_or_default().to_owned();
        assert!(named.contains(ONE) && named.contains(OTHER), "{answer}");
    }
    server.heard(OTHER).await;
    let dir = server.stop().await;
    let file = machine_file(ONE, "one", DOCK, "a1", "").replace("\nname:", &format!("\nsmbios_uuid: {OTHER}\nname:"));
    std::fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
    let server = Running::start_in(dir).await;
    let (token, answer) = registers(&server, &query, ONE, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.allocated(ONE, &token).await;
    let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
    assert_eq!(answer["allocation"]["blank_only"], Value::Null, "the operator has confirmed the identity");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proven_machine_may_overwrite_its_disks() {
    let server = Running::start().await;
    let swapped = "44454c4c-5100-1030-8052-b4c04f4d0001";
    for reported in [Some(ONE), Some(swapped), None] {
        let body = inventoried(ONE, reported, &[("52:54:00:00:00:01", "e1000e")]);
        let dir = directory();
        let server = Running::start_in(dir).await;
        let (token, answer) = registers(&server, &format!("uuid={ONE}"), ONE, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.allocated(ONE, &token).await;
        let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
        assert_eq!(answer["allocation"]["blank_only"], Value::Null, "{reported:?}");
    }
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_share_uuid_or_mac_are_ambiguous() {
    let server = Running::start().await;
    server.write("machines/copy.yaml", &machine_file(ONE, "copy", "52:54:00:00:00:07", "a7", ""));
    server.heard("copy.yaml").await;
    let problem = |line: &str| line.contains("machines/copy.yaml") && line.contains("machines/one.yaml");
    server.wait_until(|| server.heard.text().lines().any(problem), "a line that names both files").await;
    let script = server.boot(&format!("uuid={ONE}&mac=52:54:00:00:00:01")).await.text();
    let token = token_of(&script);
    assert_eq!(server.register(ONE, &token).await.status, 200);
    let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
    assert_eq!(answer["allocation"], Value::Null, "neither file counts: {answer}");

    std::fs::remove_file(server.dir.path().join("machines/copy.yaml")).unwrap();
    server.write("machines/three.yaml", &format!("id: {STRANGER}\nname: three\nmacs: ['52:54:00:00:00:02']\n"));
    knows(&server, STRANGER).await;
    let answer = server.boot("uuid=&mac=52:54:00:00:00:02").await;
    assert!(
        answer.status == 409 && answer.text().contains("two") && answer.text().contains("three"),
        "{}",
        answer.text()
    );
    // Both machines can still be identified by their UUIDs.
    for id in [TWO, STRANGER] {
        let script = server.boot(&format!("uuid={id}&mac=52:54:00:00:00:02")).await.text();
        assert!(script.contains(&format!("drophammer.machine={id} ")), "{script}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_nic_is_omitted_from_machine_files() {
    let server = Running::start().await;
    let ids = ["4c4c4544-0051-3010-8031-b2c04f333601", "4c4c4544-0051-3010-8031-b2c04f333602"];
    let own = ["52:54:00:00:01:01", "52:54:00:00:01:02"];
    for driver in ["cdc_ether", ""] {
        let name = |number: usize| format!("m{number}{driver}");
        for (id, own) in ids.iter().zip(own) {
            let body = inventoried(id, Some(id), &[(own, "e1000e"), (BMC_NIC, driver), ("01:00:5e:00:00:01", "")]);
            let (_, answer) = registers(&server, &format!("uuid={id}"), id, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        for (number, (id, own)) in ids.iter().zip(own).enumerate() {
            let body = json!({ "name": name(number) });
            let answer = operator(&server, "POST", &format!("/v1/machine/{id}/file"), body).await;
            assert_eq!(answer.status, 200, "{driver}: {}", answer.text());
            assert_eq!(answer.json()["macs"], json!([own]), "{driver}");
            assert!(answer.json()["omitted"].to_string().contains(BMC_NIC), "{}", answer.text());
            let text = std::fs::read_to_string(server.dir.path().join(format!("machines/{}.yaml", name(number))));
            let text = text.unwrap();
            assert!(text.contains(own) && !text.contains(BMC_NIC), "{text}");
        }
        for (number, id) in ids.iter().enumerate() {
            knows(&server, id).await;
            std::fs::remove_file(server.dir.path().join(format!("machines/{}.yaml", name(number)))).unwrap();
        }
        server.wait_until(|| !server.heard.text().is_empty(), "the output").await;
        for id in ids {
            let began = std::time::Instant::now();
            while operator(&server, "GET", "/v1/machine", Value::Null).await.text().contains(id) {
                assert!(began.elapsed() < PATIENCE, "{id} is still known");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Both files list the same USB NIC, so this NIC identifies neither machine. A registration with the UUID in file `one`
/// is refused if it shares only this NIC with the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nic_listed_in_two_files_identifies_no_machine() {
    let dir = directory();
    let macs = |own: &str| format!("{own}', '{BMC_NIC}");
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("machines/one.yaml", machine_file(ONE, "one", &macs("52:54:00:00:00:01"), "a1", ""));
    write("machines/two.yaml", machine_file(TWO, "two", &macs("52:54:00:00:00:02"), "a2", ""));
    let server = Running::start_in(dir).await;
    let body = inventoried(ONE, Some(ONE), &[("52:54:00:00:00:ff", "e1000e"), (BMC_NIC, "cdc_ether")]);
    let (_, answer) = registers(&server, &format!("uuid={ONE}"), ONE, &body).await;
    assert!(answer.status == 409 && answer.text().contains("52:54:00:00:00:ff"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machines_that_share_a_uuid_are_reported() {
    let options_of = |dir: &TempDir| options(dir.path());
    let dir = directory();
    let (options, around) =
        (options_of(&dir), HostEnvironment { quiet: store::boot_activity::ACTIVE_BOOT_TIMEOUT, ..silent() });
    let server = Running::start_with(dir, &options, &around, 10_000).await;
    let body = |mac: &str| inventoried(STRANGER, Some(STRANGER), &[(mac, "e1000e")]).to_string();
    let register = async |address: &str, mac: &str| {
        let script = server.from(address, "GET", &format!("/boot.ipxe?uuid={STRANGER}&mac={mac}"), "", "").await;
        let token = token_of(&script.text());
        server.from(address, "POST", "/v1/machine/register", &token, &body(mac)).await.status
    };
    assert_eq!(register("127.0.0.61", "52:54:00:00:0a:01").await, 200);
    assert_eq!(register("127.0.0.62", "52:54:00:00:0a:02").await, 503);
    let both = |line: &str| line.contains("two machines") && line.contains("0a:01") && line.contains("0a:02");
    server.wait_until(|| server.heard.text().lines().any(both), "may be two machines").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_proves_a_new_mainboard() {
    let server = Running::start_in(with_dock()).await;
    let nics = [(DOCK, "e1000e")];
    let (token, _) = registers(&server, &format!("uuid={ONE}"), ONE, &inventoried(ONE, Some(ONE), &nics)).await;
    server.allocated(ONE, &token).await;
    // A database of an earlier version contains the UUID only in the registration.
    engine::run_sql(server.dir.path(), "UPDATE machines SET smbios_uuid = NULL");
    let by_mac = async |uuid: &str| server.boot(&format!("uuid={uuid}&mac={DOCK}")).await.text();
    assert!(is_local_disk(&by_mac(OTHER).await));
    // Firmware that no longer reports a UUID is served, and the UUID that it reported before is preserved.
    let (token, answer) = registers(&server, &format!("uuid=&mac={DOCK}"), ONE, &inventoried(ONE, None, &nics)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let shown = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
    assert!(shown["allocation"]["blank_only"].is_string(), "{shown}");
    assert!(is_local_disk(&by_mac(OTHER).await));

    // The operator changes the id of the machine to the UUID of the new board, and then to an invented UUID.
    for (old, new, reported) in [(ONE, OTHER, Some(OTHER)), (OTHER, STRANGER, None)] {
        server.write("machines/one.yaml", &machine_file(new, "one", DOCK, "a1", ""));
        knows(&server, new).await;
        let answer = operator(&server, "POST", &format!("/v1/machine/{old}/rename"), json!({ "id": new })).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let query = format!("uuid={}&mac={DOCK}", reported.unwrap_or_default());
        let (token, answer) = registers(&server, &query, new, &inventoried(new, reported, &nics)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.allocated(new, &token).await;
        let shown = server.call(&token, "GET", &format!("/v1/machine/{new}"), &Value::Null).await.json();
        assert!(shown["allocation"].is_object() && shown["allocation"]["blank_only"].is_null(), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_without_macs_refuses_board_with_other_nics() {
    let dir = directory();
    let file = machine_file(ONE, "one", DOCK, "a1", "").replace(&format!("macs: ['{DOCK}']\n"), "");
    std::fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
    let server = Running::start_in(dir).await;
    let register = async |nics: &[(&str, &str)]| {
        registers(&server, &format!("uuid={ONE}"), ONE, &inventoried(ONE, Some(ONE), nics)).await.1
    };
    assert_eq!(register(&[(DOCK, "r8152"), (OWN, "igb")]).await.status, 200);
    let answer = register(&[("52:54:00:00:cc:01", "igb")]).await;
    assert!(answer.status == 409 && answer.text().contains("two machines with the same UUID"), "{}", answer.text());
    // One of the NICs was replaced.
    assert_eq!(register(&[("52:54:00:00:cc:01", "igb"), (OWN, "igb")]).await.status, 200);
}
