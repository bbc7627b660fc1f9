//! The worker's way in, where tests are the program.

/// In place of `main`: see `verify::PROGRAM`. Only what other tests start has this variable.
#[test]
#[ignore = "is what other tests start"]
fn worker() {
    if std::env::var_os("OS_API_VERSION").is_some() {
        super::run_verify_worker();
    }
}
