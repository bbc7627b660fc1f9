//! Passphrases of containers with `key: prompt`. The operator types one passphrase for all of these containers at the
//! machine's console before anything is written.

use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::layout::{KeySource, Layout};
use model::secret_text::SecretText;
use std::time::{Duration, Instant};

const MAXIMUM_ATTEMPTS: usize = 3;

/// Total time for all attempts to type a passphrase.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(600);

/// Minimum length of a new passphrase, in characters. A shorter passphrase was probably typed by accident.
const MINIMUM_CHARACTERS: usize = 8;

/// Function that asks a question, and reads a line without echo until a deadline. Returns `None` if no line was typed.
pub(crate) type AskPassphrase<'a> = dyn FnMut(&str, Instant) -> Result<Option<String>> + 'a;

/// Lists the filesystems and volume groups for which a passphrase is required.
pub(crate) fn list_encrypted(layout: &Layout) -> String {
    let is_asked_for = |key: KeySource| key == KeySource::Prompt;
    let filesystems =
        layout.filesystems.iter().filter(|is| is.encrypted.is_some_and(|encrypted| is_asked_for(encrypted.key)));
    let filesystems =
        filesystems.map(|filesystem| filesystem.path.clone().unwrap_or_else(|| filesystem.device.to_string()));
    let groups =
        layout.volumegroups.iter().filter(|is| is.encrypted.is_some_and(|encrypted| is_asked_for(encrypted.key)));
    let groups = groups.map(|group| format!("vg:{}", group.name));
    filesystems.chain(groups).collect::<Vec<_>>().join(", ")
}

/// Asks for a new passphrase, which must be typed twice.
///
/// # Errors
/// Fails if no passphrase was typed, or if the two typed passphrases differ.
pub(crate) fn ask_new_passphrase(purpose: &str, ask: &mut AskPassphrase) -> Result<SecretText> {
    let until = Instant::now() + PROMPT_TIMEOUT;
    let mut why = String::new();
    for _ in 0..MAXIMUM_ATTEMPTS {
        let question = format!(
            "{why}type a passphrase for {purpose}, of at least {MINIMUM_CHARACTERS} characters, and press Enter. The passphrase is not shown, unlocks all \
             of these containers, and is required at every boot of this machine"
        );
        let Some(first) = ask(&question, until)? else { return Err(timeout_refusal(purpose)) };
        if first.chars().count() < MINIMUM_CHARACTERS {
            why = "too short: ".to_owned();
            continue;
        }
        let Some(second) = ask("type the same passphrase again, and press Enter", until)? else {
            return Err(timeout_refusal(purpose));
        };
        if first == second {
            return Ok(SecretText::new(&first));
        }
        why = "the two passphrases differ: ".to_owned();
    }
    let message = format!(
        "no valid passphrase for {purpose} was typed in {MAXIMUM_ATTEMPTS} attempts ({why}nothing was written)"
    );
    Err(Error::refusal(Phase::Storage, message).with_code(ErrorCode::Passphrase))
}

fn timeout_refusal(purpose: &str) -> Error {
    let message = format!(
        "no passphrase for {purpose} was typed at the console within {minutes} minutes; nothing was written",
        minutes = PROMPT_TIMEOUT.as_secs() / 60
    );
    Error::refusal(Phase::Storage, message).with_code(ErrorCode::Passphrase)
}

/// Asks for the passphrase of preserved containers. `opens` returns whether a passphrase unlocks them. Returns an empty
/// passphrase if no typed passphrase unlocks them.
///
/// # Errors
/// Fails if the console cannot be read.
pub(crate) fn ask_preserved_passphrase(
    purpose: &str,
    ask: &mut AskPassphrase,
    opens: &mut dyn FnMut(&SecretText) -> bool,
) -> Result<SecretText> {
    let until = Instant::now() + PROMPT_TIMEOUT;
    let mut why = "";
    for _ in 0..MAXIMUM_ATTEMPTS {
        let question = format!(
            "{why}type the passphrase of the preserved {purpose}, and press Enter. The passphrase is not shown. To continue without the passphrase, press Enter: the reinstall is then refused, unless its order permits leaving {purpose} locked"
        );
        let typed = ask(&question, until)?.map(SecretText::new).unwrap_or_default();
        if typed.is_empty() || opens(&typed) {
            return Ok(typed);
        }
        why = "wrong passphrase: ";
    }
    Ok(SecretText::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Returns a console at which these lines are typed, and then nothing.
    fn typing<'a>(
        lines: &[&'a str],
        prompts: &'a mut Vec<String>,
    ) -> impl FnMut(&str, Instant) -> Result<Option<String>> + 'a {
        let mut lines: VecDeque<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        move |question, _| {
            prompts.push(question.to_owned());
            Ok(lines.pop_front())
        }
    }

    fn typed(lines: &[&str]) -> (Result<SecretText>, Vec<String>) {
        let mut prompts = Vec::new();
        let got = ask_new_passphrase("/srv", &mut typing(lines, &mut prompts));
        (got, prompts)
    }

    #[test]
    fn new_passphrase_is_typed_twice_within_three_attempts() {
        let (got, prompts) = typed(&["correct horse", "correct horse"]);
        assert_eq!(got.unwrap().reveal(), "correct horse");
        assert!(
            prompts.len() == 2 && prompts[0].contains("for /srv") && prompts[1].contains("the same passphrase again"),
            "{prompts:?}"
        );
        let (got, prompts) = typed(&["short", "correct horse", "correct house", "correct horse", "correct horse"]);
        assert_eq!(got.unwrap().reveal(), "correct horse");
        assert!(prompts[1].starts_with("too short: ") && prompts[3].starts_with("the two passphrases differ: "));
        for lines in [&["", "", ""][..], &["correct horse", "x", "correct horse", "y", "correct horse", "z"]] {
            let refused = typed(lines).0.unwrap_err();
            assert!(refused.is_refusal() && refused.to_string().contains("in 3 attempts"), "{refused}");
            assert!(!refused.to_string().contains("horse"), "{refused}");
        }
        for lines in [&[][..], &["correct horse"]] {
            let refused = typed(lines).0.unwrap_err();
            assert!(
                refused.is_refusal() && refused.to_string().contains("no passphrase for /srv was typed"),
                "{refused}"
            );
        }
    }

    #[test]
    fn preserved_container_opens_within_three_attempts_or_remains_locked() {
        let right = "correct horse";
        let cases: [(&[&str], &str, usize); 5] = [
            (&[right], right, 1),
            (&["wrong", "wrong too", right], right, 3),
            (&["wrong", "wrong too", "wrong again", right], "", 3),
            (&[""], "", 1),
            (&[], "", 1),
        ];
        for (lines, expected, questions) in cases {
            let mut prompts = Vec::new();
            let mut opens = |typed: &SecretText| typed.reveal() == right;
            let got = ask_preserved_passphrase("/srv", &mut typing(lines, &mut prompts), &mut opens).unwrap();
            assert_eq!((got.reveal(), prompts.len()), (expected, questions), "{lines:?}");
        }
    }
}
