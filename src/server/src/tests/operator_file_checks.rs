//! Checks of valid and invalid files of the operator.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_files_are_reported_and_the_last_version_used() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let good = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    let cases = [
        (
            format!("{good}  hostnam: x\n"),
            "one.yaml:11:3: unknown field \\\"hostnam\\\"; did you mean \\\"hostname\\\"?",
        ),
        (
            good.replace("debian-12", "debian-13"),
            "image \\\"debian-13\\\" not found in images/; did you mean \\\"debian-12\\\"?",
        ),
        (good.replace("default", "lvm"), "one.yaml:9:21: layout \\\"lvm\\\" not found in layouts/; available: default"),
        ("id: [".to_owned(), "one.yaml:"),
    ];
    for (text, expected) in cases {
        server.write("machines/one.yaml", &text);
        server.heard(expected).await;
        assert!(server.heard.text().contains("(its last good version stays in force)"), "{}", server.heard.text());
        assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().id, "a1", "{expected}");
    }
    server.write("machines/one.yaml", &good);
    server.heard("all files are valid again").await;

    server.write("machines/copy.yaml", &good);
    let copy = server.dir.path().join("machines/copy.yaml").display().to_string();
    server.heard(&format!("one.yaml: {copy} also describes machine {ONE}: both files are ignored")).await;
    std::fs::remove_file(server.dir.path().join("machines/copy.yaml")).unwrap();
    server.write("machines/three.yaml", &format!("id: {STRANGER}\nmacs: ['52:54:00:00:00:01']\n"));
    server.heard(&format!("52:54:00:00:00:01 is also in the file of machine {ONE}")).await;
    server.write("images/gone.yaml", "id: gone\nfile: gone.tar\n");
    server.heard("gone.tar: No such file").await;
    server.write("layouts/bad.yaml", "id: bad\nfilesystem: []\n");
    server.heard("layouts/bad.yaml:2:1: ").await;
}

/// A layout or image whose file is invalid exists, so "not found" would be misleading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_to_an_invalid_file_is_reported_with_the_problem_of_that_file() {
    let server = Running::start().await;
    server.write("layouts/a.yaml", "id: lvm\nfilesystem: []\n");
    server.write("layouts/broken.yaml", "id: [\n");
    server.write("images/new.yaml", "id: debian-13\nfil: a.tar\n");
    let good = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    for (text, expected) in [
        (
            good.replace("default", "lvm"),
            "one.yaml:9:21: layout \\\"lvm\\\" cannot be used: layouts/a.yaml:1:1: filesystems: no ",
        ),
        (
            good.replace("default", "broken"),
            "one.yaml:9:21: layout \\\"broken\\\" cannot be used: layouts/broken.yaml:",
        ),
        (good.replace("debian-12", "debian-13"), "image \\\"debian-13\\\" cannot be used: images/new.yaml:2:1: "),
    ] {
        server.write("machines/one.yaml", &text);
        server.heard(expected).await;
    }
    server.installed().await;
    let refused = server.press(ONE, "debian-13", json!({})).await;
    let words = "image \\\"debian-13\\\" cannot be used: images/new.yaml:2:1: unknown field \\\"fil\\\"";
    assert!(refused.status == 400 && refused.text().contains(words), "{}", refused.text());
}
