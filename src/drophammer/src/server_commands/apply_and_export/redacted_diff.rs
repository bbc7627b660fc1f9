//! Differences between documents, without secrets. If the field names do not show which values of a document are
//! secret, no differences of this document are displayed.

use super::unified_diff::format_diff;
use common::format::terminal_escaping::escape_line;
use site::readable_secrets::SECRET_FIELDS;

/// Text that replaces a secret.
const HIDDEN: &str = "(hidden)";
/// Fields that may also contain secrets, in addition to the secret fields of machine files and image files.
const SECRET_FIELD_PREFIXES: [&str; 3] = ["password:", "identitytoken:", "token:"];

/// Returns a unified diff of a document before and after a change.
pub(super) fn render_difference(
    path: &str,
    (before, after): (Option<&str>, Option<&str>),
    show_secrets: bool,
) -> String {
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    let is_opaque = path == "registries.json" || path.starts_with("os/") || path.starts_with("deploy-templates/");
    let diff = match show_secrets {
        true => format_diff(before, after),
        false if is_opaque => {
            return "  the document can contain secrets; --show-secrets displays the difference\n".to_owned();
        }
        false => format_diff(&hide_secrets(before), &hide_secrets(after)),
    };
    if diff.is_empty() && before != after {
        return "  only hidden lines or line endings differ; --show-secrets displays them\n".to_owned();
    }
    diff.lines().map(|line| format!("{}\n", escape_line(line))).collect()
}

/// Replaces the values of fields that can contain secrets, together with all nested lines.
fn hide_secrets(text: &str) -> String {
    let (mut hidden, mut inside) = (String::new(), None);
    for line in text.lines() {
        let indentation = line.len() - line.trim_start_matches([' ', '-']).len();
        if inside.is_some_and(|outer| indentation > outer || line.trim().is_empty()) {
            continue;
        }
        let found = SECRET_FIELDS
            .iter()
            .chain(&SECRET_FIELD_PREFIXES)
            .filter_map(|field| Some((line.find(field)?, field.len())));
        match found.min() {
            // A comment after the value is also replaced, because it can contain an earlier value.
            Some((start, length)) => {
                hidden += &format!("{} {HIDDEN}\n", &line[..start + length]);
                inside = Some(indentation);
            }
            None => {
                hidden += &format!("{line}\n");
                inside = None;
            }
        }
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_fields_are_hidden_with_their_lines() {
        let text = "id: a\nallocation:\n  hostname: h\n  user_data: |\n    password hunter2\n\n    more hunter2\n  image: i\nbmc: {password: hunter2}\n# disk_key: hunter2\n- {vpn: hunter2}\nallocation: {id: x, console_password: hunter2}\n";
        let hidden = hide_secrets(text);
        assert!(!hidden.contains("hunter2"), "{hidden}");
        for expected in
            ["  user_data: (hidden)\n  image: i\n", "bmc: (hidden)\n", "{id: x, console_password: (hidden)\n"]
        {
            assert!(hidden.contains(expected), "{expected}: {hidden}");
        }
    }

    #[test]
    fn documents_with_secrets_anywhere_are_not_displayed() {
        for path in ["registries.json", "os/parameters.yaml", "os/web/create", "deploy-templates/a.yaml"] {
            let text = render_difference(path, (Some("hunter2"), Some("hunter3")), false);
            assert!(text.contains("--show-secrets") && !text.contains("hunter"), "{text}");
            assert!(render_difference(path, (Some("hunter2"), Some("hunter3")), true).contains("+hunter3"));
        }
        let text =
            render_difference("machines/a.yaml", (Some("bmc: {password: a}\n"), Some("bmc: {password: b}\n")), false);
        assert!(text.contains("only hidden lines"), "{text}");
        let text = render_difference("layouts/a.yaml", (None, Some("id: \u{1b}[31m\n")), false);
        assert!(text.starts_with("@@") && !text.contains('\u{1b}'), "{text}");
    }
}
