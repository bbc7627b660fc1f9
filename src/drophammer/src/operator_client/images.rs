//! `drophammer image list` and `image modify`: the images of a server.

use super::options::{ListImagesOptions, ModifyImageOptions};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::{format_columns, replace_hidden, without_secrets};
use common::output::print_text;
use reqwest::Method;
use serde_json::Value;

/// Lists the images.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn list_images(options: &ListImagesOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let path = format!("/v1/image?hidden={0}&blacklisted={0}", options.all);
    match server.send_json::<Vec<Value>>(server.request(Method::GET, &path))? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(all) if options.json => print_json(&all),
        OperatorResponse::Good(all) => print_text(&format_images(&all)).map(|()| CommandOutcome::Good),
    }
}

/// Sets or clears the flags `hidden` and `blacklisted` of an image.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn modify_image(options: &ModifyImageOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let mut last = None;
    for (state, asked) in [("hidden", options.hidden), ("blacklisted", options.blacklisted)] {
        let Some(is) = asked else { continue };
        let method = if is { Method::PUT } else { Method::DELETE };
        let path = format!("/v1/image{}/{state}", encode_segment(&options.image));
        match server.send_json::<Value>(server.request(method, &path))? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(states) => last = Some(states),
        }
    }
    match last {
        Some(states) if options.json => print_json(&states),
        Some(states) => {
            let names = |state: &str| {
                let names =
                    states[state].as_array().into_iter().flatten().filter_map(Value::as_str).map(replace_hidden);
                let names = names.collect::<Vec<_>>().join(", ");
                if names.is_empty() { "none".to_owned() } else { names }
            };
            print_text(&format!("Hidden: {}. Blacklisted: {}.\n", names("hidden"), names("blacklisted")))
                .map(|()| CommandOutcome::Good)
        }
        None => Ok(print_refusal("nothing to change: specify --hidden or --blacklisted, with true or false")),
    }
}

fn format_images(all: &[Value]) -> String {
    let mut rows = vec![["id", "name", "from", "state"].map(str::to_owned)];
    let text = |value: &Value| replace_hidden(value.as_str().unwrap_or_default());
    rows.extend(all.iter().map(|image| {
        let from = if image["file"].is_string() { text(&image["file"]) } else { without_secrets(&text(&image["url"])) };
        let states = ["hidden", "blacklisted"].into_iter().filter(|state| image[*state] == true);
        let waits = (image["ready"] == false).then_some("no digest yet");
        [text(&image["id"]), text(&image["name"]), from, states.chain(waits).collect::<Vec<_>>().join(", ")]
    }));
    format_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table() {
        let all = [
            json!({"id": "debian-12", "name": "Debian", "file": "d.tar", "url": "http://h/images/d.tar", "ready": true}),
            json!({"id": "debian-11", "name": "", "url": "https://u:p@h/d.tar", "ready": false, "hidden": true, "blacklisted": true}),
        ];
        let table = format_images(&all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "debian-12  Debian  d.tar");
        assert!(lines[2].ends_with("hidden, blacklisted, no digest yet") && !lines[2].contains("u:p"), "{}", lines[2]);
    }
}
