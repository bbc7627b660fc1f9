//! A database that was restored from a backup. The backup may be older than the contents of the machines' disks.

mod rollouts;
mod without_tokens;

use super::reinstall::{failure, success, with_images};
use super::*;
use common::command_outcome::CommandOutcome;
use model::install_marker::InstallMarker;
use model::inventory::{FilesystemContents, Inventory};
use plan::request_from_allocation;
use store::backup::{back_up_database, restore_database};

/// Returns the report of a success, with the marker that the agent writes for this allocation.
fn success_with_marker(given: &allocation::Allocation) -> Value {
    let order = given.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
    let marker = json!({ "machine": ONE, "allocation": given.id, "order": order, "image": given.image.id,
        "layout": "default", "time": "2026-11-01T00:00:00Z", "fencing": given.fencing });
    json!({ "success": true, "message": "m", "allocationuuid": given.id, "order": order, "marker": marker })
}

impl Running {
    /// Boots the ramdisk. Returns the token and the allocation.
    async fn boot_and_fetch(&self) -> (String, allocation::Allocation) {
        let token = self.token(ONE).await;
        let given = self.allocated(ONE, &token).await.allocation.unwrap();
        (token, given)
    }

    /// Installs the machine, and returns the report of success.
    async fn carry_out(&self) -> Value {
        let (token, given) = self.boot_and_fetch().await;
        let order = given.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
        assert_eq!(self.begin(&token, order).await, 200);
        let report = success_with_marker(&given);
        assert!(!self.report_of(&token, report.clone()).await);
        report
    }

    /// Reports the marker on the disks, as an agent that boots the installed system.
    async fn boot_installed(&self, marker: &Value) {
        let (token, given) = self.boot_and_fetch().await;
        assert!(given.succeeded && !given.reinstall && given.order.is_none() && given.image.url.is_empty());
        let report = json!({ "success": true, "message": "m", "allocationuuid": given.id, "marker": marker });
        assert!(!self.report_of(&token, report).await);
    }

    async fn confirm(&self) -> Answer {
        self.call(&self.operator(), "POST", &format!("/v1/machine/{ONE}/confirm"), &Value::Null).await
    }

    async fn needs_confirmation(&self) -> bool {
        self.listed().await["needs_confirmation"].as_bool().unwrap()
    }
}

/// Returns the reason why the agent refuses to reinstall a machine whose only disk contains an installation with this
/// marker.
fn refusal(given: &allocation::Allocation, marker: &InstallMarker) -> String {
    let disk = json!({ "name": "sda", "device": "/dev/sda", "size_bytes": 9_000_000_000u64, "sector_bytes": 512 });
    let filesystem = FilesystemContents {
        device: "/dev/sda1".into(),
        marker: Some(marker.clone()),
        ..FilesystemContents::default()
    };
    let (disks, filesystems) = (vec![serde_json::from_value(disk).unwrap()], vec![filesystem]);
    let inventory = Inventory { disks, filesystems, ..Inventory::default() };
    let request = request_from_allocation::build_request(&allocation::AssignedMachine::default(), ONE, given, &[]);
    let layout = given.parse_layout().unwrap().layout;
    let plan = plan::make_plan(&layout, &inventory, request, &mut uuid::Uuid::new_v4);
    plan.map_or_else(|refusal| refusal.to_string(), |plan| plan.warnings.join("\n"))
}

/// Creates a backup of this server.
fn backup_of(server: &Running) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    back_up_database(server.dir.path(), &file).unwrap();
    (folder, file)
}

/// Restores the backup, in the server's own directory or on a new host, and starts the server.
async fn restored(server: Running, file: &Path, is_new_host: bool) -> Running {
    let dir = server.stop().await;
    let dir = if is_new_host { with_images() } else { dir };
    restore_database(dir.path(), file, !is_new_host).unwrap();
    Running::start_in(dir).await
}

/// The backup contains an order that is still open. Since the backup, this order and another one were completed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_order_is_not_served_again_after_restore() {
    for is_new_host in [false, true] {
        let server = Running::start_in(with_images()).await;
        server.carry_out().await;
        let older = server.order("debian-13").await;
        let (_folder, file) = backup_of(&server);
        server.carry_out().await;
        server.order("debian-12").await;
        let newest = server.carry_out().await["marker"].clone();
        let server = restored(server, &file, is_new_host).await;

        server.heard(&format!("machine {ONE} needs confirmation")).await;
        let running = server.ask("GET", &format!("/boot.json?uuid={ONE}"), &[], "").await;
        assert_eq!(running.status, 409, "{}", running.text());
        assert!(running.text().contains("needs confirmation"), "{}", running.text());
        let (token, _) = server.boot_and_fetch().await;
        assert_eq!(server.begin(&token, &older).await, 409);
        server.boot_installed(&newest).await;
        assert!(server.needs_confirmation().await, "the disk has another installation than the database");
        let listed = server.listed().await;
        assert_eq!((&listed["on_disk"]["image"], &listed["order"]["attempts"]), (&json!("debian-12"), &json!(0)));
        assert_eq!(server.press(ONE, "debian-13", json!({})).await.status, 409);
        let server = server.restarted().await;
        assert_eq!(server.begin(&server.boot_and_fetch().await.0, &older).await, 409, "also after a restart");

        // If the operator confirms the record without comparing it with the disks, the agent still refuses the order.
        assert_eq!(server.confirm().await.status, 200);
        let (_, given) = server.boot_and_fetch().await;
        assert!(given.order.as_ref().is_some_and(|order| order.id == older && order.confirmed));
        let newest: InstallMarker = serde_json::from_value(newest).unwrap();
        let age = given.fencing.as_ref().unwrap().compare_age(newest.fencing.as_ref().unwrap());
        assert_eq!(age, Some(std::cmp::Ordering::Less));
        let refused = refusal(&given, &newest);
        assert!(refused.contains("is older than the installation on the disk, image debian-12"), "{refused}");
        // A new order is carried out: it was placed after the restore, and its fencing token belongs to the new epoch.
        server.order("debian-13").await;
        let (_, given) = server.boot_and_fetch().await;
        assert!(!refusal(&given, &newest).contains("the installation on the disk"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matching_marker_confirms_a_restored_machine() {
    let server = Running::start_in(with_images()).await;
    let installed = server.carry_out().await["marker"].clone();
    let order = server.order("debian-13").await;
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    // Neither a marker that differs in any field, nor a failure, nor a report without a marker proves anything.
    let token = json!({ "database": installed["fencing"]["database"], "sequence": 9 });
    for (key, value) in [("image", json!("debian-11")), ("order", json!("o9")), ("fencing", token)] {
        let mut other = installed.clone();
        other[key] = value;
        server.boot_installed(&other).await;
    }
    server.boot_installed(&Value::Null).await;
    let (token, _) = server.boot_and_fetch().await;
    let mut failed = failure("", true);
    failed["marker"] = installed.clone();
    server.report_of(&token, failed).await;
    assert!(server.needs_confirmation().await);

    // The marker proves the recorded installation. The order may have been canceled after the backup, so it stays
    // withheld.
    server.boot_installed(&installed).await;
    assert!(server.needs_confirmation().await);
    let (token, given) = server.boot_and_fetch().await;
    assert!(given.order.is_none() && !given.reinstall);
    assert_eq!(server.begin(&token, &order).await, 409);
    let refused = server.press(ONE, "debian-12", json!({})).await;
    assert!(refused.status == 409 && refused.text().contains("drophammer machine confirm"), "{}", refused.text());
    assert_eq!(server.confirm().await.status, 200);
    assert!(!server.needs_confirmation().await);
    let (token, given) = server.boot_and_fetch().await;
    assert_eq!(given.order.map(|order| (order.id, order.confirmed)), Some((order.clone(), true)));
    assert_eq!(server.begin(&token, &order).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marker_confirms_a_restored_machine_once_its_order_is_canceled() {
    let server = Running::start_in(with_images()).await;
    let installed = server.carry_out().await["marker"].clone();
    server.order("debian-13").await;
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    server.boot_installed(&installed).await;
    assert!(server.needs_confirmation().await);
    let path = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status, 200);
    assert!(!server.needs_confirmation().await);
    server.order("debian-12").await;
    let given = server.boot_and_fetch().await.1;
    assert!(given.order.is_some_and(|order| order.confirmed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_installed_after_the_backup_is_not_reinstalled() {
    for is_handed_out in [false, true] {
        let server = Running::start_in(with_images()).await;
        if is_handed_out {
            server.boot_and_fetch().await;
        }
        let (_folder, file) = backup_of(&server);
        server.carry_out().await;
        let server = restored(server, &file, true).await;
        server.heard(&format!("machine {ONE} needs confirmation")).await;
        let token = server.token(ONE).await;
        let path = format!("/v1/machine/{ONE}");
        let wait = server.call(&token, "GET", &format!("{path}/wait?seconds=0"), &Value::Null).await;
        let told = server.call(&token, "GET", &path, &Value::Null).await;
        assert_eq!((wait.status, &told.json()["allocation"]), (204, &Value::Null));
        let begins = json!({ "allocationuuid": "a1", "order": "", "disks": [] });
        let begins = server.call(&token, "POST", &format!("{path}/point-of-no-return"), &begins).await;
        assert!(begins.status == 409 && begins.text().contains("needs confirmation"), "{}", begins.text());

        // The operator checks whether the machine is installed. If it is, the operator adopts the installation;
        // otherwise, the operator confirms the record.
        if is_handed_out {
            let adopted = server.call(&server.operator(), "POST", &format!("{path}/adopt"), &Value::Null).await;
            assert_eq!(adopted.status, 200, "{}", adopted.text());
            let given = server.allocated(ONE, &token).await.allocation.unwrap();
            assert!(given.succeeded && given.image.url.is_empty());
            server.report_of(&token, success_with_marker(&given)).await;
            assert!(!server.needs_confirmation().await, "its marker is now the record");
        } else {
            assert_eq!(server.confirm().await.status, 200);
            let given = server.allocated(ONE, &token).await.allocation.unwrap();
            assert!(!given.succeeded && !given.image.url.is_empty());
        }
    }
}

/// After the backup, the machine was freed and allocated again. The file contains this new allocation, but the backup
/// does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_reallocated_after_the_backup_is_not_erased() {
    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    let (_folder, file) = backup_of(&server);
    drop(server.stop().await);
    let dir = with_images();
    restore_database(dir.path(), &file, false).unwrap();
    let again = machine_file(ONE, "one", "52:54:00:00:00:01", "a2", "");
    std::fs::write(dir.path().join("machines/one.yaml"), again).unwrap();
    let server = Running::start_in(dir).await;
    server.heard(&format!("machine {ONE} needs confirmation")).await;
    let token = server.token(ONE).await;
    let path = format!("/v1/machine/{ONE}");
    assert_eq!(server.call(&token, "GET", &path, &Value::Null).await.json()["allocation"], Value::Null);
    let volume = format!("{path}/volumes/data?persistent_volume=none");
    let removed = server.call(&server.operator(), "DELETE", &volume, &Value::Null).await;
    assert!(removed.status == 409 && removed.text().contains("needs confirmation"), "{}", removed.text());
    assert_eq!(server.confirm().await.status, 200);
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().id, "a2");
}

/// An order with the override `replace_newer` replaces any installation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_installation_is_replaced_only_with_replace_newer() {
    let server = Running::start_in(with_images()).await;
    let report = server.carry_out().await;
    let mut marker: InstallMarker = serde_json::from_value(report["marker"].clone()).unwrap();
    marker.fencing.as_mut().unwrap().sequence = model::install_marker::FencingToken::LIMIT;
    server.order("debian-13").await;
    let (_, given) = server.boot_and_fetch().await;
    assert!(refusal(&given, &marker).contains("order the reinstall again with --replace-newer"));
    assert_eq!(server.press(ONE, "debian-13", json!({ "replace_newer": true })).await.status, 200);
    let (_, given) = server.boot_and_fetch().await;
    assert!(given.order.as_ref().is_some_and(|order| order.replace_newer));
    assert!(!refusal(&given, &marker).contains("order the reinstall again with --replace-newer"));
}

/// The agent had already passed the point of no return when the backup was made and restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_success_confirms_a_restored_machine() {
    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    let order = server.order("debian-13").await;
    let (token, given) = server.boot_and_fetch().await;
    assert_eq!(server.begin(&token, &order).await, 200);
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    assert!(!server.report_of(&token, success_with_marker(&given)).await);
    let listed = server.listed().await;
    assert_eq!((&listed["image"], &listed["order"]), (&json!("debian-13"), &Value::Null));
    assert!(!server.needs_confirmation().await);
    assert!(server.boots_disk().await);
    // A report of success is acknowledged even if the restored database does not contain the start of the attempt. The
    // machine then boots its disk, but the success is not recorded.
    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    let order = server.order("debian-13").await;
    let token = server.boot_and_fetch().await.0;
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    let mut report = success(&order);
    report["marker"] = Value::Null;
    for marker in [Value::Null, success(&order)["marker"].clone()] {
        report["marker"] = marker;
        server.report_of(&token, report.clone()).await;
        assert!(server.needs_confirmation().await);
        let listed = server.listed().await;
        assert_eq!((&listed["image"], &listed["order"]["id"]), (&json!("debian-12"), &json!(order)));
    }
    assert_eq!(server.listed().await["on_disk"]["image"], "debian-13", "a claim that the operator compares");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_machine_boots_and_its_order_can_be_canceled() {
    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    assert!(server.needs_confirmation().await && server.boots_disk().await);

    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    server.order("debian-13").await;
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    assert!(!server.boots_disk().await);
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    assert!(server.boots_disk().await && server.needs_confirmation().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_confirmed_individually_or_together() {
    let server = Running::start_in(with_images()).await;
    assert!(!server.needs_confirmation().await);
    for nothing in [&["confirm", "one"][..], &["confirm", "--all"]] {
        assert_eq!(server.machine(nothing).await.unwrap(), CommandOutcome::Refused, "it was never restored");
    }
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    let needs = async |id: &str| {
        let all = server.call(&server.operator(), "GET", "/v1/machines", &Value::Null).await.json();
        all.as_array().unwrap().iter().find(|machine| machine["id"] == id).unwrap()["needs_confirmation"] == true
    };
    assert!(needs(ONE).await && needs(TWO).await, "also one without an allocation");
    assert_eq!(server.machine(&["list"]).await.unwrap(), CommandOutcome::Good);
    assert_eq!(server.machine(&["confirm", "one", "nobody"]).await.unwrap(), CommandOutcome::Refused);
    assert!(needs(ONE).await, "a typing error confirms no machine");
    assert_eq!(server.machine(&["confirm", "one"]).await.unwrap(), CommandOutcome::Good);
    assert_eq!(server.machine(&["confirm", &ONE.to_uppercase()]).await.unwrap(), CommandOutcome::Good, "again");
    assert!(!needs(ONE).await && needs(TWO).await);
    assert_eq!(server.machine(&["confirm", "--all", "--json"]).await.unwrap(), CommandOutcome::Good);
    assert!(!needs(TWO).await);
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", "b1", ""));
    let token = server.token(TWO).await;
    assert!(server.allocated(TWO, &token).await.allocation.is_some(), "also machines that are added later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_proven_complete_backup_requires_no_confirmation() {
    let server = Running::start_in(with_images()).await;
    server.carry_out().await;
    let (_folder, file) = backup_of(&server);
    let dir = server.stop().await;
    restore_database(dir.path(), &file, false).unwrap();
    let server = Running::start_in(dir).await;
    assert!(!server.needs_confirmation().await);
    let server = restored(server, &file, true).await;
    assert!(server.needs_confirmation().await);
    // By now the same backup is outdated. After another restore, the machine still needs confirmation.
    let dir = server.stop().await;
    assert!(restore_database(dir.path(), &file, false).is_err());
    restore_database(dir.path(), &file, true).unwrap();
    let server = Running::start_in(dir).await;
    assert!(server.needs_confirmation().await);
    let (_folder, file) = backup_of(&server);
    let server = restored(server, &file, true).await;
    assert!(server.needs_confirmation().await, "a backup of an unconfirmed database");
    // Without the id file in the directory, the server cannot determine whether the backup is up to date.
    let dir = server.stop().await;
    std::fs::remove_file(dir.path().join("drophammer.id")).unwrap();
    restore_database(dir.path(), &file, false).unwrap();
    assert!(Running::start_in(dir).await.needs_confirmation().await);
}

/// After a rename, the new id has the confirmation state of the old id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_preserves_the_confirmation_state() {
    for is_confirmed in [false, true] {
        let server = Running::start_in(with_images()).await;
        server.carry_out().await;
        let (_folder, file) = backup_of(&server);
        let server = restored(server, &file, true).await;
        let confirmed = if is_confirmed { "one" } else { "two" };
        assert_eq!(server.machine(&["confirm", confirmed]).await.unwrap(), CommandOutcome::Good);
        server.write("machines/two.yaml", &format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\n"));
        assert_eq!(server.machine(&["rename", ONE, TWO]).await.unwrap(), CommandOutcome::Good);
        assert_eq!(server.machine(&["rename", TWO, ONE]).await.unwrap(), CommandOutcome::Good);
        assert_eq!(server.needs_confirmation().await, !is_confirmed);
    }
}
