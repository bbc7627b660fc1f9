//! Prints each object whose content could not be inspected, with the reason and the remedy.

use common::format::terminal_escaping::escape_line;
use model::inventory::OpaqueObject;
use std::fmt;

pub(crate) fn write_opaque(f: &mut fmt::Formatter<'_>, objects: &[OpaqueObject]) -> fmt::Result {
    if objects.is_empty() {
        return Ok(());
    }
    writeln!(f, "not inspected:")?;
    for object in objects {
        let line = format!("  {object}: {}; {}", object.reason, object.remedy);
        writeln!(f, "{}", escape_line(&line))?;
    }
    writeln!(f)
}
