//! Parser for the directory of an OS definition, which follows the rules of Ganeti.

use super::parameters::variable_name;
use super::{OsSelector, ParameterChange, SelectedDefinition, is_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

pub(crate) const VERIFY_PROGRAM: &str = "verify";
const API: &str = "ganeti_api_version";
const OS_VERSION: &str = "os_version";
/// Maximum length of a definition's version, in characters. Further characters are ignored.
const OS_VERSION_CHARS: usize = 100;
const PARAMETERS: &str = "parameters.list";
const VARIANTS: &str = "variants.list";
pub(crate) const CREATE: &str = "create";
/// Name of the file that lists the programs that `create` calls. The file is an extension of Ganeti's OS interface. The
/// file is required because the ramdisk contains far fewer programs than a Ganeti node, and a missing program must be
/// detected before anything is written.
pub(crate) const NEEDS: &str = "needs";
const UNTRUSTED: &str = "create_untrusted";
const IMAGE: &str = "image";

/// Programs that Ganeti also requires if a definition has a `create` program.
const OTHER_REQUIRED_PROGRAMS: [&str; 3] = ["import", "export", "rename"];

/// Supported versions of the OS interface, newest first. Ganeti 3.0 supports the same versions.
const VERSIONS: [u32; 3] = [20, 15, 10];

/// First version of the interface that supports variants.
const FIRST_VARIANTS_VERSION: u32 = 15;
/// First version of the interface that supports parameters and `verify`.
const FIRST_PARAMETERS_VERSION: u32 = 20;

/// Files of a definition, by their paths in its directory.
pub type DefinitionFiles = BTreeMap<String, DefinitionFile>;

/// File of an OS definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DefinitionFile {
    /// True if the owner may execute the file.
    #[serde(default)]
    pub executable: bool,
    /// Content of the file.
    pub text: String,
}

/// Valid OS definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsDefinition {
    pub name: String,
    /// Newest version of the interface that both the definition and this program support.
    pub api: u32,
    pub source: SystemSource,
    pub parameters: Vec<OsParameter>,
    pub variants: Vec<String>,
    /// Files needed to run the programs of the definition.
    pub files: DefinitionFiles,
}

/// Origin of the files of the installed system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemSource {
    /// The files are created by the definition's `create` program.
    Create,
    /// The files come from the image with this id.
    Image(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsParameter {
    pub name: String,
    /// Description, in one line.
    pub about: String,
}

impl OsDefinition {
    /// Parses the files of a definition.
    ///
    /// # Errors
    /// Returns all problems found, one line each.
    pub fn parse(name: &str, mut files: DefinitionFiles) -> Result<OsDefinition, Vec<String>> {
        let mut wrong = Vec::new();
        if !is_name(name) {
            wrong.push(format!("{name:?} is not a valid OS definition name; use letters, digits, - and _"));
        }
        let spoken = collect_problems(parse_versions(&files), &mut wrong).unwrap_or_default();
        // As in Ganeti, the newest listed version determines the required files, even if that version is not supported.
        let newest = spoken.iter().copied().max().unwrap_or_default();
        let api = VERSIONS.into_iter().find(|version| spoken.contains(version));
        if api.is_none() && !spoken.is_empty() {
            let (theirs, ours) = (join_words(&spoken), join_words(&VERSIONS));
            wrong.push(format!("{API}: unsupported interface version {theirs}; supported: {ours}"));
        }
        let source = collect_problems(parse_source(&files), &mut wrong);
        let mut programs =
            if source == Some(SystemSource::Create) { OTHER_REQUIRED_PROGRAMS.to_vec() } else { Vec::new() };
        if newest >= FIRST_PARAMETERS_VERSION {
            programs.push(VERIFY_PROGRAM);
        }
        wrong.extend(programs.into_iter().filter_map(|program| find_program_problem(&files, program)));
        let has_variants = api.is_some_and(|api| api >= FIRST_VARIANTS_VERSION);
        let variants = if has_variants { parse_variants(&files) } else { Vec::new() };
        let parameters = if newest >= FIRST_PARAMETERS_VERSION {
            collect_problems(parse_parameters(&files), &mut wrong)
        } else {
            None
        };
        match (api, source) {
            (Some(api), Some(source)) if wrong.is_empty() => {
                let parameters = parameters.unwrap_or_default();
                if newest < FIRST_PARAMETERS_VERSION {
                    // A definition without parameters does not need its `verify` program.
                    files.remove(VERIFY_PROGRAM);
                }
                Ok(OsDefinition { name: name.to_owned(), api, source, parameters, variants, files })
            }
            _ => Err(wrong),
        }
    }

    /// Returns the version of the definition, if it has one.
    pub fn os_version(&self) -> Option<&str> {
        parse_os_version(&self.files)
    }

    /// Returns the variant that `os` names. If `os` names no variant, returns the first variant, or an empty string if
    /// the definition has no variants.
    ///
    /// # Errors
    /// Fails if the variant does not exist.
    pub fn resolve_variant(&self, os: &OsSelector) -> Result<&str, String> {
        if os.variant.is_empty() {
            return Ok(self.variants.first().map_or("", String::as_str));
        }
        self.variants.iter().find(|variant| **variant == os.variant).map(String::as_str).ok_or_else(|| {
            let there =
                if self.variants.is_empty() { "none are defined".to_owned() } else { list_choices(&self.variants) };
            format!("{}: unknown variant {:?}; {there}", self.name, os.variant)
        })
    }

    /// Returns the parameter that a change sets or removes.
    ///
    /// # Errors
    /// Fails if the parameter does not exist. The message lists the existing parameters.
    pub fn find_parameter(&self, change: &ParameterChange) -> Result<&OsParameter, String> {
        let wanted = variable_name(change.key());
        self.parameters.iter().find(|parameter| variable_name(&parameter.name) == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
            let there = if names.is_empty() { "none are defined".to_owned() } else { list_choices(&names) };
            format!("{}: unknown parameter {:?}; {there}", self.name, change.key())
        })
    }

    /// Combines the definition with a variant and resolved parameters, for an allocation.
    pub fn select(&self, variant: &str, parameters: BTreeMap<String, String>) -> SelectedDefinition {
        SelectedDefinition {
            name: self.name.clone(),
            variant: variant.to_owned(),
            api: self.api,
            parameters,
            files: self.files.clone(),
        }
    }
}

fn collect_problems<T>(read: Result<T, Vec<String>>, wrong: &mut Vec<String>) -> Option<T> {
    read.map_err(|why| wrong.extend(why)).ok()
}

fn parse_versions(files: &DefinitionFiles) -> Result<Vec<u32>, Vec<String>> {
    let Some(file) = files.get(API) else { return Err(vec![format!("{API} is missing")]) };
    let read = |(index, line): (usize, &str)| {
        line.trim().parse().map_err(|_| {
            format!("{API}:{number}: {line:?} is not a version number", number = index + 1, line = line.trim())
        })
    };
    let lines: Vec<Result<u32, String>> = file.text.lines().enumerate().map(read).collect();
    let wrong: Vec<String> = lines.iter().filter_map(|line| line.clone().err()).collect();
    match lines.is_empty() {
        true => Err(vec![format!("{API} is empty")]),
        false if wrong.is_empty() => Ok(lines.into_iter().flatten().collect()),
        false => Err(wrong),
    }
}

fn parse_source(files: &DefinitionFiles) -> Result<SystemSource, Vec<String>> {
    let wrong = |why: &str| Err(vec![why.to_owned()]);
    match (files.get(IMAGE), files.contains_key(CREATE)) {
        (Some(_), true) => wrong("both `image` and `create` exist; keep only one of them"),
        (None, true) => find_program_problem(files, CREATE).map_or(Ok(SystemSource::Create), |why| Err(vec![why])),
        (None, false) if files.contains_key(UNTRUSTED) => wrong(
            "`create_untrusted` is supported only by Ganeti, which runs the program in a virtual machine; provide `create` or `image`",
        ),
        (None, false) => wrong("neither `create` nor `image` exists; provide one of them"),
        (Some(image), false) => match parse_list(&image.text)[..] {
            [id] => Ok(SystemSource::Image(id.to_owned())),
            [] => wrong("`image` is empty; write the id of one image into it"),
            _ => wrong("`image` has several lines; write the id of one image into it"),
        },
    }
}

fn find_program_problem(files: &DefinitionFiles, name: &str) -> Option<String> {
    match files.get(name) {
        None => Some(format!("{name} is missing")),
        Some(file) if !file.executable => Some(format!("{name} is not executable")),
        Some(_) => None,
    }
}

/// Returns the first line of the file `os_version`; `None` if the file is missing, or its first line is empty.
pub(crate) fn parse_os_version(files: &DefinitionFiles) -> Option<&str> {
    let line = files.get(OS_VERSION)?.text.lines().next()?.trim();
    let end = line.char_indices().nth(OS_VERSION_CHARS).map_or(line.len(), |(end, _)| end);
    Some(&line[..end]).filter(|line| !line.is_empty())
}

/// Returns the lines of a list. As in Ganeti, blank lines and comments are ignored.
pub(crate) fn parse_list(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

fn parse_variants(files: &DefinitionFiles) -> Vec<String> {
    files.get(VARIANTS).map(|file| parse_list(&file.text).into_iter().map(str::to_owned).collect()).unwrap_or_default()
}

/// Parses `parameters.list`. Each line contains a parameter's name, whitespace, and the parameter's description.
fn parse_parameters(files: &DefinitionFiles) -> Result<Vec<OsParameter>, Vec<String>> {
    let Some(file) = files.get(PARAMETERS) else { return Err(vec![format!("{PARAMETERS} is missing")]) };
    let (mut all, mut wrong) = (Vec::<OsParameter>::new(), Vec::new());
    for (number, line) in (1..).zip(file.text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let (name, about) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
        let same = all.iter().find(|other| variable_name(&other.name) == variable_name(name));
        if let Err(why) = super::parameters::check_parameter_name(name) {
            wrong.push(format!("{PARAMETERS}:{number}: {why}"));
        } else if let Some(other) = same {
            let (one, variable) = (&other.name, variable_name(name));
            wrong.push(format!(
                "{PARAMETERS}:{number}: {name:?} and {one:?} have the same environment variable, \
                                {variable}"
            ));
        } else {
            all.push(OsParameter { name: name.to_owned(), about: about.trim().to_owned() });
        }
    }
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

fn list_choices(words: &[impl Display]) -> String {
    format!("available: {}", join_words(words))
}

fn join_words(words: &[impl Display]) -> String {
    words.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
