//! Access to the code blocks in the documentation, which tests run or parse.

/// Returns the contents of the fenced code blocks that have this language tag.
pub fn code_blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).map(str::to_owned).collect()
}
