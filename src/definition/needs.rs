//! What the `create` of a definition must find where it runs, so that it is looked for before anything is written.

use super::Chosen;
use super::directory::{CREATE, NEEDS, list_of};

impl Chosen {
    /// Programs: by their names those that `create` calls, by its path the one that runs it. None where it has no `create`.
    ///
    /// # Errors
    /// The definition does not say.
    pub fn needs(&self) -> Result<Vec<String>, String> {
        let Some(create) = self.files.get(CREATE) else { return Ok(Vec::new()) };
        let os = self.os();
        let Some(needs) = self.files.get(NEEDS) else {
            return Err(format!(
                "{os} makes its system with a create of its own: which programs that calls must stand in a file {NEEDS}, a line each, \
                 so that they are looked for before anything is written"
            ));
        };
        let named = list_of(&needs.text);
        if let Some(wrong) = named.iter().find(|name| name.contains(|c: char| c == '/' || c.is_whitespace())) {
            return Err(format!("{NEEDS} of {os}: {wrong:?} is no name of a program: there is one in each line"));
        }
        let first = create.text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default();
        let mut words = first.split_whitespace();
        let Some(runs) = words.next() else {
            return Err(format!("create of {os} does not say in its first line what runs it, as #!/bin/sh does"));
        };
        let through_env = words.next().filter(|word| runs.ends_with("/env") && !word.starts_with('-'));
        Ok([runs].into_iter().chain(through_env).chain(named).map(str::to_owned).collect())
    }
}
