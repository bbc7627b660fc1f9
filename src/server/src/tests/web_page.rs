//! Tests of the web page: authorization, contents, and escaping of text from machines.

mod allocate;
mod bulk_actions;
mod bulk_file_changes;
mod file_editor;
mod live_updates;
mod machine;
mod machine_actions;
mod page_permissions;
mod rack_plan;
mod reinstall;
mod rollouts;
mod site_objects;

use super::plan_preview;
use super::reinstall::with_images;
use super::*;

/// Browser with a session cookie.
pub(super) struct Browser<'a> {
    server: &'a Running,
    cookie: String,
}

impl Running {
    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, &[&[("Accept", "text/html")], headers].concat(), "").await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], fields: &[(&str, &str)]) -> Answer {
        let body = serde_urlencoded::to_string(fields).unwrap();
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        self.ask("POST", path, &[&kind, headers].concat(), &body).await
    }

    pub(super) async fn browser(&self) -> Browser<'_> {
        self.browser_with(&self.operator()).await
    }

    pub(super) async fn browser_with(&self, token: &str) -> Browser<'_> {
        let answer = self.post("/login", &[], &[("token", token)]).await;
        assert_eq!((answer.status, answer.headers["location"].as_str()), (303, "/"), "{}", answer.text());
        let cookie = answer.headers["set-cookie"].clone();
        for word in ["; HttpOnly", "; SameSite=Strict", "; Path=/"] {
            assert!(cookie.contains(word), "{cookie}");
        }
        assert!(!cookie.contains("Secure"), "over plain http it would never be sent back: {cookie}");
        Browser { server: self, cookie: cookie.split(';').next().unwrap().to_owned() }
    }
}

impl Browser<'_> {
    /// Returns a browser with the same cookie for requests to another server.
    pub(super) fn at<'a>(&self, server: &'a Running) -> Browser<'a> {
        Browser { server, cookie: self.cookie.clone() }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.server.get(path, &[("Cookie", &self.cookie)]).await
    }

    pub(super) async fn text(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.text()
    }

    /// Returns the form token that the pages of this session contain.
    async fn token(&self) -> String {
        let page = self.text("/").await;
        let (_, rest) = page.split_once("name=\"form\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    pub(super) async fn log_out(&self) {
        let token = self.token().await;
        assert_eq!(self.post("/logout", &[], &[("form", &token)]).await.status, 303);
    }

    pub(super) async fn post(&self, path: &str, headers: &[(&str, &str)], fields: &[(&str, &str)]) -> Answer {
        self.server.post(path, &[&[("Cookie", self.cookie.as_str())], headers].concat(), fields).await
    }
}

/// Paths of all pages that require a login.
const PAGES: [&str; 17] = [
    "/",
    "/orders",
    "/rollouts",
    "/plan",
    "/layouts",
    "/layouts/default/picture.svg",
    "/images",
    "/sizes",
    "/templates",
    "/volumes",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001/log",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001/row",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001/reinstall",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001/actions",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0001/file",
    "/machines/4c4c4544-0051-3010-8052-b4c04f4d0002/allocate",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_require_a_login() {
    let server = Running::start_in(with_images()).await;
    for path in PAGES {
        for cookie in ["", "drophammer=", "drophammer=0000"] {
            let answer = server.get(path, &[("Cookie", cookie)]).await;
            assert_eq!((answer.status, answer.headers["location"].as_str()), (303, "/login"), "{path}");
        }
    }
    assert_eq!(server.get("/events", &[]).await.status, 401);
    // A machine's token also cannot be used for a login.
    let token = server.token(ONE).await;
    assert_eq!(server.post("/login", &[], &[("token", &token)]).await.status, 401);
    let answer = server.post("/login", &[], &[("token", "wrong")]).await;
    assert_eq!(answer.status, 401);
    assert!(answer.text().contains("wrong token (DH-101)") && !answer.headers.contains_key("set-cookie"));
    server.heard("entered a wrong token on the login page").await;
    let elsewhere = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(server.post("/login", &elsewhere, &[("token", &server.operator())]).await.status, 403);

    let browser = server.browser().await;
    for path in PAGES {
        browser.text(path).await;
    }
    // Only a form on a page of this session can end the session.
    for (headers, token) in [(&[][..], "x".to_owned()), (&[("Origin", "http://evil")], browser.token().await)] {
        assert_eq!(browser.post("/logout", headers, &[("form", &token)]).await.status, 403);
    }
    browser.log_out().await;
    assert_eq!(browser.get("/").await.status, 303);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_wrong_tokens_block_the_login() {
    let server = Running::start().await;
    for _ in 0..10 {
        assert_eq!(server.post("/login", &[], &[("token", "wrong")]).await.status, 401);
    }
    let refused = server.post("/login", &[], &[("token", &server.operator())]).await;
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (429, "5"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_has_a_strict_content_security_policy() {
    let server = Running::start().await;
    let browser = server.browser().await;
    for path in ["/login", "/page.css", "/page.js", "/page.svg", "/machines/nobody/row"].into_iter().chain(PAGES) {
        let answer = browser.get(path).await;
        let policy = &answer.headers["content-security-policy"];
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert!(!policy.contains("script-src 'unsafe"), "{path}: {policy}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        let text = answer.text();
        if answer.headers["content-type"].starts_with("text/html") {
            assert_eq!(text.matches("<script").count(), text.matches("<script src=\"/page.js\" defer>").count());
            for inline in ["<style", " style=", " onclick=", "javascript:"] {
                assert!(!text.contains(inline), "{path}: {inline}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_pages_contain_their_code_once() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let form = browser.token().await;
    let fields = [("form", form.as_str()), ("name", "two"), ("action", "on")];
    for (answer, status, code) in [
        (browser.get("/machines/nobody").await, 404, "DH-609"),
        (browser.get("/layouts/nobody/picture.svg").await, 404, "DH-609"),
        (browser.post("/logout", &[], &[("form", "x")]).await, 403, "DH-600"),
        (browser.post(&format!("/machines/{TWO}/power"), &[], &fields).await, 409, "DH-612"),
        (browser.get("/plan?layout=nobody").await, 400, "DH-706"),
    ] {
        // The message with ids instead of names is only a tooltip.
        let text = answer.text();
        let visible =
            text.split_once("role=\"alert\" title=\"").map_or(&*text, |(_, rest)| rest.split_once('>').unwrap().1);
        assert_eq!((answer.status, visible.matches("(DH-").count()), (status, 1), "{text}");
        assert!(text.contains(&format!("({code})")), "{code}: {text}");
    }
}

/// OpenStack clients still receive the API versions at the root path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_path_serves_a_page_only_to_browsers() {
    let server = Running::start().await;
    let answer = server.ask("GET", "/", &[], "").await;
    assert_eq!(answer.json()["versions"][0]["id"], "v1");
    assert_eq!(server.ask("GET", "/", &[("Accept", "application/json")], "").await.status, 200);
    assert_eq!(server.get("/", &[]).await.status, 303);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_shows_phase_image_and_progress() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let page = browser.text("/").await;
    assert!(page.contains("2 machines") && page.contains("not installed") && page.contains("free"), "{page}");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let progress = json!({ "bytes": 100, "total_bytes": 200, "bytes_per_second": 31_000_000, "seconds_left": 3 });
    let event = json!({ "event": "Installing", "message": "", "step": "image.burn", "progress": progress });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    let row = browser.text(&format!("/machines/{ONE}/row")).await;
    for words in ["value=\"50\"", "50 %", "image.burn: 100 B", "31.0 MB/s", "3.0 s", "installing", "debian-12"] {
        assert!(row.contains(words), "{words}: {row}");
    }
    assert!(browser.text("/").await.contains(&row));
    // The filter works without JavaScript.
    let names = async |query: &str| {
        let page = browser.text(&format!("/?{query}")).await;
        ["one", "two"].map(|name| page.contains(&format!(">{name}</a>")))
    };
    assert_eq!(names("q=TWO").await, [false, true]);
    assert_eq!(names("phase=installing").await, [true, false]);
    assert_eq!(names("q=%22%3E%3Cscript%3E").await, [false, false]);
    assert_eq!(names("q=52:54:00:00:00:02").await, [false, true]);
    assert_eq!(names("q=installing+default").await, [true, false]);
    assert_eq!(names("q=installing+two").await, [false, false]);
    let page = browser.text("/?q=two&sort=-seen").await;
    for words in [
        "1 of 2 machines",
        "href=\"/?q=two\"",
        "href=\"/?q=two&amp;sort=seen\"",
        "aria-sort=\"descending\"",
        "href=\"/?q=two&amp;phase=free&amp;sort=-seen\"",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let crashed = json!({ "event": "Crashed", "message": "no answer" });
    assert!(browser.text("/").await.contains("<title>Machines · "));
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &crashed).await.status, 200);
    assert!(
        browser.text("/?q=two").await.contains("<title>(1) Machines · "),
        "failures that are filtered out are counted"
    );
    assert!(browser.text(&format!("/machines/{ONE}")).await.contains("<title>one: failed · "));
    server.report(ONE, &token, "a1", true).await;
    let row = browser.text(&format!("/machines/{ONE}/row")).await;
    assert!(row.contains("installed") && row.contains("hidden"), "{row}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_is_filtered_by_serial_number_and_address() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let names = async |text: &str| {
        let query = serde_urlencoded::to_string([("q", text)]).unwrap();
        let page = browser.text(&format!("/?{query}")).await;
        [">one</a>".to_owned(), format!("data-id=\"{STRANGER}\"")].map(|words| page.contains(&words))
    };
    let serial = plan_preview::inventory().disks[0].serial.clone();
    assert_eq!(names(&serial).await, [false, false]);
    server.registered(ONE).await;
    assert_eq!(names(&serial.to_lowercase()).await, [true, false]);
    assert_eq!(names("127.0.0.1").await, [true, false]);
    let token = token_of(&server.boot(&format!("uuid={STRANGER}")).await.text());
    let mut register = registration(STRANGER);
    register["hardware"]["nics"] = json!([{ "mac": "52:54:00:00:00:99", "name": "eth0" }]);
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
    assert_eq!(names("52:54:00:00:00:99").await, [false, true]);
    register["hardware"]["nics"] = json!([{ "mac": "52:54:00:00:00:98", "name": "eth0" }]);
    let token = token_of(&server.boot(&format!("uuid={STRANGER}")).await.text());
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
    assert_eq!(names("52:54:00:00:00:99").await, [false, false], "the last registration counts");
    assert_eq!(names("52:54:00:00:00:98").await, [false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_directory_problems_and_last_valid_machines() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let hidden = "<section class=\"problem\" id=\"problems\" role=\"alert\" hidden data-visible=\"5\">";
    assert!(browser.text("/").await.contains(hidden), "{}", browser.text("/").await);
    let eventually = async |words: &[&str]| {
        let began = std::time::Instant::now();
        loop {
            let page = browser.text("/").await;
            if words.iter().all(|words| page.contains(words)) {
                return page;
            }
            assert!(began.elapsed() < PATIENCE, "{words:?}: {page}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    server.write("machines/one.yaml", "id: [\n");
    let page = eventually(&["one.yaml", "its last good version stays in force"]).await;
    assert!(page.contains(">one</a>") && !page.contains(hidden));
    // The whole folder is missing.
    let machines = server.dir.path().join("machines");
    std::fs::rename(&machines, server.dir.path().join("away")).unwrap();
    let page = eventually(&["its last good files stay in force"]).await;
    assert!(page.contains(">one</a>") && page.contains(">two</a>"), "{page}");
    std::fs::rename(server.dir.path().join("away"), &machines).unwrap();
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a1", ""));
    eventually(&[hidden]).await;
}
