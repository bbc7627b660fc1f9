//! Permission to erase data at a server that does not know the newest documents in the shared database yet.

use super::reinstall::with_images;
use super::*;
use testing::postgres;

const PATH: &str = "machines/one.yaml";

/// Server whose documents are in a database, to which the test writes without informing the server.
struct SharedSite {
    server: Running,
    database: &'static postgres::PrivatePostgres,
    name: String,
}

impl SharedSite {
    async fn start(name: &str) -> Option<SharedSite> {
        let database = postgres::shared()?;
        let url = database.create_database(name);
        let server = several_servers::start(with_images(), &url).await;
        let stored = server.v1("POST", "/v1/documents/apply", &json!({ "documents": [] })).await;
        assert_eq!(stored.status, 200, "{}", stored.text());
        Some(SharedSite { server, database, name: name.to_owned() })
    }

    /// Stores a document like another server whose notification has not arrived yet.
    fn store(&self, path: &str, text: &str) {
        let update = format!(
            "INSERT INTO documents (path, text, executable, revision, changed, changed_by)
             VALUES ('{path}', $text${text}$text$, 0, 0, '', 'ann') ON CONFLICT (path) DO UPDATE SET text = excluded.text"
        );
        self.database.run_sql(&self.name, &update);
    }

    /// Makes the change of a document visible to the server.
    fn announce(&self, path: &str) {
        let update = format!(
            "UPDATE document_source SET revision = revision + 1;
             UPDATE documents SET revision = (SELECT revision FROM document_source) WHERE path = '{path}'"
        );
        self.database.run_sql(&self.name, &update);
    }

    async fn begins(&self, token: &str, order: &str) -> Answer {
        let path = format!("/v1/machine/{ONE}/point-of-no-return");
        self.server.call(token, "POST", &path, &json!({ "allocationuuid": "a1", "order": order, "disks": [] })).await
    }

    /// Checks that the request is refused temporarily while the server does not know the change, and permanently
    /// afterwards.
    async fn is_refused(&self, token: &str, order: &str, path: &str) {
        let answer = self.begins(token, order).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
        let install_state = self.server.state.read_install_state(ONE, "a1").await.unwrap();
        assert!(install_state.first.is_none() && !install_state.order.is_some_and(|order| order.started));
        self.announce(path);
        let began = std::time::Instant::now();
        while self.begins(token, order).await.status != 409 {
            assert!(began.elapsed() < PATIENCE, "{}", self.server.heard.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_allocation_is_not_installed_by_an_outdated_server() {
    let Some(site) = SharedSite::start("outdated1").await else { return };
    let token = site.server.token(ONE).await;
    site.server.allocated(ONE, &token).await;
    let file = site.server.file(PATH);
    let (freed, _) = file.split_once("allocation:").unwrap();
    site.store(PATH, freed);
    site.is_refused(&token, "", PATH).await;
    assert!(site.server.state.read_install_state(ONE, "a1").await.unwrap().first.is_none());
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blacklisted_image_is_not_installed_by_an_outdated_server() {
    let Some(site) = SharedSite::start("outdated2").await else { return };
    site.server.installed().await;
    let order = site.server.order("debian-13").await;
    let token = site.server.token(ONE).await;
    site.server.allocated(ONE, &token).await;
    site.store("image-states.yaml", "blacklisted: [debian-13]\n");
    site.is_refused(&token, &order, "image-states.yaml").await;
    // Without the change, the reinstall starts.
    site.store("image-states.yaml", "blacklisted: []\n");
    site.announce("image-states.yaml");
    let began = std::time::Instant::now();
    while site.begins(&token, &order).await.status != 200 {
        assert!(began.elapsed() < PATIENCE, "{}", site.server.heard.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_layout_is_not_applied_by_an_outdated_server() {
    let Some(site) = SharedSite::start("outdated3").await else { return };
    let token = site.server.token(ONE).await;
    site.server.allocated(ONE, &token).await;
    let path = "layouts/default.yaml";
    site.store(path, &LAYOUT.replace("label: root}]\n", "label: system}]\n"));
    site.is_refused(&token, "", path).await;
    site.server.stop().await;
}
