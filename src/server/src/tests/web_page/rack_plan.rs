//! Plans of all machines on the web page: the same rows as in `drophammer site plan`, filters, and refused changes.

use super::*;
use drophammer::local_commands::site_plan::{PlanOptions, rack_output};

impl Running {
    /// Returns the rows and the summary that `drophammer site plan --json` prints.
    async fn site_plan(&self, image: Option<&str>) -> Value {
        let options = PlanOptions {
            dir: self.dir.path().to_owned(),
            image: image.map(str::to_owned),
            json: true,
            ..PlanOptions::default()
        };
        let (text, _) = tokio::task::spawn_blocking(move || rack_output(&options)).await.unwrap().unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the server has computed the digests of all images.
    pub(super) async fn until_digests_are_known(&self) {
        let began = std::time::Instant::now();
        loop {
            let images = self.v1("GET", "/v1/image", &Value::Null).await.json();
            if images.as_array().unwrap().iter().all(|image| image["ready"] != false) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{images}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_page_matches_site_plan() {
    let server = Running::start_in(with_images()).await;
    server.until_digests_are_known().await;
    let browser = server.browser().await;
    let page = browser.text("/plan").await;
    for words in ["the machine has never registered", "does not contain an allocation", "Data lost: 0 B on 0 disks"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("--inventories"), "an option of the command is not a remedy on the page: {page}");
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let page = browser.text("/plan").await;
    assert!(page.contains("the machine has never registered"), "the page shows recent plans again: {page}");
    let answer = browser.get("/plan?again=yes").await;
    assert_eq!((answer.status, answer.headers["location"].as_str()), (303, "/plan"));
    let page = browser.text("/plan").await;
    let expected = server.site_plan(None).await;
    let row = expected["machines"].as_array().unwrap().iter().find(|row| row["id"] == ONE).unwrap();
    assert_eq!(row["outcome"], "erases", "{row}");
    let lost = common::format::format_bytes(row["lost_bytes"].as_u64().unwrap());
    for words in [
        &format!("Data lost: {lost} on 1 disk"),
        &format!("wipes {}", row["disks"][0]["serial"].as_str().unwrap()),
        &format!("href=\"/machines/{ONE}#plan\""),
        "loses data",
        "The duration of the installations is unknown.",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(browser.text(&format!("/machines/{ONE}")).await.contains("id=\"plan\""));
    let names = async |query: &str| {
        let page = browser.text(&format!("/plan?{query}")).await;
        ["one", "two"].map(|name| page.contains(&format!(">{name}</a>")))
    };
    for (query, expected) in [
        ("", [true, true]),
        ("verdict=erases", [true, false]),
        ("verdict=nothing", [false, true]),
        ("verdict=refused", [false, false]),
        ("q=TW", [false, true]),
        ("q=%3Cscript%3E", [false, false]),
        ("page=99", [true, true]),
    ] {
        assert_eq!(names(query).await, expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planned_image_shows_outdated_forecast_without_ordering() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let page = browser.text("/plan").await;
    assert!(page.contains("installed with debian-12; no reinstall is ordered"), "{page}");
    let page = browser.text("/plan?image=debian-13").await;
    for words in ["outdated", "debian-13", "loses data", &format!("href=\"/machines/{ONE}/reinstall?image=debian-13\"")]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    let expected = server.site_plan(Some("debian-13")).await;
    let lost = common::format::format_bytes(expected["summary"]["lost_bytes"].as_u64().unwrap());
    assert!(page.contains(&format!("Data lost: {lost} on")), "{lost}: {page}");
    assert!(server.listed().await["order"].is_null());
    for (query, words) in [
        ("image=debian-99", "image &quot;debian-99&quot; not found in images/"),
        ("layout=none", "layout &quot;none&quot; not found in layouts/"),
    ] {
        let answer = browser.get(&format!("/plan?{query}")).await;
        assert!(answer.status == 400 && answer.text().contains(words), "{words}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_reworded_on_page_and_site_plan() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    server.write("layouts/default.yaml", &LAYOUT.replace("/dev/sda", "/dev/sdx"));
    let began = std::time::Instant::now();
    let page = loop {
        let page = browser.text("/plan").await;
        if page.contains("refused") {
            break page;
        }
        assert!(began.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let printed = server.site_plan(None).await.to_string();
    let machine = browser.text(&format!("/machines/{ONE}")).await;
    for text in [page, printed, machine] {
        assert!(text.contains("device /dev/sdx does not exist on this machine"), "{text}");
        assert!(!text.contains("on given hardware") && !text.contains("device:/dev/sdx"), "{text}");
    }
}
