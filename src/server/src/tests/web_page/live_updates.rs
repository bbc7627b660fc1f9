//! Live updates of the web page: their number is limited, and they end with the session or the server.

use super::*;
use http_server::live_machine_states::WATCHERS_PER_USER;
use store::users::UserChange;
use tokio::net::tcp::OwnedReadHalf;

/// Response that is read as it arrives.
struct Watching {
    read: OwnedReadHalf,
    _write: tokio::net::tcp::OwnedWriteHalf,
    heard: String,
}

impl Browser<'_> {
    async fn watch(&self) -> Watching {
        let stream = TcpStream::connect(self.server.address).await.unwrap();
        let (read, mut write) = stream.into_split();
        let request = format!("GET /events HTTP/1.1\r\nHost: d\r\nCookie: {}\r\n\r\n", self.cookie);
        write.write_all(request.as_bytes()).await.unwrap();
        let mut watching = Watching { read, _write: write, heard: String::new() };
        watching.read_until("\r\n\r\n").await;
        watching
    }
}

impl Watching {
    /// Reads until these words were received.
    async fn read_until(&mut self, words: &str) {
        let read = async {
            while !self.heard.contains(words) {
                let mut bytes = [0; 4096];
                let count = self.read.read(&mut bytes).await.unwrap();
                assert!(count > 0, "it has ended: {}", self.heard);
                self.heard += &String::from_utf8_lossy(&bytes[..count]);
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("never: {words}"));
    }

    /// Reads until the end of the response.
    async fn ends(mut self) {
        let read = async { while self.read.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(PATIENCE, read).await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_updates_show_installation_progress() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let mut watching = browser.watch().await;
    assert!(watching.heard.contains("text/event-stream"), "{}", watching.heard);
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let progress = json!({ "bytes": 100, "total_bytes": 200, "bytes_per_second": 31_000_000, "seconds_left": 3 });
    let event = json!({ "event": "Installing", "message": "", "step": "image.burn", "progress": progress });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    watching.read_until("\"percent\":50").await;
    server.report(ONE, &token, "a1", true).await;
    watching.read_until("\"whole\":true").await;
    server.write("machines/two.yaml", "id: [\n");
    watching.read_until("event: directory").await;
    watching.read_until("two.yaml").await;
    // The updates end when the session ends.
    let form = browser.token().await;
    assert_eq!(browser.post("/logout", &[], &[("form", &form)]).await.status, 303);
    watching.ends().await;
}

/// Another server with the same database disables the user, or revokes the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_end_when_user_or_token_is_revoked() {
    let server = Running::start().await;
    for (name, is_disabled) in [("ann", true), ("bob", false)] {
        let browser = server.browser_with(&server.user(name, "viewer", &[]).await).await;
        let mut watching = browser.watch().await;
        let disabled = UserChange { disabled: Some(true), ..UserChange::default() };
        match is_disabled {
            true => drop(server.state.change_user(name, disabled).await.unwrap()),
            false => drop(server.state.revoke_user_token(name, "t").await.unwrap()),
        }
        watching.read_until("event: logout").await;
        watching.read_until("\r\n0\r\n\r\n").await;
        assert_eq!(browser.get("/events").await.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_do_not_receive_the_output_of_an_installer() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser_with(&server.user("vic", "viewer", &[]).await).await;
    let mut watching = browser.watch().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let event = json!({ "event": "Crashed", "message": "`/install.sh` exited with 3: hunter2\nhunter2" });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    watching.read_until("`/install.sh` exited with 3").await;
    watching.read_until("}]\n\n").await;
    assert!(!watching.heard.contains("hunter2"), "{}", watching.heard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_per_user_are_limited_and_released() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let mut all = Vec::new();
    for _ in 0..WATCHERS_PER_USER {
        let watching = browser.watch().await;
        assert!(watching.heard.contains("200 OK"), "{}", watching.heard);
        all.push(watching);
    }
    let refused = browser.get("/events").await;
    assert!(refused.status == 503 && refused.text().contains("already receive live updates"), "{}", refused.text());
    let other = server.browser_with(&server.user("vic", "viewer", &[]).await).await;
    assert!(other.watch().await.heard.contains("200 OK"), "another user is not affected");
    all.pop();
    let began = std::time::Instant::now();
    let mut again = browser.watch().await;
    while !again.heard.contains("200 OK") {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
        again = browser.watch().await;
    }
    // The shutdown of the server does not wait until the browsers close their live updates.
    server.stop().await;
    again.ends().await;
}
