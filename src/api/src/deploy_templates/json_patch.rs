//! JSON patches (RFC 6902) in the subset that Ironic accepts: the operations `add`, `replace` and `remove`, on some
//! fields only.

use super::ironic_response::{IronicRefusal, TemplateResult};
use serde_json::Value;

/// Fields of a template that can be changed.
const CHANGEABLE: [&str; 4] = ["extra", "name", "steps", "description"];

/// Operation of a patch.
#[derive(Debug)]
pub(crate) struct PatchOperation {
    kind: PatchKind,
    /// Path of the field, as written in the patch.
    path: String,
    steps: Vec<String>,
    value: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchKind {
    Add,
    Replace,
    Remove,
}

/// Parses a patch.
///
/// # Errors
/// Returns an error if the document is not a patch, or changes a field that must not be changed.
pub(crate) fn parse_patch(document: &Value) -> TemplateResult<Vec<PatchOperation>> {
    let lines = document.as_array().ok_or_else(|| IronicRefusal::bad_request("a patch must be a list"))?;
    let changes: Vec<PatchOperation> = lines.iter().map(parse_operation).collect::<TemplateResult<_>>()?;
    for change in &changes {
        if !CHANGEABLE.contains(&change.steps[0].as_str()) {
            let known = CHANGEABLE.join(", ");
            return Err(IronicRefusal::bad_request(format!(
                "field {path} cannot be changed; only these fields can be changed: {known}",
                path = change.path
            )));
        }
    }
    Ok(changes)
}

fn parse_operation(line: &Value) -> TemplateResult<PatchOperation> {
    let bad = |why: &str| Err(IronicRefusal::bad_request(format!("the patch {line}: {why}")));
    let Some(fields) = line.as_object() else { return bad("a patch operation must be an object") };
    if fields.keys().any(|name| !["op", "path", "value"].contains(&name.as_str())) {
        return bad("only the fields `op`, `path` and `value` are allowed");
    }
    let kind = match fields.get("op").and_then(Value::as_str) {
        Some("add") => PatchKind::Add,
        Some("replace") => PatchKind::Replace,
        Some("remove") => PatchKind::Remove,
        _ => return bad("`op` must be add, replace or remove"),
    };
    let Some(path) = fields.get("path").and_then(Value::as_str) else { return bad("`path` must be a string") };
    let plain = |step: &str| !step.is_empty() && step.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let steps: Option<Vec<String>> =
        path.strip_prefix('/').map(|rest| rest.split('/').map(str::to_owned).collect::<Vec<_>>());
    match steps.filter(|steps| steps.iter().all(|step| plain(step))) {
        Some(steps) => Ok(PatchOperation { kind, path: path.to_owned(), steps, value: fields.get("value").cloned() }),
        None => bad("`path` must consist of slashes, each followed by letters, digits, _ and -"),
    }
}

/// Applies a patch.
///
/// # Errors
/// Returns an error if a change is impossible. In that case, none of the changes is applied.
pub(crate) fn apply_patch(document: &Value, changes: &[PatchOperation]) -> TemplateResult<Value> {
    for change in changes {
        if change.kind == PatchKind::Add && change.steps.len() == 1 && document.get(&change.steps[0]).is_none() {
            return Err(IronicRefusal::bad_request(format!(
                "{path}: a patch cannot add fields to a template",
                path = change.path
            )));
        }
    }
    let mut document = document.clone();
    for change in changes {
        apply_operation(&mut document, change).map_err(|why| {
            IronicRefusal::bad_request(format!("the patch of field {path}: {why}", path = change.path))
        })?;
    }
    Ok(document)
}

fn apply_operation(document: &mut Value, change: &PatchOperation) -> Result<(), &'static str> {
    const MISSING_PATH: &str = "the path does not exist";
    let Some((last, way)) = change.steps.split_last() else { return Err(MISSING_PATH) };
    let mut at = document;
    for step in way {
        at = match at {
            Value::Object(fields) => fields.get_mut(step),
            Value::Array(items) => parse_index(step).and_then(|index| items.get_mut(index)),
            _ => None,
        }
        .ok_or(MISSING_PATH)?;
    }
    let value = || change.value.clone().ok_or("the value is missing");
    match (at, change.kind) {
        (Value::Object(fields), PatchKind::Add) => drop(fields.insert(last.clone(), value()?)),
        (Value::Object(fields), PatchKind::Replace) => *fields.get_mut(last).ok_or(MISSING_PATH)? = value()?,
        (Value::Object(fields), PatchKind::Remove) => drop(fields.remove(last).ok_or(MISSING_PATH)?),
        (Value::Array(items), PatchKind::Add) => {
            let place = if last == "-" { Some(items.len()) } else { parse_index(last) };
            let place = place.filter(|place| *place <= items.len()).ok_or(MISSING_PATH)?;
            items.insert(place, value()?);
        }
        (Value::Array(items), PatchKind::Replace) => {
            *parse_index(last).and_then(|index| items.get_mut(index)).ok_or(MISSING_PATH)? = value()?;
        }
        (Value::Array(items), PatchKind::Remove) => {
            let place = parse_index(last).filter(|place| *place < items.len()).ok_or(MISSING_PATH)?;
            items.remove(place);
        }
        _ => return Err("the parent is neither an object nor a list"),
    }
    Ok(())
}

/// Parses an index of a list, without leading zeros (RFC 6901).
fn parse_index(step: &str) -> Option<usize> {
    let is_plain = step == "0" || !step.starts_with('0');
    is_plain.then(|| step.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(patch: Value) -> Option<Value> {
        let document = json!({"name": "a", "extra": {"x": 1}, "steps": [1, [2, 3]]});
        apply_patch(&document, &parse_patch(&patch).ok()?).ok()
    }

    #[test]
    fn json_patch_is_applied_completely_or_rejected() {
        let line = |op: &str, path: &str, value: Value| json!([{"op": op, "path": path, "value": value}]);
        let field = |patch: Value, name: &str| patched(patch).map(|mut document| document[name].take());
        assert_eq!(field(line("replace", "/name", json!("b")), "name"), Some(json!("b")));
        assert_eq!(field(line("add", "/extra/y-z", json!(2)), "extra"), Some(json!({"x": 1, "y-z": 2})));
        assert_eq!(field(line("add", "/steps/-", json!(4)), "steps"), Some(json!([1, [2, 3], 4])));
        assert_eq!(field(line("add", "/steps/0", json!(0)), "steps"), Some(json!([0, 1, [2, 3]])));
        assert_eq!(field(line("replace", "/steps/1/0", json!(9)), "steps"), Some(json!([1, [9, 3]])));
        assert_eq!(field(json!([{"op": "remove", "path": "/steps/1/1"}]), "steps"), Some(json!([1, [2]])));
        assert_eq!(field(json!([]), "name"), Some(json!("a")));
        for bad in [
            line("add", "/steps/9", json!(1)),
            line("add", "/steps/01", json!(1)),
            line("replace", "/steps/-", json!(1)),
            line("replace", "/extra/none", json!(1)),
            line("add", "/name/x", json!(1)),
            line("add", "/description", json!("x")),
            line("test", "/name", json!("a")),
            line("add", "/uuid", json!("a")),
            line("add", "name", json!("a")),
            line("add", "/extra/", json!("a")),
            line("add", "/", json!("a")),
            json!([{"op": "add", "path": "/extra/a"}]),
            json!([{"op": "remove", "path": "/extra/a"}]),
            json!([{"op": "replace", "path": "/name", "value": "b"}, {"op": "remove", "path": "/steps/7"}]),
            json!([{"op": "remove", "path": "/extra", "from": "/name"}]),
            json!([7]),
            json!({}),
        ] {
            assert_eq!(patched(bad.clone()), None, "{bad}");
        }
    }
}
