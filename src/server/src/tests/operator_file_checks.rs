//! Valid and invalid files of the operator.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_files_are_named_and_the_last_good_version_counts() {
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
    server.heard(&format!("one.yaml: {copy} describes machine {ONE} too: both files are ignored")).await;
    std::fs::remove_file(server.dir.path().join("machines/copy.yaml")).unwrap();
    server.write("machines/three.yaml", &format!("id: {STRANGER}\nmacs: ['52:54:00:00:00:01']\n"));
    server.heard(&format!("52:54:00:00:00:01 is also in the file of machine {ONE}")).await;
    server.write("images/gone.yaml", "id: gone\nfile: gone.tar\n");
    server.heard("gone.tar: No such file").await;
    server.write("layouts/bad.yaml", "id: bad\nfilesystem: []\n");
    server.heard("layouts/bad.yaml:2:1: ").await;
}
