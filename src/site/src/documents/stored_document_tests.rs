//! Loading of documents that are not files.

use super::*;
use crate::ganeti_os_definitions::{OsDefinitions, VerifyCache};
use crate::loader::SiteLoader;
use store::image_digest_cache::ImageDigests;

const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

fn set(revision: i64, documents: &[(&str, &str)]) -> DocumentSet {
    let stored = |(path, text): &(&str, &str)| StoredDocument {
        path: (*path).to_owned(),
        content: DocumentContent { text: (*text).to_owned(), executable: path.ends_with("/create") },
        revision,
    };
    DocumentSet::new(revision, documents.iter().map(stored))
}

#[test]
fn stored_documents_replace_files_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let machines = dir.path().join("machines");
    std::fs::create_dir(&machines).unwrap();
    std::fs::write(machines.join("file.yaml"), "file").unwrap();
    let files = SiteDocuments::of_directory(dir.path());
    assert_eq!(files.list_yaml(&machines).unwrap(), BTreeSet::from([machines.join("file.yaml")]));
    assert_eq!(files.read(&machines.join("file.yaml")).unwrap(), "file");
    assert!(files.stored().is_none() && files.list_stored_folders(&machines).is_none());

    let documents = [
        ("machines/a.yaml", "a"),
        ("machines-2/b.yaml", "b"),
        ("os/web/create", "#!/bin/sh\n"),
        ("os/web/hooks/one", "1"),
        ("os/parameters.yaml", "{}"),
    ];
    let stored = SiteDocuments::of_set(dir.path(), set(3, &documents));
    assert_eq!(stored.list_yaml(&machines).unwrap(), BTreeSet::from([machines.join("a.yaml")]));
    assert_eq!(stored.list_yaml(&dir.path().join("sizes")).unwrap(), BTreeSet::new());
    assert_eq!(stored.read(&machines.join("a.yaml")).unwrap(), "a");
    let missing = stored.read(&machines.join("file.yaml")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(stored.stamp(&machines.join("file.yaml")).is_err());
    let stamp = stored.stamp(&machines.join("a.yaml")).unwrap();
    let later = SiteDocuments::of_set(dir.path(), set(4, &documents)).stamp(&machines.join("a.yaml")).unwrap();
    assert!(stamp != later && stamp.size == 1);

    let os = dir.path().join("os");
    assert_eq!(stored.list_stored_folders(&os), Some(BTreeSet::from(["web".to_owned()])));
    let (files, _) = stored.stored_definition(&os.join("web")).unwrap();
    let files: Vec<_> = files.iter().map(|(path, file)| (path.as_str(), file.executable)).collect();
    assert_eq!(files, [("create", true), ("hooks/one", false)]);
}

#[test]
fn loader_reads_stored_documents_and_reports_problems() {
    let dir = tempfile::tempdir().unwrap();
    let state = crate::test_store::open(dir.path());
    let good = format!("id: {MACHINE_ID}\nname: one\n");
    let documents = [
        ("machines/one.yaml", good.as_str()),
        ("machines/two.yaml", "id: 1\nnam: x\n"),
        ("images/d.yaml", "id: d\nurl: http://h/d.tar\n"),
        ("image-states.yaml", "hidden: [d]\n"),
    ];
    let source = SiteDocuments::of_set(dir.path(), set(1, &documents));
    let definitions = OsDefinitions::new(dir.path().join("os"), VerifyCache::disabled());
    let loader = SiteLoader::new(dir.path(), ImageDigests::cached_only(state.clone()), definitions, state);
    let scan = loader.with_documents(&source).rescan().unwrap();
    assert!(scan.directory.find_machine(MACHINE_ID).is_some() && scan.directory.known.states.is_hidden("d"));
    let [problem] = &scan.problems[..] else { panic!("{:?}", scan.problems) };
    assert!(problem.starts_with(&format!("{}:", dir.path().join("machines/two.yaml").display())), "{problem}");
}
