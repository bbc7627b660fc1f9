//! `/v1/filesystemlayout`, and the layout files.

use super::*;
use control::agent_api_types::RegisterRequest;
use model::inventory::Inventory;

const AT: &str = "/v1/filesystemlayout";

/// Layout file of an operator, with comments and alternative spellings.
const WRITTEN: &str = "# Of the rack.
id: rack
constraints:
  sizes: [c1]   # the small ones
  images: {debian: \">=12\"}
disks:
  - device: /dev/sda # the SATA-DOM
    wipe: true
    partitions:
      - {number: 1, label: efi, size: 500, type: GPTBoot}
      - {number: 2, label: root, size: 0}
filesystems:
  # Where the firmware looks.
  - {path: /boot/efi, device: /dev/sda1, format: vfat, options: \"-F 32\"}
  - {path: /, device: /dev/sda2, format: ext4, label: root}
";

fn layout(id: &str) -> Value {
    json!({
        "id": id,
        "constraints": {"sizes": [], "images": {}},
        "disks": [{"device": "/dev/sda", "wipeonreinstall": true, "partitions": [{"number": 1, "label": "root", "size": 0}]}],
        "filesystems": [{"path": "/", "device": "/dev/sda1", "format": "ext4", "label": "root"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_requests_create_update_and_delete_its_file() {
    let server = Running::start().await;
    let listed = server.v1("GET", AT, &Value::Null).await.json();
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["id"]), (Some(1), &json!("default")));
    assert_eq!(listed[0]["description"], "", "as metal-api answers");
    let partition = &listed[0]["disks"][0]["partitions"][0];
    assert_eq!((&partition["gpttype"], &listed[0]["raid"]), (&json!("8300"), &json!([])));

    let made = server.v1("PUT", AT, &layout("devel")).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert!(
        server.file("layouts/devel.yaml").starts_with("id: devel\nconstraints:\n"),
        "{}",
        server.file("layouts/devel.yaml")
    );
    assert_eq!(server.v1("GET", &format!("{AT}/devel"), &Value::Null).await.json(), made.json());
    // The response of a request can be sent back without a change.
    assert_eq!(server.v1("POST", AT, &made.json()).await.json(), made.json());

    let mut changed = made.json();
    for size in 1..6 {
        changed["disks"][0]["partitions"] =
            json!([{"number": 1, "size": 5000 + size, "label": "root"}, {"number": 2, "size": 0}]);
        let answer = server.v1("POST", AT, &changed).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let shown = server.v1("GET", &format!("{AT}/devel"), &Value::Null).await;
        assert_eq!(
            shown.json()["disks"][0]["partitions"][0]["size"],
            5000 + size,
            "the layout is in force when the response is sent"
        );
        assert_eq!(shown.headers["etag"], answer.headers["etag"]);
    }
    let deleted = server.v1("DELETE", &format!("{AT}/devel"), &Value::Null).await;
    assert_eq!((deleted.status, deleted.json()["id"].clone()), (200, json!("devel")));
    assert_eq!(server.file("layouts/devel.yaml"), "");
    for (method, path, body) in
        [("GET", "/devel", Value::Null), ("DELETE", "/devel", Value::Null), ("POST", "", layout("devel"))]
    {
        let answer = server.v1(method, &format!("{AT}{path}"), &body).await;
        assert_eq!(
            (answer.status, answer.json()["message"].as_str()),
            (404, Some("no filesystemlayout with id \"devel\" found"))
        );
    }
    // The file is created in the folder of layouts, whatever the id contains.
    assert_eq!(server.v1("PUT", AT, &layout("../../machines/evil")).await.status, 201);
    let inside: Vec<_> = std::fs::read_dir(server.dir.path().join("layouts")).unwrap().collect();
    assert_eq!((inside.len(), std::fs::read_dir(server.dir.path().join("machines")).unwrap().count()), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_routes_refuse_machine_tokens_before_the_body() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let calls = [
        ("GET", AT),
        ("PUT", AT),
        ("POST", AT),
        ("POST", "/v1/filesystemlayout/try"),
        ("DELETE", "/v1/filesystemlayout/default"),
    ];
    for (method, path) in calls {
        assert_eq!(server.call(&token, method, path, &Value::Null).await.status, 401, "{method} {path}");
    }
    // The request announces a body, which the client never sends.
    let head =
        format!("PUT {AT} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n", server.address);
    assert_eq!(server.raw(&head).await.status, 401);
    let long = json!({"id": "x", "description": "x".repeat(200 << 10)});
    assert_eq!(server.v1("PUT", AT, &long).await.status, 413);
    assert!(server.file("layouts/default.yaml") == LAYOUT);
}

/// Error messages and status codes are those of metal-api.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_errors_match_metal_api() {
    let server = Running::start().await;
    server.write("layouts/rack.yaml", WRITTEN);
    server.shows(&format!("{AT}/rack"), |answer| answer.status == 200).await;
    let with = |change: fn(&mut Value)| {
        let mut layout = layout("x");
        change(&mut layout);
        layout
    };
    let cases = [
        (400, "id should not be empty", json!({})),
        (409, "filesystemlayout:default already exists", layout("default")),
        (
            422,
            "given format:zfs is not supported, but:ext3,ext4,none,swap,tmpfs,vfat,xfs,btrfs",
            with(|layout| layout["filesystems"][0]["format"] = json!("zfs")),
        ),
        (
            400,
            "device:/dev/sda partition number:1 given more than once",
            with(|layout| {
                layout["disks"][0]["partitions"] = json!([{"number": 1, "size": 5000}, {"number": 1, "size": 0}]);
            }),
        ),
        (
            400,
            "device:/dev/sda variable sized partition not the last one",
            with(|layout| {
                layout["disks"][0]["partitions"] = json!([{"number": 1, "size": 0}, {"number": 2, "size": 5000}]);
            }),
        ),
        (
            400,
            "given imageconstraint op:>>> is not supported",
            with(|layout| layout["constraints"]["images"]["debian"] = json!(">>> 12")),
        ),
        (
            400,
            "these combinations already exist:c1->[debian 13]: ",
            with(|layout| layout["constraints"] = json!({"sizes": ["c1"], "images": {"debian": "13"}})),
        ),
    ];
    for (status, message, body) in cases {
        let answer = server.v1("PUT", AT, &body).await;
        let said = answer.json();
        assert_eq!((answer.status, &said["statuscode"]), (status, &json!(status)), "{said}");
        assert!(said["message"].as_str().unwrap().starts_with(message), "{said}");
        assert_eq!(server.file("layouts/x.yaml"), "");
    }
    // A misspelled field is reported, whereas metal-api ignores it.
    let misspelt =
        server.v1("PUT", AT, &with(|layout| layout["disks"][0]["wipeonreinstal"] = json!(true))).await.json();
    assert_eq!(misspelt["problems"][0]["place"], "disks[0].wipeonreinstal", "{misspelt}");
    let broken = server.ask("PUT", AT, &[("Authorization", &format!("Bearer {}", server.operator()))], "{").await;
    assert_eq!(broken.status, 400);

    let tried = server.v1("POST", &format!("{AT}/try"), &json!({"size": "c1", "image": "debian-12.1"})).await;
    assert_eq!((tried.status, tried.json()["id"].clone()), (200, json!("rack")));
    let tried = server.v1("POST", &format!("{AT}/try"), &json!({"size": "c1", "image": "debian-11.1"})).await;
    let words = "could not find a matching filesystemLayout for size:c1 and image:debian-11.1";
    assert_eq!((tried.status, tried.json()["message"].as_str()), (422, Some(words)));
    assert!(tried.json()["problems"][0]["message"].as_str().unwrap().starts_with("rack ("), "{}", tried.text());
    assert_eq!(server.v1("POST", &format!("{AT}/other"), &json!({})).await.status, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_is_matched_with_the_registered_disks() {
    let server = Running::start().await;
    let ask = async |machine: &str, layout: &str| {
        server.v1("POST", &format!("{AT}/matches"), &json!({"machine": machine, "filesystemlayout": layout})).await
    };
    assert_eq!(ask(STRANGER, "default").await.json()["message"], format!("no machine with id \"{STRANGER}\" found"));
    assert!(ask(ONE, "default").await.json()["message"].as_str().unwrap().contains("has not registered"));
    assert_eq!(ask(ONE, "none").await.status, 404);
    let disk = model::inventory::InventoryDisk {
        name: "sda".into(),
        device: "/dev/sda".into(),
        size_bytes: 1 << 30,
        sector_bytes: 512,
        ..Default::default()
    };
    let inventory = Inventory { disks: vec![disk], ..Inventory::default() };
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    let register = serde_json::to_value(RegisterRequest::new(ONE.to_owned(), inventory)).unwrap();
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
    assert_eq!(ask(&ONE.to_uppercase(), "default").await.status, 200);
    let mut large = layout("large");
    large["disks"][0]["partitions"] = json!([{"number": 1, "label": "root", "size": 1025}]);
    assert_eq!(server.v1("PUT", AT, &large).await.status, 201);
    let answer = ask(ONE, "large").await;
    let words = "device:/dev/sda is not big enough required:1027MiB, existing:1024MiB (with 1 MiB at each end for the partition table)";
    assert_eq!((answer.status, answer.json()["message"].as_str()), (422, Some(words)));
    large["id"] = json!("other");
    large["disks"][0]["device"] = json!("/dev/sdb");
    large["filesystems"][0]["device"] = json!("/dev/sdb1");
    assert_eq!(server.v1("PUT", AT, &large).await.status, 201);
    let answer = ask(ONE, "other").await;
    assert!(
        answer.status == 422 && answer.text().contains("device:/dev/sdb does not exist on given hardware"),
        "{}",
        answer.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comments_are_preserved_and_ambiguous_edits_refused() {
    let server = Running::start().await;
    server.write("layouts/rack.yaml", WRITTEN);
    let shown = server.shows(&format!("{AT}/rack"), |answer| answer.status == 200).await;
    let mut changed = shown.json();
    changed["constraints"]["sizes"] = json!(["c1", "c2"]);
    changed["filesystems"][1]["mountoptions"] = json!(["noatime"]);
    let answer = server.v1("POST", AT, &changed).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = WRITTEN
        .replace("[c1]", "[c1, c2]")
        .replace("label: root}\n", "label: root, mountoptions: [noatime]}\n")
        // Changed fields are written in metal-api's spelling.
        .replace("wipe:", "wipeonreinstall:")
        .replace("type: GPTBoot", "gpttype: \"ef00\"")
        .replace("\">=12\"", "\">= 12\"")
        .replace("options: \"-F 32\"", "createoptions: [\"-F\", \"32\"]");
    assert_eq!(server.file("layouts/rack.yaml"), expected);

    // Comments on a removed field are removed with the field.
    let mut changed = answer.json();
    changed["disks"][0]["device"] = json!("/dev/sdb");
    for filesystem in changed["filesystems"].as_array_mut().unwrap() {
        let device = filesystem["device"].as_str().unwrap().replace("sda", "sdb");
        filesystem["device"] = json!(device);
    }
    let answer = server.v1("POST", AT, &changed).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("edit the file manually"), "{}", answer.text());
    changed["filesystems"] = json!([
        {"path": "/", "device": "/dev/sdb2", "format": "ext4", "label": "root"},
        {"path": "/boot/efi", "device": "/dev/sdb1", "format": "vfat", "createoptions": ["-F", "32"]},
    ]);
    assert_eq!(server.v1("POST", AT, &changed).await.status, 422, "another order");
    assert_eq!(server.file("layouts/rack.yaml"), expected, "a refusal does not change anything");
    let mut fewer = server.v1("GET", &format!("{AT}/rack"), &Value::Null).await.json();
    fewer["constraints"] = json!({"sizes": [], "images": {}});
    fewer["disks"].as_array_mut().unwrap().push(json!({"device": "/dev/sdb", "wipeonreinstall": true}));
    let answer = server.v1("POST", AT, &fewer).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(server.file("layouts/rack.yaml").contains("  - device: /dev/sdb\n    wipeonreinstall: true\nfilesystems:"));
    fewer["disks"].as_array_mut().unwrap().pop();
    assert_eq!(server.v1("POST", AT, &fewer).await.status, 200);
    assert!(!server.file("layouts/rack.yaml").contains("sdb"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflict_response_contains_file_and_request() {
    let server = Running::start().await;
    let path = format!("{AT}/default");
    let first = server.v1("GET", &path, &Value::Null).await;
    // After the operator has edited the file, responses contain the edit.
    server.write("layouts/default.yaml", &LAYOUT.replace("label: root, size: 0", "label: system, size: 0"));
    let shown = server.shows(&path, |answer| answer.text().contains("\"system\"")).await;
    assert_ne!(first.headers["etag"], shown.headers["etag"]);

    // A client that has read an older version gets a conflict, with the current version.
    let mut mine = first.json();
    mine["description"] = json!("mine");
    let refused = server.v1_matching("POST", AT, &first.headers["etag"], &mine).await;
    let said = refused.json();
    assert_eq!(refused.status, 409, "{said}");
    assert_eq!(
        said["message"],
        "cannot update filesystemlayout (default): the entity was changed from another, please retry"
    );
    assert!(said["conflict"]["file"]["text"].as_str().unwrap().contains("label: system"), "{said}");
    assert_eq!(said["conflict"]["yours"]["description"], "mine");
    assert_eq!(
        server.v1_matching("DELETE", &path, &first.headers["etag"], &Value::Null).await.status,
        422,
        "it is in use"
    );
    let mut mine = shown.json();
    mine["description"] = json!("mine");
    let good = server.v1_matching("POST", AT, &shown.headers["etag"], &mine).await;
    assert_eq!(good.status, 200, "{}", good.text());

    // An invalid edit by the operator is also not overwritten.
    server.write("layouts/default.yaml", "id: default\ndisks: [\n");
    let refused = server.v1("POST", AT, &shown.json()).await;
    assert_eq!((refused.status, server.file("layouts/default.yaml").as_str()), (422, "id: default\ndisks: [\n"));
    assert!(refused.text().contains("layouts/default.yaml:3"), "{}", refused.text());

    // The server might not have scanned this edit yet.
    server.write("layouts/default.yaml", LAYOUT);
    let back = server.v1("POST", AT, &shown.json()).await;
    assert!([200, 409].contains(&back.status), "{}", back.text());
    // Wait until the layout is back.
    server.shows(&path, |answer| answer.status == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_writes_return_an_error_and_change_nothing() {
    let server = Running::start().await;
    let folder = server.dir.path().join("layouts");
    // A folder exists at the path of the temporary file.
    std::fs::create_dir(folder.join(".devel.yaml.new")).unwrap();
    let answer = server.v1("PUT", AT, &layout("devel")).await;
    assert!(answer.status == 500 && answer.text().contains("write "), "{}", answer.text());
    assert!(!folder.join("devel.yaml").exists());
    assert_eq!(server.v1("GET", &format!("{AT}/devel"), &Value::Null).await.status, 404);
    // The server writes through a symbolic link, and does not replace it with a file.
    std::fs::rename(folder.join("default.yaml"), server.dir.path().join("real")).unwrap();
    std::os::unix::fs::symlink("../real", folder.join("default.yaml")).unwrap();
    let mut changed = server.shows(&format!("{AT}/default"), |answer| answer.status == 200).await.json();
    changed["description"] = json!("x");
    let answer = server.v1("POST", AT, &changed).await;
    assert!(answer.status == 500 && answer.text().contains("the file is a symbolic link"), "{}", answer.text());
    assert_eq!(server.file("real"), LAYOUT);
}

/// The current layout and the next layout of a machine cannot be deleted in any state of the machine. The layout of an
/// installation that has started does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn used_layout_is_not_deleted_and_stored_one_unchanged() {
    let server = Running::start().await;
    let path = format!("{AT}/default");
    let in_use = async || {
        let answer = server.v1("DELETE", &path, &Value::Null).await;
        let said = format!("filesystemlayout default is in use by machines:[{ONE}]");
        assert_eq!((answer.status, answer.json()["message"].as_str()), (422, Some(said.as_str())));
    };
    in_use().await;
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap().filesystemlayout;
    in_use().await;
    let body = json!({"allocationuuid": "a1", "order": "", "disks": []});
    let started = server.call(&token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await;
    assert_eq!(started.status, 200, "{}", started.text());

    // A request changes the layout in the middle of the installation.
    let mut changed = server.v1("GET", &path, &Value::Null).await.json();
    changed["disks"][0]["partitions"] = json!([{"number": 1, "label": "root", "size": 9000}]);
    assert_eq!(server.v1("POST", AT, &changed).await.status, 200);
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().filesystemlayout, given);
    in_use().await;
    server.report(ONE, &token, "a1", true).await;
    in_use().await;
    // The machine file names another layout, but the installed layout is still in use.
    assert_eq!(server.v1("PUT", AT, &layout("devel")).await.status, 201);
    let file = server.file("machines/one.yaml").replace("filesystemlayout: default", "filesystemlayout: devel");
    server.write("machines/one.yaml", &file);
    server.heard("the machine is installed with default and keeps that layout").await;
    in_use().await;
    let named = server.v1("DELETE", &format!("{AT}/devel"), &Value::Null).await;
    assert_eq!(named.status, 422, "a machine file names the layout");
    let order = json!({"id": ONE, "imageid": "debian-12"});
    assert_eq!(server.v1("POST", &format!("/v1/machine/{ONE}/reinstall"), &order).await.status, 200);
    let token = server.token(ONE).await;
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().filesystemlayout, given);
}

/// A layout that size and image select is in use as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layout_that_is_chosen_is_in_use() {
    let server = Running::start().await;
    server.write("layouts/rack.yaml", &WRITTEN.replace("[c1]", "[c7]"));
    let file =
        server.file("machines/one.yaml").replace("  filesystemlayout: default\n", "").replace("size: c1", "size: c7");
    server.write("machines/one.yaml", &file);
    server.shows(&format!("{AT}/rack"), |answer| answer.status == 200).await;
    let began = std::time::Instant::now();
    // The server may read the changed files one after the other.
    while server.v1("DELETE", &format!("{AT}/default"), &Value::Null).await.status == 422 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = server.v1("DELETE", &format!("{AT}/rack"), &Value::Null).await;
    assert!(answer.status == 422 && answer.text().contains("is in use by machines"), "{}", answer.text());
}
