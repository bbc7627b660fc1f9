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
