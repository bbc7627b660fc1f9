//! Installations that have started, and are not complete. The disks then contain an incomplete system, which the
//! machine must not boot, whichever allocation its machine file contains.

use super::json_columns::parse_column;
use crate::sql::{self, Connection};
use model::install_marker::{FencingToken, InstallMarker};
use std::cmp::Ordering;

/// SQL query for the allocation and the fencing token of each reinstall and each first installation that has started,
/// and is not complete.
const STARTED_QUERY: &str = "SELECT allocation, fencing FROM orders WHERE machine = ?1 AND begun > 0
     UNION ALL SELECT id, fencing FROM allocations
     WHERE machine = ?1 AND begun IS NOT NULL AND succeeded = 0 AND adopted IS NULL";

/// Returns whether the disks of the machine may contain an incomplete system. `current` is the allocation in the
/// machine file. An incomplete installation of another allocation is ignored if a later installation has replaced it.
pub(crate) fn has_incomplete_system(
    connection: &Connection,
    machine: &str,
    current: Option<&str>,
) -> sql::Result<bool> {
    let select = connection.prepare_cached(STARTED_QUERY)?;
    let started =
        select.query_map([machine], |row| Ok((row.get::<_, String>(0)?, parse_column::<FencingToken>(row, 1)?)))?;
    for row in started {
        let (allocation, fencing) = row?;
        let is_current = current == Some(allocation.as_str());
        if is_current || !is_replaced(connection, machine, &allocation, fencing.as_ref())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether another allocation was installed later than the installation with this fencing token. Without
/// comparable tokens, returns false.
pub(crate) fn is_replaced(
    connection: &Connection,
    machine: &str,
    allocation: &str,
    fencing: Option<&FencingToken>,
) -> sql::Result<bool> {
    let Some(fencing) = fencing else { return Ok(false) };
    let select = "SELECT marker FROM allocations WHERE machine = ?1 AND id <> ?2 AND succeeded = 1";
    let select = connection.prepare_cached(select)?;
    for marker in select.query_map([machine, allocation], |row| parse_column::<InstallMarker>(row, 0))? {
        let installed = marker?.and_then(|marker| marker.fencing);
        if installed.is_some_and(|installed| installed.compare_age(fencing) == Some(Ordering::Greater)) {
            return Ok(true);
        }
    }
    Ok(false)
}
