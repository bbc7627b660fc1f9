//! Programs that `create` requires. The agent checks that they exist before it writes anything.

use super::SelectedDefinition;
use super::directory_parser::{CREATE, NEEDS, parse_list};

impl SelectedDefinition {
    /// Returns the required programs: the path of the interpreter of `create`, and the names of the programs that
    /// `create` calls. The list is empty if the definition has no `create`.
    ///
    /// # Errors
    /// Fails if the definition has no file that lists the required programs.
    pub fn required_programs(&self) -> Result<Vec<String>, String> {
        let Some(create) = self.files.get(CREATE) else { return Ok(Vec::new()) };
        let os = self.selector();
        let Some(needs) = self.files.get(NEEDS) else {
            return Err(format!(
                "{os} has a create program, but lacks the file {NEEDS}; create this file, and list in it the programs \
                 that `create` runs, one per line: the presence of these programs is checked before anything is \
                 written"
            ));
        };
        let named = parse_list(&needs.text);
        if let Some(wrong) = named.iter().find(|name| name.contains(|c: char| c == '/' || c.is_whitespace())) {
            return Err(format!("{NEEDS} of {os}: {wrong:?} is not the name of a program; write one name per line"));
        }
        let first = create.text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default();
        let mut words = first.split_whitespace();
        let Some(runs) = words.next() else {
            return Err(format!(
                "the create program of {os}: the first line does not specify an interpreter; start it with a line like \
                                #!/bin/sh"
            ));
        };
        let through_env = words.next().filter(|word| runs.ends_with("/env") && !word.starts_with('-'));
        Ok([runs].into_iter().chain(through_env).chain(named).map(str::to_owned).collect())
    }
}
