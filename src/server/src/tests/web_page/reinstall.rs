//! Reinstall on the web page: the plan, the confirmation by the machine's name, and refusals.

use super::*;

pub(super) fn value<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("{name}: {page}"));
    rest.split('"').next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_form_requires_plan_and_machine_name() {
    let server = Running::start_in(with_images()).await;
    server.until_digests_are_known().await;
    let browser = server.browser().await;
    let path = format!("/machines/{ONE}/reinstall");
    let with_image = format!("{path}?image=debian-13");
    let refused = async |path: &str, words: &str| {
        let answer = browser.get(path).await;
        let text = answer.text();
        assert!(answer.status == 400 && text.contains(words) && !text.contains("button class=\"danger\""), "{text}");
        assert!(text.contains("(DH-"), "{text}");
    };
    refused(&with_image, "is not installed yet").await;
    server.installed().await;
    refused(&format!("{path}?image=debian-99"), "image &quot;debian-99&quot; not found in images/").await;
    // Without an inventory, no plan can be computed, and the page does not offer an order.
    let page = browser.text(&with_image).await;
    assert!(page.contains("the machine has never registered") && !page.contains("button class=\"danger\""), "{page}");

    assert_eq!(
        server.press(ONE, "debian-12", json!({ "without_marker": true, "give_up": ["QM00001"] })).await.status,
        200
    );
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let container = "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52";
    let options = format!("without_marker=yes&give_up=QM00001&leave_locked={container}");
    let page = browser.text(&format!("{with_image}&{options}")).await;
    for words in ["Data lost", "Preserved", "── point of no return", "Type <strong>one</strong>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert_eq!(server.listed().await["order"]["image"], "debian-12", "viewing the page does not order anything");
    let (form, shown) = (value(&page, "form"), value(&page, "shown"));
    let fields = |form, name, shown| {
        [
            ("form", form),
            ("image", "debian-13"),
            ("without_marker", "yes"),
            ("give_up", "QM00001"),
            ("leave_locked", container),
            ("name", name),
            ("shown", shown),
        ]
    };
    for (fields, headers, status, words) in [
        (fields("", "one", shown), &[][..], 403, "does not belong to your session"),
        (fields(form, "one", shown), &[("Origin", "http://evil")], 403, "does not belong to your session"),
        (
            fields(form, "two", shown),
            &[],
            400,
            "nothing was ordered: the name was not confirmed: &quot;two&quot; was typed",
        ),
        (fields(form, "", shown), &[], 400, "nothing was ordered"),
        (fields(form, "one", "sha256:0"), &[], 409, "the plan has changed"),
    ] {
        let answer = browser.post(&path, headers, &fields).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
        assert_eq!(answer.text().matches("(DH-").count(), 1, "{words}: {}", answer.text());
    }
    assert_eq!(server.post(&path, &[], &fields(form, "one", shown)).await.status, 401, "without the cookie");
    assert_eq!(server.listed().await["order"]["image"], "debian-12", "none of these requests ordered a reinstall");

    let answer = browser.post(&path, &[], &fields(form, "one", shown)).await;
    assert_eq!((answer.status, &answer.headers["location"]), (303, &format!("/machines/{ONE}")), "{}", answer.text());
    assert_eq!(server.listed().await["order"]["image"], "debian-13");
    let page = browser.text(&format!("/machines/{ONE}")).await;
    assert!(page.contains("Reinstall ordered") && page.contains("debian-13"), "{page}");
    assert!(page.contains(&format!("leaving {container} locked")), "{page}");
    assert!(browser.text("/orders").await.contains("1 open order"));

    let cancel = format!("/machines/{ONE}/cancel");
    assert_eq!(browser.post(&cancel, &[], &[]).await.status, 403);
    assert_eq!(browser.post(&cancel, &[], &[("form", form)]).await.status, 303);
    assert_eq!(server.listed().await["order"], Value::Null);
    assert_eq!(browser.post(&cancel, &[], &[("form", form)]).await.status, 404);
}

/// After an installation, the inventory is outdated. The page shows what the inventory contained, and states that the
/// disks have changed since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forecast_from_outdated_inventory_is_labeled() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let path = format!("/machines/{ONE}/reinstall");
    let page = browser.text(&format!("{path}?image=debian-13")).await;
    for words in [
        "the disks of the machine have changed since it registered",
        "Data lost",
        "every disk that the layout does not list",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let fields = ["form", "shown"].map(|name| (name, value(&page, name)));
    let fields = [&fields[..], &[("image", "debian-13"), ("name", "one")]].concat();
    // The machine is locked after the page with the plan was loaded.
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "locked: by me\n"));
    let began = std::time::Instant::now();
    while !browser.text(&format!("/machines/{ONE}")).await.contains("Locked: by me") {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = browser.post(&path, &[], &fields).await;
    let text = answer.text();
    assert!(answer.status == 400 && text.contains("is locked: by me") && text.contains("(DH-645)"), "{text}");
    assert_eq!(server.listed().await["order"], Value::Null);
}
