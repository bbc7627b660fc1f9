//! Page of a machine: text from the machine must not be interpreted as markup.

use super::super::plan_preview::inventory;
use super::*;
use control::agent_api_types::RegisterRequest;
use model::inventory::Inventory;

/// Text that, if it was not escaped, would end attributes, elements and comments, and execute a script.
const HOSTILE: &str = "\"'></pre></title><script>alert(1)</script><img src=x onerror=alert(2)>--&lt;";

/// Returns an inventory with this value in all strings that a machine chooses.
fn hostile() -> Inventory {
    let mut hostile = inventory();
    let set = |texts: &mut [&mut String]| texts.iter_mut().for_each(|text| HOSTILE.clone_into(text));
    let system = &mut hostile.system;
    set(&mut [&mut system.vendor, &mut system.product, &mut system.serial, &mut system.bios_vendor]);
    hostile.cpus.iter_mut().for_each(|cpu| set(&mut [&mut cpu.model, &mut cpu.vendor]));
    for disk in &mut hostile.disks {
        set(&mut [&mut disk.model, &mut disk.serial, &mut disk.vendor, &mut disk.transport]);
        for part in disk.table.iter_mut().flat_map(|table| &mut table.partitions) {
            HOSTILE.clone_into(&mut part.label);
            part.signatures.iter_mut().for_each(|found| set(&mut [&mut found.label, &mut found.kind]));
        }
    }
    hostile
}

fn assert_harmless(path: &str, page: &str) {
    for markup in ["<script>", "<img src=x", "</title><script", "'></pre>", "\"'>"] {
        assert!(!page.contains(markup), "{path}: {markup} in {page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_machine_text_is_escaped_in_pages() {
    let dir = with_images();
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "locked: \"<script>alert(1)</script>\"\n");
    std::fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
    std::fs::write(dir.path().join("images/bad.yaml"), "id: [<script>alert(1)</script>\n").unwrap();
    let server = Running::start_in(dir).await;
    let browser = server.browser().await;
    for id in [ONE, STRANGER] {
        let token = token_of(&server.boot(&format!("uuid={id}")).await.text());
        let mut register = RegisterRequest::new(id.to_owned(), hostile());
        HOSTILE.clone_into(&mut register.agent);
        HOSTILE.clone_into(&mut register.bios.vendor);
        let register = serde_json::to_value(register).unwrap();
        let answer = server.call(&token, "POST", "/v1/machine/register", &register).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = json!({ "event": "Installing", "message": HOSTILE, "step": HOSTILE });
        assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{id}/event"), &event).await.status, 200);
        let path = format!("/machines/{id}");
        let page = browser.text(&path).await;
        assert_harmless(&path, &page);
        assert!(page.contains("&lt;script&gt;alert(1)"), "it is shown as it is: {page}");
        if id == ONE {
            let proof = json!({ "object": HOSTILE, "before": { HOSTILE: HOSTILE }, "after": {} });
            let report = json!({ "success": true, "message": HOSTILE, "allocationuuid": "a1", "plan": HOSTILE,
                "timings": [{ "step": HOSTILE, "seconds": 1.0 }], "kept": [proof],
                "erased": [{ "device": HOSTILE, "serial": HOSTILE, "method": "discard", "proof": HOSTILE, "seconds": 1.0 }],
                "burn": { "bytes": 1, "seconds": 1.0, "shares": [{ "stage": HOSTILE, "percent": 1 }] } });
            server.allocated(ONE, &token).await;
            assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
            assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await.status, 200);
        }
    }
    let query =
        serde_urlencoded::to_string([("q", HOSTILE), ("phase", HOSTILE), ("image", HOSTILE), ("give_up", HOSTILE)]);
    let query = query.unwrap();
    for path in PAGES {
        for path in [path.to_owned(), format!("{path}?{query}")] {
            let answer = browser.get(&path).await;
            assert!([200, 400].contains(&answer.status), "{path}: {}", answer.text());
            if answer.headers["content-type"].starts_with("text/html") {
                assert_harmless(&path, &answer.text());
            }
        }
    }
    let page = browser.text(&format!("/machines/{ONE}")).await;
    for words in ["CHANGED", "Duration by step", "Plan, as printed", "Erased disks"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// Checks the pages of layouts, images and orders after the installation of machine one.
async fn assert_overviews(browser: &Browser<'_>) {
    for (path, words) in [
        ("/layouts", "/layouts/default/picture.svg"),
        ("/layouts/default/picture.svg", "Layout default"),
        ("/images", "<a href=\"/?q=debian-12\">1 machine</a>"),
        ("/images", "<td class=\"number\">10 B</td>"),
        ("/orders", "0 open orders"),
    ] {
        let text = browser.text(path).await;
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(browser.get("/layouts/nobody/picture.svg").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_page_shows_hardware_plan_events_and_log() {
    let server = Running::start_in(with_images()).await;
    server.until_digests_are_known().await;
    let browser = server.browser().await;
    let path = format!("/machines/{ONE}");
    assert!(browser.text(&path).await.contains("the machine has never registered"));
    assert_eq!(browser.get(&format!("/machines/{STRANGER}")).await.status, 404);
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let event = json!({ "event": "Installing", "message": "both ends", "step": "storage.wipe", "seconds": 1.5 });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    let page = browser.text(&path).await;
    let disk = &inventory().disks[0];
    let words =
        ["Data lost", "Preserved", "point of no return", "<svg class=\"disk\"", "storage.wipe", "both ends", "WIPE"];
    for words in words.into_iter().chain([disk.serial.as_str()]) {
        assert!(page.contains(words), "{words}: {page}");
    }
    // After the point of no return, the page still shows the plan that the agent carries out.
    assert_eq!(server.begin(&token, "").await, 200);
    assert!(browser.text(&path).await.contains("── point of no return"));
    let diagram = format!("{path}/layout.svg");
    assert_eq!(browser.get(&diagram).await.status, 404, "the machine is not installed yet");
    let report = json!({ "success": true, "message": "m", "allocationuuid": "a1", "plan": "  1  image.reach\n\nexactly  so",
        "timings": [{ "step": "storage.wipe", "seconds": 1.5 }, { "step": "image.burn", "seconds": 4.5 }] });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await.status, 200);
    let page = browser.text(&path).await;
    for words in [
        "  1  image.reach\n\nexactly  so",
        "75 %",
        "width=\"25.00%\"",
        "Reinstall…",
        "Timeline of the last installation",
        "<tr class=\"good\"><td><span class=\"word\">storage.wipe</span>",
        "<h2>History</h2>",
        "Console log",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("Data lost"), "no installation is ordered: {page}");
    let headings = ["<h2>Disks, as installed</h2>", "<h2>Disks, as registered before the installation</h2>"];
    let positions = headings.map(|heading| page.find(heading).unwrap_or_else(|| panic!("{heading}: {page}")));
    assert!(positions[0] < positions[1] && page.contains(&format!("src=\"{diagram}\"")), "{page}");
    let drawn = browser.get(&diagram).await;
    assert_eq!((drawn.status, drawn.headers["content-type"].as_str()), (200, "image/svg+xml"), "{}", drawn.text());
    assert!(drawn.headers["content-security-policy"].contains("default-src 'none'") && drawn.text().contains("sda"));
    assert_overviews(&browser).await;
}
