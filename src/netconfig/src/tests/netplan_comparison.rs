//! Rendering for `scripts/compare-network`, which compares the effect of the files with that of netplan's files.

use super::*;

/// Reads the named documents in the file DROPHAMMER_NETWORK_DOCUMENTS, and writes `rendered.json` next to this file.
/// `rendered.json` contains the files for each network manager, or the problems of the document.
#[test]
#[ignore = "requires documents: run scripts/compare-network"]
fn renders_documents_of_the_comparison() {
    let path = PathBuf::from(std::env::var_os("DROPHAMMER_NETWORK_DOCUMENTS").unwrap());
    let documents: BTreeMap<String, Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let results = documents.iter().map(|(name, document)| (name, render_document(document)));
    let results: BTreeMap<&String, Value> = results.collect();
    fs::write(path.with_file_name("rendered.json"), serde_json::to_string_pretty(&results).unwrap()).unwrap();
}

fn render_document(document: &Value) -> Value {
    let network = match NetworkConfig::parse(document) {
        Ok(network) => network,
        Err(problems) => return json!({"refused": common::diagnostic::join_problems(&problems)}),
    };
    let misfits = network.check_nics(&nics());
    if !misfits.is_empty() {
        return json!({"refused": common::diagnostic::join_problems(&misfits)});
    }
    let files = |system| {
        let files: Vec<RenderedFile> = network.render(system, &nics());
        files.into_iter().map(|file| (file.path, Value::from(file.content))).collect::<Value>()
    };
    SYSTEMS.into_iter().map(|system| (system.name().to_owned(), files(system))).collect()
}
