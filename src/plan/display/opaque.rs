//! Objects whose content was not seen, with reason and remedy.

use crate::inventory::OpaqueObject;
use std::fmt;

pub fn opaque(f: &mut fmt::Formatter<'_>, objects: &[OpaqueObject]) -> fmt::Result {
    if objects.is_empty() {
        return Ok(());
    }
    writeln!(f, "not looked into:")?;
    for object in objects {
        writeln!(f, "  {object}: {}; {}", object.reason, object.remedy)?;
    }
    writeln!(f)
}
