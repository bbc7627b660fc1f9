//! A machine with an OS definition, whose allocation is served only after the program `verify` has accepted the
//! parameters.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use testing::executables::write_executable;

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join("os/web").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_executable(&path, text);
}

pub(super) fn with_definition(parameters: &str) -> TempDir {
    let dir = directory();
    write(dir.path(), "ganeti_api_version", "20\n");
    write(dir.path(), "image", "debian-12\n");
    write(dir.path(), "parameters.list", "track stable or testing\n");
    write(dir.path(), "verify", "#!/bin/sh\n[ \"$OSP_TRACK\" != sid ] && exit 0\necho no sid >&2\nexit 1\n");
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    let file = file.replace("image: debian-12", &format!("os: web\n  os_parameters: [{parameters}]"));
    fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocation_contains_image_and_parameters_of_definition() {
    let server = Running::start_in(with_definition("track=testing")).await;
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.image.id, "debian-12");
    let definition = given.definition.unwrap();
    assert_eq!((definition.name.as_str(), definition.api), ("web", 20));
    assert_eq!(definition.parameters["track"], "testing");
    assert!(definition.files["verify"].executable);

    // The inputs for `drophammer plan` contain the names of the parameters, but not the values.
    let path = format!("/v1/machine/{ONE}/preview");
    let preview = server.call(&server.operator(), "GET", &path, &Value::Null).await.json();
    let shown = &preview["machine"]["allocation"]["definition"];
    assert_eq!((&shown["name"], &shown["parameters"]["track"]), (&json!("web"), &json!("")));
}

/// A digest without a salt could confirm a guess of a secret parameter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_receive_no_digests_of_parameters() {
    let server = Running::start_in(with_definition("track=testing")).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let path = format!("/v1/machine/{ONE}/preview");
    for (role, is_present) in [("operator", true), ("viewer", false)] {
        let token = server.user(&format!("a-{role}"), role, &[]).await;
        let preview = server.call(&token, "GET", &path, &Value::Null).await.json();
        assert!(preview["machine"]["allocation"].is_object(), "{preview}");
        let definition = preview["inputs"]["definition"].as_str().unwrap_or_default();
        assert_eq!(definition.starts_with("sha256:"), is_present, "{role}: {preview}");
        assert_eq!(preview["inputs"].is_null(), !is_present, "{role}: {preview}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_refused_by_verify_are_logged_and_withheld() {
    let server = Running::start_in(with_definition("track=sid")).await;
    server.heard("machines/one.yaml:").await;
    if server.heard.text().contains("was not run here") {
        assert!(!nix::unistd::geteuid().is_root(), "root can make a sandbox: {}", server.heard.text());
        return;
    }
    server.heard("the verify program of web refuses these parameters: the program exited with 1, saying: ").await;
    assert!(server.heard.text().contains("no sid"), "{}", server.heard.text());
    let token = server.token(ONE).await;
    let wait = format!("/v1/machine/{ONE}/wait?seconds=0");
    assert_eq!(server.call(&token, "GET", &wait, &Value::Null).await.status, 204);
    // A different version of `verify` accepts the parameters.
    write(server.dir.path(), "verify", "#!/bin/sh\n");
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.definition.unwrap().parameters["track"], "sid");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installed_machine_boots_without_its_definition() {
    let server = Running::start_in(with_definition("")).await;
    server.installed().await;
    fs::remove_dir_all(server.dir.path().join("os")).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(server.boots_disk().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definition_with_create_is_served_without_image() {
    let dir = with_definition("track=testing");
    fs::remove_file(dir.path().join("os/web/image")).unwrap();
    for program in ["create", "import", "export", "rename"] {
        write(dir.path(), program, "#!/bin/sh\n");
    }
    write(dir.path(), "needs", "sfdisk\n");
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!((given.image.id.as_str(), given.image.url.as_str()), ("web", ""));
    assert_eq!(given.definition.unwrap().required_programs().unwrap(), ["/bin/sh", "sfdisk"]);

    // The order must name the definition instead of an image.
    server.installed().await;
    let order = |image: &str| json!({"id": ONE, "imageid": image});
    let path = format!("/v1/machine/{ONE}/reinstall");
    let refused = server.call(&server.operator(), "POST", &path, &order("debian-12")).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("OS definition web creates the system itself and uses no image"),
        "{}",
        refused.text()
    );
    assert_eq!(server.call(&server.operator(), "POST", &path, &order("web")).await.status, 200);
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(given.reinstall && given.image.id == "web" && given.image.url.is_empty());
    assert!(given.definition.unwrap().has_create());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_waits_for_verify_of_its_definition() {
    let dir = with_definition("track=testing");
    fs::remove_file(dir.path().join("os/web/image")).unwrap();
    for program in ["create", "import", "export", "rename"] {
        write(dir.path(), program, "#!/bin/sh\n");
    }
    write(dir.path(), "needs", "sfdisk\n");
    let server = Running::start_in(dir).await;
    server.installed().await;
    write(server.dir.path(), "verify", "#!/bin/sh\nsleep 1\n");
    let path = format!("/v1/machine/{ONE}/reinstall");
    for _ in 0..8 {
        let ordered = server.call(&server.operator(), "POST", &path, &json!({"id": ONE, "imageid": "web"})).await;
        assert_eq!(ordered.status, 200, "{}", ordered.text());
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    write(server.dir.path(), "verify", "#!/bin/sh\necho no sid >&2\nexit 1\n");
    server.heard("machines/one.yaml:").await;
    if server.heard.text().contains("was not run here") {
        assert!(!nix::unistd::geteuid().is_root(), "root can make a sandbox: {}", server.heard.text());
        return;
    }
    server.heard("the verify program of web refuses these parameters: ").await;
    let refused = server.call(&server.operator(), "POST", &path, &json!({"id": ONE, "imageid": "web"})).await;
    assert!(refused.status == 400 && refused.text().contains("no sid"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_listed_and_their_parameters_changed() {
    let dir = with_definition("track=testing");
    write(dir.path(), "os_version", "3\nignored\n");
    write(dir.path(), "variants.list", "small\n");
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let ask = async |method: &str, path: &str, body: Value| server.v1(method, path, &body).await;
    let listed = ask("GET", "/v1/os", Value::Null).await.json();
    let web = json!({"name": "web", "os_version": "3", "api": 20, "image": "debian-12", "variants": ["small"],
        "parameters": [{"name": "track", "description": "stable or testing"}], "preset": {}, "hidden": false,
        "blacklisted": false});
    assert_eq!(listed, json!([web]));
    let shown = ask("GET", "/v1/os/web", Value::Null).await.json();
    assert_eq!(shown["machines"], json!([{"id": ONE, "name": "one", "os": "web"}]));
    assert_eq!(ask("GET", "/v1/os/wep", Value::Null).await.status, 404);
    assert_eq!(server.call(&token, "GET", "/v1/os", &Value::Null).await.status, 401);
    for (state, query) in [("hidden", "?hidden=true"), ("blacklisted", "?blacklisted=true")] {
        let path = format!("/v1/image/web/{state}");
        assert_eq!(ask("PUT", &path, Value::Null).await.status, 200);
        assert_eq!(ask("GET", "/v1/os", Value::Null).await.json(), json!([]));
        assert_eq!(ask("GET", &format!("/v1/os{query}"), Value::Null).await.json()[0][state], true);
        assert_eq!(ask("DELETE", &path, Value::Null).await.status, 200);
    }

    let change = async |path: &str, changes: &[&str]| ask("POST", path, json!({ "changes": changes })).await;
    let [own, two] = [ONE, TWO].map(|machine| format!("/v1/machine/{machine}/os-parameters"));
    let site = "/v1/os/web/parameters";
    for (path, changes, status, words) in [
        (own.as_str(), &["nope=1"][..], 422, "unknown parameter \\\"nope\\\"; available: track"),
        (own.as_str(), &["track"], 400, "is neither KEY=VALUE nor -KEY"),
        (own.as_str(), &["track=1", "-TRACK"], 400, "is given twice"),
        (two.as_str(), &["track=1"], 422, "does not name an OS definition"),
        (site, &["nope=1"], 422, "unknown parameter \\\"nope\\\"; available: track"),
        ("/v1/os/web+large/parameters", &["track=1"], 422, "unknown variant \\\"large\\\"; available: small"),
    ] {
        let answer = change(path, changes).await;
        assert!(answer.status == status && answer.text().contains(words), "{words}: {}", answer.text());
    }
    let answer = change(&own, &["-track"]).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"os": "web", "parameters": []})));
    assert!(!server.file("machines/one.yaml").contains("os_parameters"));
    let answer = change(site, &["track=stable"]).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"os": "web", "parameters": ["track"]})),
        "{}",
        answer.text()
    );
    assert!(server.file("os/parameters.yaml").contains("track=stable"), "{}", server.file("os/parameters.yaml"));
    let permissions = fs::metadata(server.dir.path().join("os/parameters.yaml")).unwrap().permissions();
    assert_eq!(permissions.mode() & 0o777, 0o640, "a parameter can be a secret");
    assert_eq!(change("/v1/os/later/parameters", &["any=thing"]).await.status, 200);
    assert_eq!(ask("GET", "/v1/os/web", Value::Null).await.json()["preset"], json!({"web": ["track"]}));
    if !server.heard.text().contains("was not run here") {
        for path in [own.as_str(), site] {
            let answer = change(path, &["track=sid"]).await;
            assert!(answer.status == 422 && answer.text().contains("no sid"), "{}", answer.text());
        }
        assert!(!server.file("os/parameters.yaml").contains("sid"));
    }
    assert_eq!(change(site, &["-track"]).await.json(), json!({"os": "web", "parameters": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differing_installed_os_version_is_reported() {
    let dir = with_definition("track=testing");
    write(dir.path(), "os_version", "1\n");
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    let marker = json!({"machine": ONE, "allocation": "a1", "image": "debian-12", "layout": "default",
        "definition": {"os": "web", "os_version": "1"}});
    let report = json!({"success": true, "message": "m", "allocationuuid": "a1", "marker": marker});
    let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let shown = server.v1("GET", "/v1/os/web", &Value::Null).await.json();
    let installed =
        json!([{"id": ONE, "name": "one", "os": "web", "installed_os": "web", "installed_os_version": "1"}]);
    assert_eq!((&shown["os_version"], &shown["machines"]), (&json!("1"), &installed));
    assert!(!server.heard.text().contains("os_version of"));
    write(server.dir.path(), "os_version", "2\n");
    server
        .heard("os_version of web was 1 when the machine was installed, and is 2 now; a reinstall uses the current")
        .await;
    let shown = server.v1("GET", "/v1/os/web", &Value::Null).await.json();
    assert_eq!((&shown["os_version"], &shown["machines"]), (&json!("2"), &installed));
}
