//! Roles of users, derived from their groups at the identity provider.

use std::collections::BTreeSet;
use store::users::UserRole;

/// Role of the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRole {
    pub group: String,
    pub role: UserRole,
    /// Projects to which the members are restricted; empty for access to all machines.
    pub projects: Vec<String>,
}

/// Returns the highest role of the groups, and the projects to which the user is restricted. If several groups have
/// this role, the user may access the projects of all of them. Returns `None` if no group has a role.
pub fn assign_role(rules: &[GroupRole], groups: &[String]) -> Option<(UserRole, Vec<String>)> {
    let matching: Vec<&GroupRole> = rules.iter().filter(|rule| groups.contains(&rule.group)).collect();
    let role = matching.iter().map(|rule| rule.role).max()?;
    let of_role: Vec<&GroupRole> = matching.into_iter().filter(|rule| rule.role == role).collect();
    let projects: BTreeSet<&String> = match of_role.iter().any(|rule| rule.projects.is_empty()) {
        true => BTreeSet::new(),
        false => of_role.iter().flat_map(|rule| &rule.projects).collect(),
    };
    Some((role, projects.into_iter().cloned().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_role_applies_with_projects_of_its_groups() {
        let rule = |group: &str, role, projects: &[&str]| GroupRole {
            group: group.to_owned(),
            role,
            projects: projects.iter().map(|project| (*project).to_owned()).collect(),
        };
        let rules = [
            rule("admins", UserRole::Admin, &[]),
            rule("shift", UserRole::Operator, &["blue"]),
            rule("night", UserRole::Operator, &["red", "blue"]),
            rule("all", UserRole::Operator, &[]),
            rule("auditors", UserRole::Viewer, &[]),
        ];
        let expect = |role, projects: &[&str]| {
            Some((role, projects.iter().map(|project| (*project).to_owned()).collect::<Vec<_>>()))
        };
        for (groups, expected) in [
            (&["shift"][..], expect(UserRole::Operator, &["blue"])),
            (&["night", "shift"], expect(UserRole::Operator, &["blue", "red"])),
            (&["shift", "all"], expect(UserRole::Operator, &[])),
            (&["shift", "auditors"], expect(UserRole::Operator, &["blue"])),
            (&["shift", "admins"], expect(UserRole::Admin, &[])),
            (&["auditors"], expect(UserRole::Viewer, &[])),
            (&["Admins"], None),
            (&["others"], None),
            (&[], None),
        ] {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            assert_eq!(assign_role(&rules, &groups), expected, "{groups:?}");
        }
    }
}
