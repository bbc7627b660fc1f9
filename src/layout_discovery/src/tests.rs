//! Compares the discovered layouts with recorded machines of other installers. `expected.yaml` was written by hand from
//! the documentation of the installer.

mod recorded_installations;
