//! The server is killed with `kill -9` during changes. After its restart, all acknowledged changes must exist. The
//! server runs in a separate process.

use super::reinstall::with_images;
use super::*;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

const DIR: &str = "DROPHAMMER_TEST_KILLED_DIR";

/// Main function of the server process. The test below runs it by starting this test program again.
#[test]
#[ignore = "the process of the test below"]
fn the_server_that_is_killed() {
    let dir = PathBuf::from(std::env::var_os(DIR).expect("started by the test below"));
    run_server(ServerConfig { any_source_port: true, ..options(&dir) }).unwrap();
}

struct Process {
    child: Child,
    client: Client,
}

/// Client of the server process, for requests until the process is killed.
#[derive(Clone)]
struct Client {
    address: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(dir: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::kill_durability::the_server_that_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let listening = lines.find_map(|line| {
            // The output of the test harness may precede the JSON in this line.
            let said: Value = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
            Some(said["listening"].as_str()?.to_owned())
        });
        let address = listening.expect("it listens").strip_prefix("http://").unwrap().to_owned();
        // Further output must be read, so that the process does not block.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, client: Client { address } }
    }
}

impl Client {
    /// Sends a request. Returns status and body, or an error if the server was killed.
    fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> std::io::Result<(u16, String)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
        let status = head.split(' ').nth(1).ok_or_else(cut)?;
        Ok((status.parse().unwrap(), body.to_owned()))
    }

    fn good(&self, method: &str, path: &str, token: &str, body: &Value) -> String {
        let (status, text) = self.ask(method, path, token, body).unwrap();
        assert_eq!(status, 200, "{method} {path}: {text}");
        text
    }

    fn install(&self) {
        let token = token_of(&self.good("GET", &format!("/boot.ipxe?uuid={ONE}"), "", &Value::Null));
        let path = format!("/v1/machine/{ONE}");
        self.good("POST", "/v1/machine/register", &token, &registration(ONE));
        self.good("GET", &format!("{path}/wait?seconds=60"), &token, &Value::Null);
        self.good("GET", &path, &token, &Value::Null);
        let begins = json!({ "allocationuuid": "a1", "order": "" });
        self.good("POST", &format!("{path}/point-of-no-return"), &token, &begins);
        let report = json!({ "success": true, "message": "m", "allocationuuid": "a1" });
        self.good("POST", &format!("{path}/report"), &token, &report);
    }

    /// Places an order that contains this number.
    fn order(&self, operator: &str, number: u32) -> std::io::Result<u16> {
        let body = json!({ "id": ONE, "imageid": "debian-13", "give_up": [number.to_string()] });
        Ok(self.ask("POST", &format!("/v1/machine/{ONE}/reinstall"), operator, &body)?.0)
    }

    /// Returns the number in the open order.
    fn ordered(&self, operator: &str) -> Option<u32> {
        let listed: Value = serde_json::from_str(&self.good("GET", "/v1/machines", operator, &Value::Null)).unwrap();
        let machine = listed.as_array().unwrap().iter().find(|machine| machine["id"] == ONE).unwrap();
        assert_eq!(machine["installed"], true, "{machine}");
        machine["order"]["give_up"][0].as_str().map(|number| number.parse().unwrap())
    }
}

#[test]
fn acknowledged_orders_survive_every_kill() {
    let dir = with_images();
    let mut random = fastrand::Rng::with_seed(13);
    let (mut acknowledged, mut under_way) = (None, None);
    for kill in 0..6 {
        let mut server = Process::start(dir.path());
        let client = server.client.clone();
        let operator = std::fs::read_to_string(dir.path().join("operator.token")).unwrap();
        let operator = operator.trim();
        if kill == 0 {
            client.install();
        }
        let known = client.ordered(operator);
        assert!(known == acknowledged || known == under_way, "{known:?}: {acknowledged:?} {under_way:?}");
        acknowledged = known;
        // Places one order, and then further orders until the server is killed.
        let mut next = acknowledged.unwrap_or_default() + 1;
        assert_eq!(client.order(operator, next).unwrap(), 200);
        acknowledged = Some(next);
        let pause = Duration::from_millis(random.u64(1..150));
        std::thread::scope(|scope| {
            let child = &mut server.child;
            scope.spawn(move || {
                std::thread::sleep(pause);
                child.kill().unwrap();
                child.wait().unwrap();
            });
            loop {
                next += 1;
                under_way = Some(next);
                match client.order(operator, next) {
                    Ok(status) => assert_eq!(status, 200),
                    Err(_) => break,
                }
                acknowledged = Some(next);
            }
        });
    }
    assert!(acknowledged >= Some(6));
}
