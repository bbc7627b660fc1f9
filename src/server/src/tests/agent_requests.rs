//! A machine's requests from boot to report, and their authorization.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_boots_registers_and_reports() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let register = json!({ "uuid": ONE.to_uppercase(), "hardware": { "memory": 1, "cpu_cores": 2, "disks": [], "nics": [] },
                           "bios": { "vendor": "", "version": "", "date": "" } });
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
    let machine = server.allocated(ONE, &token).await;
    assert_eq!((machine.id.as_str(), machine.name.as_str()), (ONE, "one"));
    let given = machine.allocation.unwrap();
    assert_eq!(
        (given.id.as_str(), given.hostname.as_str(), given.succeeded, given.reinstall),
        ("a1", "h", false, false)
    );
    assert_eq!(given.image.url, format!("http://{}/images/deb/debian%2012.tar.zst", server.address));
    assert_eq!(given.image.mirrors, ["http://m/d.tar"]);
    // SHA-256 of `0123456789`
    let digest = "sha256:84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
    assert_eq!(given.image.digest.as_deref(), Some(digest));
    assert_eq!(given.parse_layout().unwrap().layout, model::layout::read_yaml(LAYOUT).unwrap().layout);
    assert_eq!(given.filesystemlayout["disks"][0]["wipeonreinstall"], true, "canonical on the wire");
    assert_eq!(given.networks, json!([{"asn": 42}]));
    assert!(!given.created.is_empty());

    let event = json!({ "event": "Installing", "message": "x", "step": "image.burn", "progress": { "bytes": 1, "bytes_per_second": 2 } });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    server.heard("\"step\":\"image.burn\"").await;
    server.report(ONE, &token, "a1", false).await;
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token"));
    let token = server.token(ONE).await;
    server.report(ONE, &token, "a1", true).await;
    server.report(ONE, &token, "a1", true).await;
    let over = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
    assert!(
        over.status == 401 && over.text().contains("the token expired when the installation ended"),
        "{}",
        over.text()
    );
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("sanboot"));
    server.heard("boots its disk").await;
    let text = server.heard.text();
    assert_eq!(
        text.lines().filter(|line| line.contains("\"report\"")).count(),
        2,
        "the repeated one is not shown: {text}"
    );
    assert!(!text.contains("s3cret") && !text.contains(&token), "{text}");

    // The record of the installation survives a restart. An allocation with another id is a new installation.
    let server = Running::start_in(server.stop().await).await;
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("sanboot"));
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a2", ""));
    let installs = async || server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token");
    for _ in 0..500 {
        if installs().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the new allocation is not installed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machine_is_logged_with_its_hardware() {
    let server = Running::start().await;
    for (cores, disks, said) in [
        (
            1,
            json!([{ "name": "/dev/sda", "size": 9 }]),
            "1 core, 16 MiB, 1 disk, MACs 52:54:00:00:00:09; to use the machine, run `drophammer machine add ",
        ),
        (
            2,
            json!([]),
            "2 cores, 16 MiB, 0 disks, MACs 52:54:00:00:00:09; to use the machine, run `drophammer machine add ",
        ),
    ] {
        let nics = json!([{ "mac": "52:54:00:00:00:09", "name": "eth0" }]);
        let mut register = registration(STRANGER);
        register["hardware"] = json!({ "memory": 16 << 20, "cpu_cores": cores, "disks": disks, "nics": nics });
        let token = server.token(STRANGER).await;
        assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
        server.heard(said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_accepts_only_its_latest_token() {
    let server = Running::start().await;
    let stale = server.token(ONE).await;
    let own = server.token(ONE).await;
    let other = server.token(TWO).await;
    let unknown = server.token(STRANGER).await;
    let path = format!("/v1/machine/{ONE}");
    let bearer = |token: &str| format!("Bearer {token}");
    let cases = [
        (bearer(&own), 200),
        (format!("bearer {own}"), 200),
        (bearer(&stale), 401),
        (bearer(&other), 401),
        (bearer(&unknown), 401),
        (bearer(""), 401),
        (bearer(&own[..63]), 401),
        (bearer(&format!("{own}0")), 401),
        (format!("Basic {own}"), 401),
        (own.clone(), 401),
    ];
    for (header, expected) in cases {
        let answer = server.ask("GET", &path, &[("Authorization", &header)], "").await;
        assert_eq!(answer.status, expected, "{header}");
        if expected == 401 {
            let body: control::agent_api_types::ErrorBody = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(body.statuscode, 401);
            assert!(body.message.contains("token"), "{}", body.message);
        }
    }
    let register = json!({ "uuid": ONE, "hardware": { "memory": 1, "cpu_cores": 2, "disks": [], "nics": [] },
                           "bios": { "vendor": "", "version": "", "date": "" } })
    .to_string();
    let event = json!({ "event": "Alive", "message": "" }).to_string();
    let report = json!({ "success": true, "message": "" }).to_string();
    let calls = [
        ("GET", "".to_owned(), ""),
        ("GET", "/wait?seconds=0".to_owned(), ""),
        ("POST", "/event".to_owned(), event.as_str()),
        ("POST", "/point-of-no-return".to_owned(), "{\"allocationuuid\": \"a1\", \"order\": \"\"}"),
        ("POST", "/report".to_owned(), report.as_str()),
    ];
    for (method, rest, body) in &calls {
        for headers in [vec![], vec![("Authorization", bearer(&other))], vec![("Authorization", bearer(&stale))]] {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let answer = server.ask(method, &format!("{path}{rest}"), &headers, body).await;
            assert_eq!(answer.status, 401, "{method} {rest} {headers:?}");
        }
    }
    assert_eq!(server.ask("POST", "/v1/machine/register", &[], &register).await.status, 401);
    assert_eq!(
        server.ask("POST", "/v1/machine/register", &[("Authorization", &bearer(&other))], &register).await.status,
        401
    );
    // The server has accepted none of these reports, so the machine still boots the ramdisk.
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token"));
}
