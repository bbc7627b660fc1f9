//! Outdated copies of documents, which would undo changes that were made at the server.

use super::*;

impl Running {
    /// Stores these documents, and checks that the request is refused with the code of an undone change.
    async fn refuses_undoing(&self, documents: &[Value], words: &str) {
        let before = self.exported().await;
        for more in [json!({}), json!({"dry_run": true}), json!({"overwrite": ["two"]})] {
            let answer = self.apply(documents, &more).await;
            assert_eq!((answer.status, &answer.json()["error_code"]), (409, &json!("DH-718")), "{}", answer.text());
            assert!(answer.text().contains(words), "{}", answer.text());
            assert_eq!(self.exported().await, before);
        }
    }

    async fn overwrites(&self, documents: &[Value], machine: &str) {
        let answer = self.apply(documents, &json!({"overwrite": [machine]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let exported = self.exported().await;
        for document in documents {
            assert_eq!(exported[document["path"].as_str().unwrap()], document["text"].as_str().unwrap());
        }
        self.heard("has overwritten the lock, the disk key or the allocation of the machine").await;
    }

    /// Returns all stored documents, as in a checkout of a repository.
    async fn checkout(&self) -> Vec<Value> {
        self.exported().await.iter().map(|(path, text)| document(path, text)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_copy_does_not_remove_a_lock() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    server.applied(&[]).await;
    let checkout = server.checkout().await;
    let lock = format!("/v1/machine/{ONE}/lock");
    assert_eq!(server.v1("POST", &lock, &json!({"reason": "holds the only copy"})).await.status, 200);
    server.refuses_undoing(&checkout, "would be unlocked; the reason of the lock is: holds the only copy").await;
    // The current copy can be applied with changes, and adds documents.
    let mut current = server.checkout().await;
    current.push(document("sizes/c9.yaml", "id: c9\nconstraints: [{type: cores, min: 9, max: 9}]\n"));
    server.applied(&current).await;
    let unknown = server.apply(&checkout, &json!({"overwrite": ["on"]})).await;
    assert!(unknown.status == 400 && unknown.text().contains("contain no machine"), "{}", unknown.text());
    server.overwrites(&checkout, "one").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_copy_does_not_remove_an_installed_allocation() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    server.applied(&[]).await;
    let current = server.exported().await["machines/one.yaml"].clone();
    let (head, _) = current.split_once("allocation:").unwrap();
    let outdated = [document("machines/one.yaml", head)];
    // An allocation that is not in use can be removed and added.
    server.applied(&outdated).await;
    server.applied(&[document("machines/one.yaml", &current)]).await;
    server.installed().await;
    server.refuses_undoing(&outdated, "allocation a1 would be removed or replaced, but the machine is installed").await;
    let replaced = [document("machines/one.yaml", &current.replace("id: a1", "id: a2"))];
    server.refuses_undoing(&replaced, "allocation a1 would be removed or replaced").await;
    let order = server.order("debian-12").await;
    server.refuses_undoing(&outdated, "but the machine has an order for a reinstall").await;
    assert_eq!(server.listed().await["order"]["id"], json!(order));
    server.overwrites(&outdated, ONE).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_copy_does_not_allocate_a_freed_machine() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    server.applied(&[]).await;
    server.installed().await;
    let checkout = server.checkout().await;
    let freed = server.v1("DELETE", &format!("/v1/machine/{ONE}/free"), &Value::Null).await;
    assert_eq!(freed.status, 200, "{}", freed.text());
    server.refuses_undoing(&checkout, "allocation a1 would be added again").await;
    server.overwrites(&checkout, "one").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_copy_does_not_replace_a_disk_key() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    server.applied(&[]).await;
    let checkout = server.checkout().await;
    let with_key =
        server.exported().await["machines/one.yaml"].clone() + "  disk_key: 0123456789abcdef0123456789abcdef\n";
    server.applied(&[document("machines/one.yaml", &with_key)]).await;
    server.refuses_undoing(&checkout, "the disk key would be removed").await;
    server.overwrites(&checkout, "one").await;
    server.stop().await;
}
