//! Lists of machines in pages, and their filters.

use super::*;

impl Running {
    async fn list(&self, query: &str) -> Answer {
        let operator = std::fs::read_to_string(self.dir.path().join("operator.token")).unwrap();
        self.call(operator.trim(), "GET", &format!("/v1/machines{query}"), &Value::Null).await
    }

    /// Returns the names of the listed machines, and the ids of machines that have no name.
    async fn names(&self, query: &str) -> Vec<String> {
        let listed = self.list(query).await;
        assert_eq!(listed.status, 200, "{query}: {}", listed.text());
        let listed = listed.json();
        let name = |machine: &Value| match machine["name"].as_str().unwrap() {
            "" => machine["id"].as_str().unwrap().to_owned(),
            name => name.to_owned(),
        };
        listed.as_array().unwrap().iter().map(name).collect()
    }
}

fn id(number: u32) -> String {
    format!("4c4c4544-0051-3010-8052-b4c04f4e{number:04x}")
}

/// Starts a server with the machines `m0` to `m8`, of which the even ones are allocated, and a machine without a file.
async fn start() -> Running {
    let dir = directory();
    for name in ["one", "two"] {
        std::fs::remove_file(dir.path().join(format!("machines/{name}.yaml"))).unwrap();
    }
    for number in 0..9 {
        let (name, mac) = (format!("m{number}"), format!("52:54:00:00:01:0{number}"));
        let text = match number % 2 {
            0 => machine_file(&id(number), &name, &mac, &format!("a{number}"), ""),
            _ => format!("id: {}\nname: {name}\nmacs: ['{mac}']\n", id(number)),
        };
        std::fs::write(dir.path().join(format!("machines/{name}.yaml")), text).unwrap();
    }
    let server = Running::start_in(dir).await;
    server.token(STRANGER).await;
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_contain_each_machine_once_in_list_order() {
    let server = start().await;
    let all = server.names("").await;
    assert_eq!(all.len(), 10);
    assert_eq!((all[0].as_str(), all[8].as_str(), all[9].as_str()), ("m0", "m8", STRANGER));
    for limit in [1, 3, 5, 10, 11] {
        let (mut listed, mut after) = (Vec::new(), String::new());
        loop {
            let page = server.list(&format!("?limit={limit}{after}")).await.json();
            let page = page.as_array().unwrap();
            listed.extend(page.iter().map(|machine| machine["id"].as_str().unwrap().to_owned()));
            if page.len() < limit {
                break;
            }
            after = format!("&after={}", listed.last().unwrap());
        }
        let expected: Vec<String> = (0..9).map(id).chain([STRANGER.to_owned()]).collect();
        assert_eq!(listed, expected, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_filters_by_phase_image_and_text() {
    let server = start().await;
    let even = ["m0", "m2", "m4", "m6", "m8"];
    assert_eq!(server.names("?phase=not%20installed").await, even);
    assert_eq!(server.names("?phase=to+be+installed").await, even, "the former name of the phase");
    assert_eq!(server.names("?phase=free&limit=2").await, ["m1", "m3"]);
    assert_eq!(server.names(&format!("?phase=free&limit=2&after={}", id(3))).await, ["m5", "m7"]);
    assert_eq!(server.names("?phase=new").await, [STRANGER]);
    assert_eq!(server.names("?phase=Not+Installed").await, even);
    assert_eq!(server.names("?image=Debian-12").await, even);
    assert_eq!(server.names("?image=debian").await, Vec::<String>::new());
    assert_eq!(server.names("?q=M7").await, ["m7"]);
    assert_eq!(server.names("?q=00:01:04").await, ["m4"]);
    assert_eq!(server.names("?q=4F4DFFFF").await, [STRANGER]);
    assert_eq!(server.names("?q=b4c04f4e&image=debian-12&limit=1").await, ["m0"]);
    assert_eq!(server.names("?q=nothing").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_page_parameters_are_refused() {
    let server = start().await;
    for (query, why) in [
        ("?limit=0", "limit: must be at least 1"),
        ("?limit=-1", "limit"),
        ("?limit=many", "limit"),
        ("?after=", "`after`: the list does not contain"),
        ("?after=m1", "`after`: the list does not contain"),
        ("?limit=1&limit=2", "limit"),
    ] {
        let answer = server.list(query).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert!(answer.json()["message"].as_str().unwrap().contains(why), "{query}: {}", answer.text());
    }
    let unauthorized = server.call("wrong", "GET", "/v1/machines?limit=1", &Value::Null).await;
    assert_eq!(unauthorized.status, 401);
}

/// A file without a valid version is listed with its error, and commands about the machine print the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_with_invalid_files_are_listed_with_the_error() {
    let dir = directory();
    let broken = format!("id: {STRANGER}\nname: node3\nmacs: [oops]\n");
    std::fs::write(dir.path().join("machines/node3.yaml"), &broken).unwrap();
    let server = Running::start_in(dir).await;
    let browser = server.browser().await;
    let find = async |id: &str| {
        let all = server.v1("GET", "/v1/machines", &Value::Null).await.json();
        all.as_array().unwrap().iter().find(|machine| machine["id"] == id).unwrap().clone()
    };
    let listed = find(STRANGER).await;
    assert_eq!(
        (&listed["name"], &listed["phase"], &listed["unusable"]),
        (&json!("node3"), &json!("file error"), &json!(true))
    );
    let error = listed["file_error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("machines/node3.yaml:3:") && error.ends_with("(DH-705)"), "{error}");
    let output = server.machine(&["list", "--filter", "phase=file error"]).await.unwrap();
    assert_eq!(output, CommandOutcome::Good);
    let page = browser.text("/").await;
    assert!(page.contains("file error") && page.contains("machines/node3.yaml:3:"), "{page}");
    let metrics = server.v1("GET", "/metrics", &Value::Null).await.text();
    assert!(metrics.contains("drophammer_machines{phase=\"file error\"} 1\n"), "{metrics}");
    for (method, path, body) in [
        ("POST", format!("/v1/machine/{STRANGER}/lock"), json!({"reason": "no"})),
        ("POST", "/v1/machine/allocate".to_owned(), json!({"uuid": STRANGER, "imageid": "debian-12"})),
        ("GET", format!("/v1/machine/{STRANGER}/preview"), Value::Null),
    ] {
        let refused = server.v1(method, &path, &body).await;
        let text = refused.text();
        assert!(refused.status == 422 && text.contains("machines/node3.yaml:3:"), "{method} {path}: {text}");
        assert!(text.contains("correct the file, then repeat the command"), "{method} {path}: {text}");
    }

    // The last valid version of a file remains in force, and the machine is listed with the error of the new version.
    let valid = server.file("machines/two.yaml");
    server.write("machines/two.yaml", &format!("{valid}unknown: 1\n"));
    server.heard("machines/two.yaml:").await;
    let listed = find(TWO).await;
    assert!(listed["file_error"].as_str().unwrap().starts_with("machines/two.yaml:"), "{listed}");
    assert_eq!((&listed["phase"], listed.get("unusable")), (&json!("free"), None));
    let refused = server.v1("POST", &format!("/v1/machine/{TWO}/lock"), &json!({"reason": "no"})).await;
    let text = refused.text();
    assert!(refused.status == 422 && text.contains("machines/two.yaml:") && text.contains("unknown"), "{text}");
    assert!(text.contains("correct the file, then repeat the command") && !text.contains("please retry"), "{text}");
    server.write("machines/two.yaml", &valid);
    server.write("machines/node3.yaml", &broken.replace("[oops]", "[]"));
    server.heard("all files are valid again").await;
    assert_eq!((find(TWO).await.get("file_error"), &find(STRANGER).await["phase"]), (None, &json!("free")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_listed_in_natural_order() {
    let dir = directory();
    for number in [10, 2, 1] {
        let text = format!("id: 4c4c4544-0051-3010-8052-b4c04f4e{number:04}\nname: node{number}\n");
        std::fs::write(dir.path().join(format!("machines/node{number}.yaml")), text).unwrap();
    }
    let server = Running::start_in(dir).await;
    let all = server.v1("GET", "/v1/machines", &Value::Null).await.json();
    let names = all.as_array().unwrap().iter().map(|machine| machine["name"].as_str().unwrap());
    let names: Vec<&str> = names.filter(|name| name.starts_with("node")).collect();
    assert_eq!(names, ["node1", "node2", "node10"]);
}
