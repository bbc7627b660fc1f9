//! Text of `drophammer user show`: a user, and the user's tokens.

use super::{describe_origin, list_projects};
use crate::server_commands::fact_sections::{format_fact, format_section};
use ::api::user_management::{UserDetails, UserToken};
use common::format::{format_columns, replace_hidden};

/// Formats a user: role, projects, origin and state, and a table of the tokens.
pub(super) fn format_user_details(details: &UserDetails) -> String {
    let UserDetails { user, tokens } = details;
    let projects = list_projects(&user.projects);
    let identity =
        user.provider_identity.as_ref().map(|identity| format!("{} at {}", identity.subject, identity.issuer));
    let facts = [
        ("role", Some(user.role.to_string())),
        ("projects", Some(projects)),
        ("origin", Some(describe_origin(user.source).to_owned())),
        ("identity", identity),
        ("disabled", Some(if user.disabled { "yes" } else { "no" }.to_owned())),
        ("last login", user.provider_identity.as_ref().map(|identity| format_minute(&identity.last_login))),
        ("created", Some(format_minute(&user.created)).filter(|created| !created.is_empty())),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some(format_fact(name, &value?)));
    let head = format!("{}\n{}", replace_hidden(&user.name), facts.collect::<String>());
    head + &format_section("Tokens (UTC)") + &format_tokens(tokens)
}

fn format_tokens(tokens: &[UserToken]) -> String {
    if tokens.is_empty() {
        return "  none\n".to_owned();
    }
    let or_dash = |time: &Option<String>| time.as_deref().map_or_else(|| "-".to_owned(), format_minute);
    let titles = ["  NAME", "CREATED", "EXPIRES", "USED", "REVOKED"].map(str::to_owned);
    let rows = tokens.iter().map(|token| {
        [
            format!("  {}", replace_hidden(&token.name)),
            format_minute(&token.created),
            token.expires.as_deref().map_or_else(|| "never".to_owned(), format_minute),
            or_dash(&token.last_used),
            or_dash(&token.revoked),
        ]
    });
    format_columns(&std::iter::once(titles).chain(rows).collect::<Vec<_>>())
}

/// Formats a time as `2026-11-28 10:00`.
fn format_minute(time: &str) -> String {
    replace_hidden(time.get(..16).unwrap_or(time)).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn user(tokens: serde_json::Value) -> UserDetails {
        serde_json::from_value(json!({"name": "ann", "role": "operator", "projects": ["blue", "red"],
            "disabled": false, "created": "2026-11-28T10:00:05Z", "source": "token", "tokens": tokens}))
        .unwrap()
    }

    #[test]
    fn a_user_is_printed_with_the_tokens() {
        let tokens = json!([{"name": "laptop", "created": "2026-11-28T10:00:05Z", "expires": "2027-02-26T10:00:05Z",
            "last_used": "2026-11-29T08:10:00Z"}, {"name": "ci", "created": "2026-11-28T10:00:05Z"}]);
        let expected = "ann\n  role           operator\n  projects       blue, red\n  origin         local\n  \
            disabled       no\n  created        2026-11-28 10:00\n\nTokens (UTC)\n";
        let text = format_user_details(&user(tokens));
        assert!(text.starts_with(expected), "{text}");
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(8)
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(rows[0], ["NAME", "CREATED", "EXPIRES", "USED", "REVOKED"]);
        assert_eq!(rows[1], ["laptop", "2026-11-28 10:00", "2027-02-26 10:00", "2026-11-29 08:10", "-"]);
        assert_eq!(rows[2], ["ci", "2026-11-28 10:00", "never", "-", "-"]);
        assert!(format_user_details(&user(json!([]))).ends_with("Tokens (UTC)\n  none\n"));
    }
}
