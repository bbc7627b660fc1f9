//! Unprivileged processes of an installed machine that impersonate the machine. They know its UUID, its MACs and its
//! address.

use super::boot_network_attackers::MACHINE_ADDRESS;
use super::reinstall::with_images;
use super::secret_release::with_secrets;
use super::*;
use tokio::net::TcpSocket;

/// First port that Linux assigns automatically (`ip_local_port_range`). In these tests, lower ports represent
/// privileged processes.
const FIRST_UNPRIVILEGED_PORT: u16 = 32_768;

/// Process on the machine that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Privileged,
    Unprivileged,
}

pub(super) fn strict() -> HostEnvironment {
    HostEnvironment { first_unprivileged_port: FIRST_UNPRIVILEGED_PORT, ..silent() }
}

impl Running {
    /// Restarts the server with checks of source ports.
    pub(super) async fn restarted_strict(self, change: impl FnOnce(&mut ServerConfig)) -> Running {
        let dir = self.stop().await;
        let mut options = options(dir.path());
        change(&mut options);
        Running::start_with(dir, &options, &strict(), 10_000).await
    }

    pub(super) async fn sent_by(
        &self,
        process: Process,
        method: &str,
        path: &str,
        token: &str,
        body: &Value,
    ) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        if process == Process::Unprivileged {
            return self.from(MACHINE_ADDRESS, method, path, token, &text).await;
        }
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            let port = fastrand::u16(20_000..FIRST_UNPRIVILEGED_PORT);
            if socket.bind(format!("{MACHINE_ADDRESS}:{port}").parse().unwrap()).is_ok() {
                return self.over(socket, method, path, token, &text).await;
            }
        }
    }

    pub(super) async fn register_as(&self, process: Process, token: &str) -> Answer {
        self.sent_by(process, "POST", "/v1/machine/register", token, &registration(ONE)).await
    }

    /// Requests a boot, and returns its token.
    pub(super) async fn requested(&self) -> String {
        token_of(&self.boot_from(MACHINE_ADDRESS, ONE).await.text())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprivileged_process_cannot_register_as_its_machine() {
    let server = Running::start_in(with_secrets()).await;
    server.installed().await;
    server.order("debian-12").await;
    let server = server.restarted_strict(|_| ()).await;
    let token = server.requested().await;
    let refused = server.register_as(Process::Unprivileged, &token).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("does not prove that a privileged process sent the request"), "{}", refused.text());
    server.heard(&format!("machine {ONE}: cannot register from {MACHINE_ADDRESS}: source port ")).await;
    let machine = format!("/v1/machine/{ONE}");
    for path in [machine.clone(), format!("{machine}/wait?seconds=0")] {
        assert_eq!(server.sent_by(Process::Unprivileged, "GET", &path, &token, &Value::Null).await.status, 401);
    }
    // An unprivileged process neither receives the command line of the order, nor uses up an attempt.
    let attempts = server.listed().await["order"]["attempts"].clone();
    let boot = format!("/boot.json?uuid={ONE}");
    for _ in 0..5 {
        let refused = server.sent_by(Process::Unprivileged, "GET", &boot, "", &Value::Null).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(!refused.text().contains("drophammer.token="), "{}", refused.text());
    }
    assert_eq!(server.listed().await["order"]["attempts"], attempts);

    // Requests of the agent, and of `drophammer reinstall` as root, are accepted.
    assert_eq!(server.register_as(Process::Privileged, &token).await.status, 200);
    assert_eq!(server.sent_by(Process::Unprivileged, "GET", &machine, &token, &Value::Null).await.status, 200);
    let answer = server.sent_by(Process::Privileged, "GET", &boot, "", &Value::Null).await;
    assert!(answer.status == 200 && answer.text().contains("drophammer.token="), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprivileged_process_neither_moves_nor_replaces_a_boot() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.order("debian-13").await;
    let server = server.restarted_strict(|_| ()).await;
    let token = server.requested().await;
    assert_eq!(server.register_as(Process::Privileged, &token).await.status, 200);
    // On this server, boots count as silent immediately.
    let other = server.requested().await;
    assert_eq!(server.register_as(Process::Unprivileged, &other).await.status, 403);
    let machine = format!("/v1/machine/{ONE}");
    assert_eq!(server.sent_by(Process::Privileged, "GET", &machine, &token, &Value::Null).await.status, 200);
    let moved = server.from("127.0.0.9", "POST", "/v1/machine/register", &token, &registration(ONE).to_string()).await;
    assert_eq!(moved.status, 403);
    assert_eq!(server.sent_by(Process::Privileged, "GET", &machine, &token, &Value::Null).await.status, 200);
    assert_eq!(server.register_as(Process::Privileged, &other).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_must_forward_a_privileged_source_port() {
    let proxied = |options: &mut ServerConfig| options.proxies = vec!["127.0.0.1".parse().unwrap()];
    let server = Running::start_in(with_images()).await.restarted_strict(proxied).await;
    let register = async |server: &Running, forwarded: &str| {
        let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
        let headers = [("X-Forwarded-For", forwarded), ("Authorization", &format!("Bearer {token}"))];
        server.ask("POST", "/v1/machine/register", &headers, &registration(ONE).to_string()).await
    };
    for (forwarded, reason) in [
        ("10.0.0.7", "the proxy does not forward the source port"),
        ("10.0.0.7:700, 10.0.0.7", "the proxy does not forward the source port"),
        ("[10.0.0.7]:40000", "source port 40000 does not prove"),
    ] {
        let refused = register(&server, forwarded).await;
        assert!(refused.status == 403 && refused.text().contains(reason), "{forwarded}: {}", refused.text());
        assert!(refused.text().contains("--any-source-port"), "{}", refused.text());
    }
    for forwarded in ["10.0.0.7:700", "evil, [10.0.0.7]:700"] {
        assert_eq!(register(&server, forwarded).await.status, 200, "{forwarded}");
    }
    // With `any_source_port`, the operator permits registrations from all ports.
    let server = server.restarted_strict(|options| options.any_source_port = true).await;
    let token = server.requested().await;
    assert_eq!(server.register_as(Process::Unprivileged, &token).await.status, 200);
}
