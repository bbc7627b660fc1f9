//! The worker's way in, where tests are the program.

use super::*;

/// In place of `main`: see `process::worker`. Nobody else runs a test without any environment.
#[test]
#[ignore = "is what other tests start"]
fn worker() {
    if std::env::vars_os().next().is_some() {
        return;
    }
    run_image_worker().unwrap();
    // Nothing else is to be done with so little power.
    process::exit(0);
}
