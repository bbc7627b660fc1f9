//! Lists of sizes, deploy templates and Kubernetes volumes.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_templates_and_volumes_are_listed_without_secrets() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    for (path, words) in
        [("/sizes", "0 sizes"), ("/templates", "0 deploy templates"), ("/volumes", "0 Kubernetes volumes")]
    {
        assert!(browser.text(path).await.contains(words), "{path}");
    }
    let size = json!({"id": "c1", "name": "<b>", "constraints": [{"type": "cores", "min": 1, "max": 8}]});
    assert_eq!(server.v1("PUT", "/v1/size", &size).await.status, 201);
    let page = browser.text("/sizes").await;
    for words in ["1 size<", "&lt;b&gt;", "1 to 8 cores", "<td class=\"number\">1</td>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let volume = json!([
        {"kind": "Volume", "metadata": {"name": "db-1", "uid": "9474cda7-0dbe-40fc-9842-3cb0404a7201"},
         "spec": {"nodeName": "h", "storageClassName": "fast", "rawBlockDevice": {"devicePath": "/dev/sdc"}}},
        {"kind": "StorageClass", "metadata": {"name": "fast"}, "parameters": {"fsType": "ext4"}}]);
    assert_eq!(server.v1("POST", &format!("/v1/machine/{ONE}/volumes"), &volume).await.status, 200);
    let page = browser.text("/volumes").await;
    for words in ["1 Kubernetes volume<", "db-1", "Pending", ">one</a>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let args = json!({"logical_disks": [{"size_gb": "MAX", "raid_level": "1"}], "password": "hunter2"});
    let step = json!({"interface": "raid", "step": "create_configuration", "args": args, "priority": 10});
    let template = json!({"name": "CUSTOM_RAID", "steps": [step]});
    let headers = [("X-Auth-Token", &*server.operator()), ("X-OpenStack-Ironic-API-Version", "1.115")];
    let answer = server.ask("POST", "/v1/deploy_templates", &headers, &template.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let page = browser.text("/templates").await;
    for words in ["1 deploy template<", "CUSTOM_RAID", "raid.create_configuration, priority 10"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("hunter2"), "{page}");
}
