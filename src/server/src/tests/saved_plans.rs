//! Plans that `plan --out` saves, and reinstalls that carry out exactly a saved plan.

mod required_approvals;

use super::reinstall::with_images;
use super::*;
use common::command_outcome::CommandOutcome;
use std::os::unix::fs::PermissionsExt;

impl Running {
    /// Installs machine `one`, and returns the path for a saved plan.
    async fn installed_with_inventory(&self) -> String {
        let token = self.registered(ONE).await;
        self.allocated(ONE, &token).await;
        assert_eq!(self.begin(&token, "").await, 200);
        self.report(ONE, &token, "a1", true).await;
        self.dir.path().join("one.plan").display().to_string()
    }

    async fn is_ordered(&self) -> bool {
        !self.listed().await["order"].is_null()
    }

    async fn reinstall(&self, file: &str) -> CommandOutcome {
        self.machine(&["reinstall", "--plan", file]).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_of_an_adopted_machine_is_saved_without_a_marker() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.machine(&["adopt", "one"]).await.unwrap(), CommandOutcome::Good);
    let file = server.dir.path().join("one.plan").display().to_string();
    let plan = ["plan", "one", "--image", "debian-13", "--out", &file];
    assert_eq!(server.machine(&plan).await.unwrap(), CommandOutcome::Refused);
    assert_eq!(
        server.machine(&[&plan[..], &["--without-marker", "--give-up", "QM00001"]].concat()).await.unwrap(),
        CommandOutcome::Good
    );
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Good);
    assert_eq!(server.listed().await["order"]["without_marker"], true);
}

/// Change of a saved plan.
type Change = fn(&mut Value);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_plan_is_ordered_and_approved() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    let (text, outcome) = server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    assert!(outcome == CommandOutcome::Good && text.starts_with("one: reinstall with debian-13"), "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("Data lost: "), "{text}");
    assert!(text.ends_with(&format!("drophammer machine reinstall --plan {file}\n")), "{text}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!server.is_ordered().await && !server.dir.path().join("approved").exists());

    // The saved plan can be printed without a server.
    let (printed, _) = server.plan(&[&file]).await.unwrap();
    assert!(text.starts_with(&printed), "{printed}");
    let (json, _) = server.plan(&[&file, "--json"]).await.unwrap();
    assert!(serde_json::from_str::<Value>(&json).unwrap()["disks"].is_array(), "{json}");

    let sha256 = saved(&file)["approval"]["sha256"].as_str().unwrap().to_owned();
    assert_eq!(server.machine(&["reinstall", "two", "--plan", &file]).await.unwrap(), CommandOutcome::Refused);
    assert!(!server.is_ordered().await);
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Good);
    assert_eq!(server.listed().await["order"]["image"], "debian-13");
    let approval = std::fs::read_to_string(server.dir.path().join(format!("approved/{ONE}.yaml"))).unwrap();
    assert!(approval.contains(&sha256), "{approval}");
    // The plan is approved as soon as the order is placed.
    let token = server.token(ONE).await;
    let allocation = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(allocation.approved.unwrap().sha256, sha256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_whose_inputs_have_changed_is_refused() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    let save = async || server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    let path = |name: &str| server.dir.path().join(name);
    let machine = std::fs::read_to_string(path("machines/one.yaml")).unwrap();

    save().await;
    server.order("debian-12").await;
    server.registered(ONE).await;
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Refused, "the machine has registered again");
    save().await;
    server.write("machines/one.yaml", &machine.replace("name: one", "name: other"));
    while server.listed().await["name"] != "other" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Refused, "another name");
    server.write("machines/one.yaml", &machine);
    std::fs::remove_file(path("images/13.yaml")).unwrap();
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Refused, "the image no longer exists");
    assert!(!server.is_ordered().await && !path("approved").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_or_unorderable_plan_is_refused() {
    let server = Running::start_in(with_images()).await;
    let file = server.dir.path().join("one.plan").display().to_string();
    let save = ["--machine", "one", "--image", "debian-13", "--out", &file];
    let error = server.plan(&save).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("is not installed yet"), "{error}");
    let file = server.installed_with_inventory().await;
    server.plan(&save).await.unwrap();
    let changes: [(&str, Change, &str); 4] = [
        ("version", |plan| plan["version"] = 2.into(), "the version of the plan is 2, but must be 1"),
        ("verdict", |plan| plan["approval"]["verdicts"]["disks"] = json!([]), "the approval is corrupt"),
        ("input", |plan| plan["registered"]["inventory"]["disks"] = json!([]), "save the plan again"),
        ("field", |plan| plan["other"] = 1.into(), "was not written by `drophammer plan --out`"),
    ];
    let original = saved(&file);
    for (what, change, words) in changes {
        let mut plan = original.clone();
        change(&mut plan);
        std::fs::write(&file, plan.to_string()).unwrap();
        for error in [
            server.plan(&[&file]).await.unwrap_err(),
            server.machine(&["reinstall", "--plan", &file]).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains(words), "{what}: {error}");
        }
    }
    assert!(!server.is_ordered().await);
}

/// The server itself checks the approval, because any client can send the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_of_another_reinstall_is_refused() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    let approved = saved(&file)["approval"].clone();
    let answer = server.press(ONE, "debian-12", json!({ "approved": approved })).await;
    assert!(answer.status == 409 && answer.text().contains("the plan is for image debian-13"), "{}", answer.text());
    let corrupt = json!({ "approved": { "sha256": "sha256:0", "verdicts": approved["verdicts"] } });
    let answer = server.press(ONE, "debian-13", corrupt).await;
    assert!(answer.status == 400 && answer.text().contains("is corrupt"), "{}", answer.text());
    assert!(!server.is_ordered().await && !server.dir.path().join("approved").exists());
}

/// `plan --out` replaces a file only if it contains an earlier plan of the same machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_does_not_overwrite_other_files() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    let save = ["--machine", "one", "--image", "debian-13", "--out", &file];
    server.plan(&save).await.unwrap();
    server.plan(&save).await.unwrap();
    let mut other = saved(&file);
    other["machine"]["id"] = TWO.into();
    for (content, words) in [
        (other.to_string(), format!("the file contains the plan of machine {TWO}; specify another file")),
        ("my notes".to_owned(), "the file exists and was not written by".to_owned()),
    ] {
        std::fs::write(&file, &content).unwrap();
        let error = server.plan(&save).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(&words), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
    }
    server.plan(&[&save[..], &["--force"]].concat()).await.unwrap();
    assert_eq!(saved(&file)["machine"]["id"], ONE);
}

fn saved(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_reinstall_retains_its_approval() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Good);
    let token = server.registered(ONE).await;
    let order = server.listed().await["order"]["id"].as_str().unwrap().to_owned();
    server.allocated(ONE, &token).await;
    let disks = json!([{ "device": "os", "serial": "A0", "size_bytes": 1 }]);
    let start = json!({ "allocationuuid": "a1", "order": order, "disks": disks,
        "approved": saved(&file)["approval"]["sha256"] });
    let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &start).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let path = server.dir.path().join(format!("approved/{ONE}.yaml"));
    let before = std::fs::read_to_string(&path).unwrap();
    let operator = std::fs::read_to_string(server.dir.path().join("operator.token")).unwrap();
    let body = json!({ "id": ONE, "imageid": "debian-13", "approved": saved(&file)["approval"] });
    let answer = server.call(operator.trim(), "POST", &format!("/v1/machine/{ONE}/reinstall"), &body).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

const CHANGED: [(&str, &str); 2] = [
    ("the allocation\'s field user_data has changed", "  user_data: other\n"),
    ("the allocation\'s field kernel_arguments has changed", "  kernel_arguments: [quiet]\n"),
];

/// The comparison includes fields that are omitted in responses to operators.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_after_the_plan_are_not_installed() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    let save = ["plan", "one", "--image", "debian-13", "--apply-allocation", "--out", &file];
    assert_eq!(server.machine(&save).await.unwrap(), CommandOutcome::Good);
    let machine = std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    let preview = format!("/v1/machine/{ONE}/preview?image=debian-13&apply_allocation=true");
    let inputs = async || server.call(&server.operator(), "GET", &preview, &Value::Null).await.json()["inputs"].clone();
    let planned = inputs().await;
    let publish = async |more: &str| {
        server.write("machines/one.yaml", &format!("{machine}{more}"));
        while (inputs().await == planned) != more.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    for (_, more) in CHANGED {
        publish(more).await;
        assert_eq!(server.reinstall(&file).await, CommandOutcome::Refused, "{more}");
        let body = json!({ "apply_allocation": true, "approved": saved(&file)["approval"] });
        let answer = server.press(ONE, "debian-13", body).await;
        assert_eq!((answer.status, &answer.json()["error_code"]), (409, &json!("DH-643")), "{}", answer.text());
        publish("").await;
    }
    assert!(!server.is_ordered().await && !server.dir.path().join("approved").exists());
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Good);
    let path = server.dir.path().join(format!("approved/{ONE}.yaml"));
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    for (words, more) in CHANGED {
        server.write("machines/one.yaml", &format!("{machine}{more}"));
        server.heard(words).await;
        // The approved version of the machine file stays in force.
        let token = server.token(ONE).await;
        let given = server.allocated(ONE, &token).await.allocation.unwrap();
        assert!(given.kernel_arguments.is_empty() && given.separate_secrets.is_empty(), "{given:?}");
        assert!(given.approved.unwrap().inputs.is_empty());
        server.write("machines/one.yaml", &machine);
    }
    let token = server.token(ONE).await;
    server.write("images/deb/debian 12.tar.zst", "another content");
    server.heard("image debian-13 has changed").await;
    let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
    assert!(answer.json()["allocation"].is_null(), "{}", answer.text());
}

/// A plan that an earlier version has saved contains no digests of its inputs. When the reinstall is ordered, the
/// server records the current digests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_without_digests_of_its_inputs_is_ordered() {
    let server = Running::start_in(with_images()).await;
    let file = server.installed_with_inventory().await;
    server.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
    let mut plan = saved(&file);
    plan["approval"].as_object_mut().unwrap().remove("inputs").unwrap();
    std::fs::write(&file, plan.to_string()).unwrap();
    assert_eq!(server.reinstall(&file).await, CommandOutcome::Good);
    let approval = std::fs::read_to_string(server.dir.path().join(format!("approved/{ONE}.yaml"))).unwrap();
    assert!(approval.contains("\"hostname\": \"sha256:"), "{approval}");
}
