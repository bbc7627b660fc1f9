//! Machines that register very many devices: they are refused because of a limit, or planned without delaying others.

use super::web_page::Browser;
use super::*;
use control::agent_api_types::RegisterRequest;
use model::inventory::{Inventory, large_inventories};

impl Running {
    async fn registered_with(&self, id: &str, inventory: Inventory) -> Answer {
        let token = token_of(&self.boot(&format!("uuid={id}")).await.text());
        let register = serde_json::to_value(RegisterRequest::new(id.to_owned(), inventory)).unwrap();
        self.call(&token, "POST", "/v1/machine/register", &register).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_beyond_the_limits_is_refused_by_name() {
    let server = Running::start().await;
    for (inventory, words) in [
        (large_inventories::holders(5000), "5000 unlisted devices that are in use, but at most 4096 are supported"),
        (large_inventories::chain(1100), "1101 levels of stacked devices, but at most 1024"),
        (large_inventories::markers(65), "65 install markers, but at most 64"),
    ] {
        let answer = server.registered_with(ONE, inventory).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(answer.text().contains(words), "{}", answer.text());
    }
    let answer = server.registered_with(ONE, large_inventories::array(100)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.stop().await;
}

async fn outlook(browser: &Browser<'_>, id: &str) -> String {
    browser.text(&format!("/machines/{id}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_inventory_is_planned_while_others_are_served() {
    let server = Running::start().await;
    let answer = server.registered_with(ONE, large_inventories::towers(300)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let browser = server.browser().await;
    let preview = format!("/v1/machine/{ONE}/preview");
    let operator = server.operator();
    let (one, two, other, seen) = tokio::join!(
        outlook(&browser, ONE),
        outlook(&browser, ONE),
        outlook(&browser, TWO),
        server.call(&operator, "GET", &preview, &Value::Null),
    );
    for page in [one, two] {
        assert!(page.contains("Based on the registered inventory") || page.contains("Plan refused"), "{page}");
    }
    assert!(other.contains("two"), "{other}");
    assert_eq!(seen.status, 200, "{}", seen.text());
    server.stop().await;
}
