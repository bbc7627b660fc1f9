//! Machines with new ids and new MACs.

use super::reinstall::with_images;
use super::*;

fn file(id: &str) -> String {
    machine_file(id, "one", "52:54:00:00:00:01", "a1", "")
}

impl Running {
    async fn rename(&self, old: &str, new: &str) -> Answer {
        let body = json!({ "id": new });
        self.call(&self.operator(), "POST", &format!("/v1/machine/{old}/rename"), &body).await
    }
}

/// The mainboard was replaced, and the operator edits `id:` in the machine file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocation_of_a_former_id_requires_a_rename() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    server.write("machines/one.yaml", &file(STRANGER));
    let road = format!("`drophammer machine rename {ONE} {STRANGER}`");
    server
        .heard(&format!("allocation a1 is installed under machine {ONE}, and cannot be used for another machine"))
        .await;
    server.heard(&road).await;
    // After its restart, the server no longer knows the last valid version of the file.
    let server = server.restarted().await;
    server.heard(&road).await;
    let script = server.boot(&format!("uuid={STRANGER}")).await.text();
    assert!(script.contains("sanboot"), "{script}");

    for (old, new, status) in [
        (STRANGER, ONE, 409),
        (TWO, STRANGER, 409),
        (ONE, ONE, 400),
        (ONE, "00000000-0000-0000-0000-000000000000", 400),
        ("storage", STRANGER, 400),
    ] {
        let answer = server.rename(old, new).await;
        assert_eq!(answer.status, status, "{old} {new}: {}", answer.text());
    }
    let listed = server.rename(ONE, &STRANGER.to_uppercase()).await;
    assert_eq!(listed.status, 200, "{}", listed.text());
    assert_eq!((&listed.json()["id"], &listed.json()["order"]["id"]), (&json!(STRANGER), &json!(order)));
    let server = server.restarted().await;
    let token = server.token(STRANGER).await;
    let given = server.allocated(STRANGER, &token).await.allocation.unwrap();
    assert_eq!(given.former_machines, [ONE]);
    assert_eq!((given.order.unwrap().id, given.succeeded), (order, true));
    assert_eq!(server.rename(ONE, STRANGER).await.status, 409, "the old id is no longer known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_with_foreign_mac_is_not_served() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.order("debian-13").await;
    let query = |mac: &str| format!("uuid={ONE}&mac={mac}");
    let other = query("52:54:00:00:00:99");
    assert!(server.boot(&other).await.text().contains("sanboot"));
    server.heard("has the MAC 52:54:00:00:00:99, which is not among the MACs in the file of").await;
    assert_eq!(server.ask("GET", &format!("/boot.json?{other}"), &[], "").await.status, 409);
    assert_eq!(server.listed().await["order"]["attempts"], 0);
    let script = server.boot(&query("52-54-00-00-00-01")).await.text();
    let token = script.split("drophammer.token=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    // The agent registers with all NICs of the machine.
    let register = |macs: &[&str]| {
        let nics: Vec<Value> = macs.iter().map(|mac| json!({ "mac": mac, "name": "e" })).collect();
        json!({ "uuid": ONE, "hardware": { "memory": 1, "cpu_cores": 1, "disks": [], "nics": nics },
                "bios": { "vendor": "", "version": "", "date": "" } })
    };
    for (macs, status) in
        [(&["52:54:00:00:00:98"][..], 409), (&["52:54:00:00:00:98", "52:54:00:00:00:01"], 200), (&[], 200)]
    {
        let answer = server.call(&token, "POST", "/v1/machine/register", &register(macs)).await;
        assert_eq!(answer.status, status, "{macs:?}: {}", answer.text());
    }
}
