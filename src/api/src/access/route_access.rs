//! Table of all routes with the access that each of them requires. A route without an entry is refused.

use store::users::UserRole;
use store::users::UserRole::{Admin, Operator, Viewer};

/// Required authentication of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// No authentication.
    Public,
    /// Token of a machine's boot. The handler checks the token.
    Machine,
    /// Token of a machine's boot, or of a user with this role.
    MachineOrUser(UserRole),
    /// Token for metrics, which the handler checks, or token of a user with this role.
    MetricsOrUser(UserRole),
    /// Token of a user with this role.
    User(UserRole),
    /// Login session of a user with this role. The page redirects other clients to the login form.
    Page(UserRole),
}

/// Set of objects to which a route gives access. Determines what users who are restricted to projects can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScope {
    /// The machine whose id is in the path. For users with projects, machines of other projects are treated as unknown
    /// machines.
    Machine,
    /// Several machines or other objects. The handler uses the user's snapshot, which contains only accessible
    /// machines.
    Filtered,
    /// All machines, or machines without a project. Users with projects are refused.
    Whole,
}

/// Entry of the table: method, route, required authentication, and scope.
pub type RouteRule = (&'static str, &'static str, RouteAccess, RouteScope);

use RouteAccess::{Machine as AgentToken, MachineOrUser, MetricsOrUser, Page, Public, User};
use RouteScope::{Filtered, Machine, Whole};

/// Routes of the JSON API.
const API_RULES: &[RouteRule] = &[
    ("GET", "/v1/whoami", User(Viewer), Filtered),
    ("GET", "/v1/problems", User(Viewer), Filtered),
    ("GET", "/v1/users", User(Admin), Whole),
    ("PUT", "/v1/users", User(Admin), Whole),
    ("GET", "/v1/users/{name}", User(Admin), Whole),
    ("POST", "/v1/users/{name}", User(Admin), Whole),
    ("DELETE", "/v1/users/{name}", User(Admin), Whole),
    ("GET", "/v1/users/{name}/tokens", User(Admin), Whole),
    ("POST", "/v1/users/{name}/tokens", User(Admin), Whole),
    ("DELETE", "/v1/users/{name}/tokens/{token}", User(Admin), Whole),
    ("GET", "/v1/audit", User(Admin), Whole),
    ("GET", "/v1/oidc", Public, Filtered),
    // Public, because the handler itself verifies the ID token of the identity provider.
    ("POST", "/v1/oidc/token", Public, Filtered),
    // Only for admins, because the documents contain secrets, such as passwords of management controllers.
    ("POST", "/v1/documents/apply", User(Admin), Whole),
    ("POST", "/v1/documents/export", User(Admin), Whole),
    ("GET", "/v1/filesystemlayout", User(Viewer), Filtered),
    ("PUT", "/v1/filesystemlayout", User(Admin), Whole),
    ("POST", "/v1/filesystemlayout", User(Admin), Whole),
    ("GET", "/v1/filesystemlayout/{id}", User(Viewer), Filtered),
    ("DELETE", "/v1/filesystemlayout/{id}", User(Admin), Whole),
    // These requests change nothing, but their bodies can name any machine.
    ("POST", "/v1/filesystemlayout/{id}", User(Viewer), Whole),
    ("GET", "/v1/image", User(Viewer), Filtered),
    ("PUT", "/v1/image", User(Admin), Whole),
    ("POST", "/v1/image", User(Admin), Whole),
    ("GET", "/v1/image/{id}", User(Viewer), Filtered),
    ("DELETE", "/v1/image/{id}", User(Admin), Whole),
    ("GET", "/v1/image-states", User(Viewer), Filtered),
    ("PUT", "/v1/image/{id}/{state}", User(Admin), Whole),
    ("DELETE", "/v1/image/{id}/{state}", User(Admin), Whole),
    ("GET", "/v1/os", User(Viewer), Filtered),
    ("GET", "/v1/os/{name}", User(Viewer), Filtered),
    ("POST", "/v1/os/{name}/parameters", User(Admin), Whole),
    ("POST", "/v1/machine/{id}/os-parameters", User(Operator), Machine),
    ("GET", "/v1/size", User(Viewer), Filtered),
    ("PUT", "/v1/size", User(Admin), Whole),
    ("POST", "/v1/size", User(Admin), Whole),
    ("GET", "/v1/size/{id}", User(Viewer), Filtered),
    ("DELETE", "/v1/size/{id}", User(Admin), Whole),
    ("POST", "/v1/size/{id}", User(Viewer), Whole),
    ("GET", "/v1/machine", User(Viewer), Filtered),
    ("POST", "/v1/machine/find", User(Viewer), Filtered),
    ("POST", "/v1/machine/allocate", User(Operator), Filtered),
    ("GET", "/v1/machines", User(Viewer), Filtered),
    ("POST", "/v1/machines/confirm", User(Admin), Whole),
    ("DELETE", "/v1/machine/{id}/free", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/reinstall", User(Operator), Machine),
    ("DELETE", "/v1/machine/{id}/reinstall", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/lock", User(Operator), Machine),
    ("DELETE", "/v1/machine/{id}/lock", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/adopt", User(Admin), Machine),
    // The scope is `Whole`, because the machine has no file yet, and therefore no project.
    ("PUT", "/v1/machine/{id}/adopt", User(Admin), Whole),
    ("DELETE", "/v1/machine/{id}/adopt", User(Admin), Whole),
    ("POST", "/v1/machine/{id}/confirm", User(Admin), Machine),
    ("POST", "/v1/machine/{id}/rename", User(Admin), Machine),
    ("GET", "/v1/machine/{id}/details", User(Viewer), Machine),
    ("GET", "/v1/machine/{id}/events", User(Viewer), Machine),
    ("GET", "/v1/machine/{id}/history", User(Viewer), Machine),
    // Not for viewers, because the console log contains all output of the image's installer, which may include
    // passwords.
    ("GET", "/v1/machine/{id}/log", User(Operator), Machine),
    ("GET", "/v1/machine/{id}/move", User(Viewer), Machine),
    ("POST", "/v1/machine/{id}/move", User(Operator), Machine),
    ("DELETE", "/v1/machine/{id}/move", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/move/approve", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/move/finish", User(Operator), Machine),
    // The scope is `Whole`, because a machine without a machine file has no project.
    ("POST", "/v1/machine/{id}/file", User(Operator), Whole),
    // Even reading the power state requires an operator: it opens a session on the management controller, and most
    // controllers support only a few sessions.
    ("GET", "/v1/machine/{id}/power", User(Operator), Machine),
    ("POST", "/v1/machine/{id}/power", User(Operator), Machine),
    ("GET", "/v1/machine/{id}/boot-digest", User(Viewer), Machine),
    ("GET", "/v1/machine/{id}/preview", User(Viewer), Machine),
    // A user with projects sees only rollouts all of whose machines belong to these projects.
    ("GET", "/v1/rollouts", User(Viewer), Filtered),
    ("POST", "/v1/rollouts", User(Operator), Filtered),
    ("GET", "/v1/rollouts/{id}", User(Viewer), Filtered),
    ("DELETE", "/v1/rollouts/{id}", User(Operator), Filtered),
    ("POST", "/v1/rollouts/{id}/halt", User(Operator), Filtered),
    ("POST", "/v1/rollouts/{id}/resume", User(Operator), Filtered),
    ("GET", "/v1/volumes", User(Viewer), Filtered),
    ("GET", "/v1/volumes/manifests", User(Viewer), Filtered),
    ("POST", "/v1/machine/{id}/volumes", User(Operator), Machine),
    ("DELETE", "/v1/machine/{id}/volumes/{name}", User(Operator), Machine),
    ("GET", "/v1/deploy_templates", User(Viewer), Filtered),
    ("POST", "/v1/deploy_templates", User(Admin), Whole),
    ("GET", "/v1/deploy_templates/{*path}", User(Viewer), Filtered),
    ("PATCH", "/v1/deploy_templates/{*path}", User(Admin), Whole),
    ("DELETE", "/v1/deploy_templates/{*path}", User(Admin), Whole),
    ("GET", "/v1/deploy-templates", User(Viewer), Filtered),
    ("POST", "/v1/deploy-templates", User(Admin), Whole),
    ("GET", "/v1/deploy-templates/{*path}", User(Viewer), Filtered),
    ("PATCH", "/v1/deploy-templates/{*path}", User(Admin), Whole),
    ("DELETE", "/v1/deploy-templates/{*path}", User(Admin), Whole),
    ("GET", "/metrics", MetricsOrUser(Viewer), Whole),
    ("GET", "/livez", Public, Filtered),
    ("GET", "/readyz", Public, Filtered),
    ("GET", "/openapi.json", Public, Filtered),
    ("GET", "/v1", Public, Filtered),
    ("GET", "/v1/machine/{id}", MachineOrUser(Viewer), Machine),
];

/// Routes of agents and firmware.
const MACHINE_RULES: &[RouteRule] = &[
    ("POST", "/v1/machine/register", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/secrets", AgentToken, Whole),
    ("GET", "/v1/machine/{id}/wait", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/event", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/log", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/point-of-no-return", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/moving", AgentToken, Whole),
    ("POST", "/v1/machine/{id}/report", AgentToken, Whole),
    ("GET", "/boot.json", Public, Filtered),
    ("GET", "/start.ipxe", Public, Filtered),
    ("GET", "/boot.ipxe", Public, Filtered),
    ("GET", "/boot/{name}", Public, Filtered),
    ("GET", "/ipxe/{name}", Public, Filtered),
    ("GET", "/images/{*path}", Public, Filtered),
];

/// Routes of the web page.
const PAGE_RULES: &[RouteRule] = &[
    ("GET", "/", Page(Viewer), Filtered),
    ("GET", "/login", Public, Filtered),
    ("POST", "/login", Public, Filtered),
    ("GET", "/oidc/login", Public, Filtered),
    ("GET", "/oidc/callback", Public, Filtered),
    ("POST", "/logout", Page(Viewer), Filtered),
    ("GET", "/events", Page(Viewer), Filtered),
    ("POST", "/bulk/review", Page(Operator), Filtered),
    ("POST", "/bulk/confirm", Page(Operator), Filtered),
    ("GET", "/machines/{id}", Page(Viewer), Machine),
    ("GET", "/machines/{id}/actions", Page(Operator), Machine),
    ("POST", "/machines/{id}/power", Page(Operator), Machine),
    ("POST", "/machines/{id}/lock", Page(Operator), Machine),
    ("POST", "/machines/{id}/free", Page(Operator), Machine),
    ("GET", "/machines/{id}/file", Page(Operator), Machine),
    ("POST", "/machines/{id}/file", Page(Operator), Machine),
    ("GET", "/machines/{id}/add", Page(Operator), Whole),
    ("POST", "/machines/{id}/add", Page(Operator), Whole),
    ("GET", "/machines/{id}/allocate", Page(Operator), Machine),
    ("POST", "/machines/{id}/allocate", Page(Operator), Machine),
    ("GET", "/machines/{id}/layout.svg", Page(Viewer), Machine),
    ("GET", "/machines/{id}/layout.yaml", Page(Viewer), Machine),
    ("GET", "/machines/{id}/log", Page(Operator), Machine),
    ("GET", "/machines/{id}/row", Page(Viewer), Machine),
    ("GET", "/machines/{id}/reinstall", Page(Operator), Machine),
    ("POST", "/machines/{id}/reinstall", Page(Operator), Machine),
    ("POST", "/machines/{id}/cancel", Page(Operator), Machine),
    ("GET", "/layouts", Page(Viewer), Filtered),
    ("GET", "/layouts/{id}/picture.svg", Page(Viewer), Filtered),
    ("GET", "/images", Page(Viewer), Filtered),
    ("GET", "/sizes", Page(Viewer), Filtered),
    ("GET", "/templates", Page(Viewer), Filtered),
    ("GET", "/volumes", Page(Viewer), Filtered),
    ("GET", "/orders", Page(Viewer), Filtered),
    ("GET", "/rollouts", Page(Viewer), Filtered),
    ("GET", "/rollouts/{id}", Page(Viewer), Filtered),
    ("POST", "/rollouts/{id}/halt", Page(Operator), Filtered),
    ("POST", "/rollouts/{id}/resume", Page(Operator), Filtered),
    ("GET", "/plan", Page(Viewer), Whole),
    ("GET", "/audit", Page(Admin), Whole),
    ("GET", "/page.css", Public, Filtered),
    ("GET", "/page.js", Public, Filtered),
    ("GET", "/page.svg", Public, Filtered),
];

/// Queries whose method is not GET, because their parameters are in a body. They change nothing.
const QUERIES: [(&str, &str); 3] =
    [("POST", "/v1/machine/find"), ("POST", "/v1/filesystemlayout/{id}"), ("POST", "/v1/size/{id}")];

/// Returns whether a request only reads.
pub fn is_query(method: &str, route: &str) -> bool {
    matches!(method, "GET" | "HEAD") || QUERIES.contains(&(method, canonical_route(route)))
}

/// Returns all entries of the table.
pub fn all_rules() -> impl Iterator<Item = &'static RouteRule> {
    [API_RULES, MACHINE_RULES, PAGE_RULES].into_iter().flatten()
}

/// Removes a trailing `/` from the route. The router accepts some routes with and without a trailing `/`.
fn canonical_route(route: &str) -> &str {
    if route.len() > 1 { route.trim_end_matches('/') } else { route }
}

/// Returns the entry for a method and a route. A HEAD request is handled like a GET request.
pub fn find_rule(method: &str, route: &str) -> Option<&'static RouteRule> {
    let (method, route) = (if method == "HEAD" { "GET" } else { method }, canonical_route(route));
    all_rules().find(|(rule_method, rule_route, ..)| *rule_method == method && *rule_route == route)
}

/// Returns whether the table contains the route with any method.
pub fn is_known_route(route: &str) -> bool {
    all_rules().any(|(_, rule_route, ..)| *rule_route == canonical_route(route))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_entry_is_unique_and_canonical() {
        let mut seen = BTreeSet::new();
        for (method, route, ..) in all_rules() {
            assert!(seen.insert((method, route)), "{method} {route}");
            assert_eq!(canonical_route(route), *route);
        }
    }

    #[test]
    fn described_operations_have_access_rules_and_viewers_change_nothing() {
        for route in crate::routes::all_routes() {
            for operation in &route.described {
                let rule = find_rule(operation.method, route.path)
                    .or_else(|| find_rule(operation.method, &format!("{}/{{*path}}", route.path)));
                assert!(rule.is_some(), "{} {} has no entry", operation.method, route.path);
            }
        }
        for (method, route, access, _) in all_rules() {
            if !is_query(method, route) && *route != "/logout" {
                assert!(
                    !matches!(access, User(Viewer) | Page(Viewer)),
                    "{method} {route}: viewers cannot change anything"
                );
            }
        }
    }

    #[test]
    fn site_wide_changes_require_admin_role() {
        for route in ["/v1/users", "/v1/filesystemlayout", "/v1/image", "/v1/size", "/v1/machines/confirm"] {
            for (method, _, access, _) in all_rules().filter(|(method, rule, ..)| *rule == route && *method != "GET") {
                assert_eq!(*access, User(Admin), "{method} {route}");
            }
        }
        assert!(find_rule("POST", "/v1/audit").is_none() && find_rule("DELETE", "/v1/audit").is_none());
        assert!(find_rule("GET", "/v1/nothing").is_none() && find_rule("HEAD", "/v1/machines").is_some());
        assert!(find_rule("GET", "/v1/machine/").is_some() && is_known_route("/v1/") && !is_known_route("/v2"));
    }
}
