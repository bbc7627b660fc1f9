//! Scripts and files that machines load.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_script_identifies_machine_and_rejects_invalid_requests() {
    let server = Running::start().await;
    let base = format!("http://{}", server.address);
    let cases = [
        (format!("uuid={}&mac=52:54:00:00:00:02", TWO.to_uppercase()), TWO, "console=ttyS1"),
        (format!("uuid={STRANGER}&mac=52-54-00-00-00-02"), TWO, "console=ttyS1"),
        ("uuid=&mac=52:54:00:00:00:02".to_owned(), TWO, "console=ttyS1"),
        ("uuid=00000000-0000-0000-0000-000000000000&mac=52:54:00:00:00:02".to_owned(), TWO, "console=ttyS1"),
        (format!("uuid={STRANGER}&mac="), STRANGER, "console=tty0 console=ttyS0,115200n8"),
    ];
    for (query, id, consoles) in cases {
        let script = server.boot(&query).await.text();
        let token = token_of(&script);
        let arguments =
            format!("drophammer.url={base} drophammer.token={token} drophammer.machine={id} {consoles} panic=-1 quiet");
        assert_eq!(kernel_arguments(&script), arguments, "{query}");
        let loads = format!("goto failed\ninitrd --name initrd {base}/boot/initrd || goto failed\nboot ||\n");
        assert!(script.contains(&format!("kernel {base}/boot/vmlinuz ")) && script.contains(&loads), "{script}");
        assert_eq!(token.len(), 146);
    }
    let bad = [
        "",
        "uuid=&mac=",
        "mac=aa:bb:cc:dd:ee:ff",
        "uuid=00000000-0000-0000-0000-000000000000",
        "uuid=x%0Aboot",
        "uuid=${uuid}",
        &format!("uuid={STRANGER}%0Aboot"),
        &format!("uuid={STRANGER}&mac=52:54:00:00:00:02%20init=/bin/sh"),
        &format!("uuid={STRANGER}&uuid={ONE}"),
        "uuid=%FF%FE",
    ];
    for query in bad {
        let answer = server.boot(query).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert!(!answer.text().contains("#!ipxe"), "{query}");
    }
    for host in ["a b", "a/b", "h${x}", "u@h", "", "h:99999"] {
        let answer = server.ask("GET", &format!("/boot.ipxe?uuid={ONE}"), &[("Host", host)], "").await;
        assert_eq!(answer.status, 400, "{host}");
    }
    let start = server.ask("GET", "/start.ipxe", &[("Host", "install.rack:80")], "").await;
    assert!(
        start.text().contains("chain --replace http://install.rack:80/boot.ipxe?uuid=${uuid}&mac="),
        "{}",
        start.text()
    );
    let before = server.token(ONE).await;
    assert_eq!(server.ask("HEAD", &format!("/boot.ipxe?uuid={ONE}"), &[], "").await.status, 405);
    assert_eq!(server.call(&before, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_served_with_range_and_etag() {
    let server = Running::start().await;
    let path = "/images/deb/debian%2012.tar.zst";
    let whole = server.ask("GET", path, &[], "").await;
    assert_eq!((whole.status, whole.text().as_str()), (200, "0123456789"));
    assert_eq!(whole.headers["accept-ranges"], "bytes");
    let etag = whole.headers["etag"].as_str();
    let date = whole.headers["last-modified"].as_str();
    let old_date = "Mon, 01 Jan 2024 00:00:00 GMT";
    type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, u16, &'a str);
    let cases: Vec<Case> = vec![
        ("GET", vec![("Range", "bytes=3-")], 206, "3456789"),
        ("GET", vec![("Range", "bytes=0-0")], 206, "0"),
        ("GET", vec![("Range", "bytes=-2")], 206, "89"),
        ("GET", vec![("Range", "bytes=10-")], 416, ""),
        ("GET", vec![("Range", "bytes=x")], 416, ""),
        ("GET", vec![("Range", "bytes=0-1,3-4")], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", etag)], 206, "3456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", &whole.headers["etag"][1..])], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", date)], 206, "3456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", old_date)], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=10-"), ("If-Range", etag)], 416, ""),
        ("GET", vec![("Range", "bytes=10-"), ("If-Range", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("If-None-Match", etag)], 304, ""),
        ("GET", vec![("If-None-Match", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("If-Match", "\"other\"")], 412, ""),
        ("HEAD", vec![], 200, ""),
    ];
    for (method, headers, status, body) in cases {
        let answer = server.ask(method, path, &headers, "").await;
        assert_eq!(answer.status, status, "{headers:?}");
        if status < 300 {
            assert_eq!(answer.text(), body, "{headers:?}");
            assert_eq!(answer.headers["etag"], etag);
        }
        if status == 206 {
            assert_eq!(answer.headers["content-length"], body.len().to_string());
            assert!(answer.headers["content-range"].ends_with("/10"));
        }
    }
    assert_eq!(server.ask("HEAD", path, &[], "").await.headers["content-length"], "10");
    assert_eq!(server.ask("GET", "/boot/vmlinuz", &[], "").await.text(), "kernel");
    server.write("images/deb/debian 12.tar.zst.manifest.minisig", "signed");
    server.write("images/secret.manifest", "not served");
    server.write("images/deb/debian 12.tar.zst.manifest.manifest", "not served");
    assert_eq!(server.ask("GET", &format!("{path}.manifest.minisig"), &[], "").await.text(), "signed");
    let not_there = [
        "/boot/nothing",
        "/boot/..%2fsecret",
        "/boot/%2e%2e%2fsecret",
        "/boot/../secret",
        "/boot/.%2e/secret",
        "/boot/.hidden",
        "/boot/",
        "/boot/vmlinuz%00",
        "/images/secret",
        "/images/secret.manifest",
        "/images/deb/debian%2012.tar.zst.sha256",
        "/images/deb/debian%2012.tar.zst.manifest.manifest",
        "/images/debian.yaml",
        "/images/../secret",
        "/images/deb/..%2f..%2fsecret",
        "/images/deb%2f%2e%2e%2f%2e%2e%2fsecret",
        "/images//etc/passwd",
        "/images/%2fetc%2fpasswd",
        "/images/deb",
        "/drophammer.sqlite",
        "/operator.token",
        "/boot/../operator.token",
        "/machines/one.yaml",
        "/deploy-templates/one.yaml",
    ];
    for path in not_there {
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        assert_eq!(answer.json()["statuscode"], 404, "{path}");
    }

    // A new version of the file gets another ETag and, a moment later, another digest.
    let token = server.token(ONE).await;
    let first = server.allocated(ONE, &token).await.allocation.unwrap().image.digest;
    server.write("images/deb/debian 12.tar.zst", "0123456789abc");
    assert_ne!(server.ask("GET", path, &[], "").await.headers["etag"], etag);
    for _ in 0..500 {
        let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
        let digest = answer["allocation"]["image"]["digest"].as_str().map(str::to_owned);
        if digest.is_some() && digest != first {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the digest is still that of the old file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_followed_within_their_directory_only() {
    use std::os::unix::fs::symlink;
    let dir = directory();
    symlink("deb/debian 12.tar.zst", dir.path().join("images/within.tar")).unwrap();
    symlink("../secret", dir.path().join("images/out.tar")).unwrap();
    symlink("../secret", dir.path().join("boot/out")).unwrap();
    symlink("vmlinuz", dir.path().join("boot/within")).unwrap();
    for name in ["within", "out"] {
        std::fs::write(dir.path().join(format!("images/{name}.yaml")), format!("id: {name}\nfile: {name}.tar\n"))
            .unwrap();
    }
    let server = Running::start_in(dir).await;
    for (path, status) in
        [("/images/within.tar", 200), ("/images/out.tar", 404), ("/boot/within", 200), ("/boot/out", 404)]
    {
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(!answer.text().contains("not served"), "{path}");
    }
    server.heard("out.tar: the symbolic link points to a file outside of ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_with_encrypted_filesystems_loads_the_luks_ramdisk() {
    let dir = directory();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "layouts/vault.yaml",
        "id: vault\ndisks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, size: 900}, {number: 2, size: 0}]}]\n\
         filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /data, device: /dev/sda2, format: xfs, encrypted: {key: server}}]\n",
    );
    let key = "mF4ch0KFZ7gW1n0lmd2SgQ==";
    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &format!("  disk_key: {key}\n"));
    write("machines/one.yaml", &file.replace("filesystemlayout: default", "filesystemlayout: vault"));
    let server = Running::start_in(dir).await;
    let base = format!("http://{}", server.address);
    let script = async || server.boot(&format!("uuid={ONE}")).await.text();
    assert!(
        script().await.contains(&format!("initrd --name initrd {base}/boot/initrd ||")),
        "the script does not load the initrd"
    );
    server.heard("initrd-luks is missing or empty, so the agent will refuse").await;
    server.write("boot/initrd-luks", "both");
    assert!(script().await.contains(&format!("initrd --name initrd {base}/boot/initrd-luks ||")));
    assert_eq!(server.ask("GET", "/boot/initrd-luks", &[], "").await.text(), "both");
    let other = server.boot(&format!("uuid={TWO}")).await.text();
    assert!(other.contains("/boot/initrd ||"), "{other}");
    // Only the machine itself receives its key.
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(given.disk_key.is_empty() && !given.disk_key_withheld);
    let released = server.secrets(&token, "a1", "disk_key").await;
    assert_eq!((released.status, &released.json()["disk_key"]), (200, &json!(key)), "{}", released.text());
    let shown = server.call(&server.operator(), "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.text();
    assert!(!shown.contains(key), "{shown}");
}
