//! Pages of machines in metal-api's format, layouts, images, sizes, volumes and rollouts.

use super::*;
use store::rollouts::{MemberRecord, RolloutChange, RolloutRecord};

/// Lists with pages, each with the field that identifies its objects.
const LISTS: [(&str, &str); 6] = [
    ("/v1/machine", "id"),
    ("/v1/filesystemlayout", "id"),
    ("/v1/image", "id"),
    ("/v1/size", "id"),
    ("/v1/volumes", "uid"),
    ("/v1/rollouts", "id"),
];

/// Returns the list of resources with two volumes of a machine.
fn volumes(first: u32) -> String {
    let volume = |number: u32| {
        let metadata = json!({"name": format!("db-{number}"), "uid": format!("9474cda7-0dbe-40fc-9842-{number:012}")});
        json!({"kind": "Volume", "metadata": metadata,
            "spec": {"nodeName": "h", "storageClassName": "fast", "rawBlockDevice": {"devicePath": "/dev/sdc"}}})
    };
    let class = json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "parameters": {"fsType": "ext4"}});
    json!([class, volume(first), volume(first + 1)]).to_string()
}

/// Starts a server with at least three objects in each list.
async fn start() -> Running {
    let dir = directory();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    std::fs::create_dir(dir.path().join("sizes")).unwrap();
    for number in 1..=3 {
        let cores = format!("constraints: [{{type: cores, min: {number}, max: {number}}}]\n");
        write(&format!("sizes/s{number}.yaml"), format!("id: s{number}\nname: Size {number}\n{cores}"));
        let constraints = format!("constraints: {{sizes: [s{number}], images: {{debian: '>= 12'}}}}\n");
        write(
            &format!("layouts/l{number}.yaml"),
            LAYOUT.replace("id: default", &format!("id: l{number}")) + &constraints,
        );
        write(&format!("images/i{number}.yaml"), format!("id: debian-{number}\nurl: http://m/{number}.tar.zst\n"));
    }
    for (number, name) in [(0xa1, "three"), (0xa2, "four")] {
        let id = format!("4c4c4544-0051-3010-8052-b4c04f4d{number:04x}");
        let more = format!("  volumes: {}\n", volumes(number * 10));
        let mac = format!("52:54:00:00:00:{number:02x}");
        write(&format!("machines/{name}.yaml"), machine_file(&id, name, &mac, &format!("a-{name}"), &more));
    }
    let server = Running::start_in(dir).await;
    for number in 1..=3 {
        let members = vec![(format!("m{number}"), MemberRecord { image: format!("i{number}"), ..Default::default() })];
        server.state.create_rollout(RolloutRecord::default(), members).await.unwrap();
        server.state.change_rollout(number, RolloutChange::Cancel("a test".to_owned())).await.unwrap();
    }
    server
}

impl Running {
    /// Returns the ids of the objects on a page.
    async fn page(&self, (path, key): (&str, &str), query: &str) -> Vec<String> {
        let answer = self.v1("GET", &format!("{path}{query}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{path}{query}: {}", answer.text());
        let id = |object: &Value| object[key].as_str().map_or_else(|| object[key].to_string(), str::to_owned);
        answer.json().as_array().unwrap().iter().map(id).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_all_lists_contain_each_object_once() {
    let server = start().await;
    for list in LISTS {
        let all = server.page(list, "").await;
        assert!(all.len() >= 3, "{list:?}: {all:?}");
        for limit in [1, 2, all.len(), all.len() + 1] {
            let (mut listed, mut after) = (Vec::new(), String::new());
            loop {
                let page = server.page(list, &format!("?limit={limit}{after}")).await;
                let is_last = page.len() < limit;
                listed.extend(page);
                if is_last {
                    break;
                }
                after = format!("&after={}", listed.last().unwrap());
            }
            assert_eq!(listed, all, "{list:?}, {limit}");
        }
        assert_eq!(server.page(list, "?q=not-in-any-list").await, Vec::<String>::new());
        for (query, why) in [("?limit=0", "limit: must be at least 1"), ("?after=x", "request the list from the start")]
        {
            let answer = server.v1("GET", &format!("{}{query}", list.0), &Value::Null).await;
            assert_eq!(answer.status, 400, "{list:?}{query}: {}", answer.text());
            assert!(answer.json()["message"].as_str().unwrap().contains(why), "{}", answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_filtered_by_text() {
    let server = start().await;
    let [machines, layouts, images, sizes, volumes, rollouts] = LISTS;
    assert_eq!(server.page(machines, "?q=52:54:00:00:00:02").await, [TWO]);
    assert_eq!(server.page(layouts, "?q=L2").await, ["l2"]);
    assert_eq!(server.page(images, "?q=debian-1&limit=1").await, ["debian-1"]);
    assert_eq!(server.page(sizes, "?q=size+3").await, ["s3"]);
    assert_eq!(server.page(volumes, "?q=DB-1610").await.len(), 1);
    assert_eq!(server.page(volumes, "?q=four").await.len(), 2);
    assert_eq!(server.page(rollouts, "?q=i2").await, ["2"]);
}
