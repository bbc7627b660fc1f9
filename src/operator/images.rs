//! `drophammer image list` and `image modify`: the images of a server.

use super::options::{ListImages, ModifyImage};
use super::{Answer, Server, print_json, refused, step};
use crate::error::Result;
use crate::exit::Exit;
use crate::stdout::print;
use crate::text::{clean, columns, without_secrets};
use reqwest::Method;
use serde_json::Value;

/// Lists the images.
///
/// # Errors
/// As [`super::run`].
pub fn list(options: &ListImages) -> Result<Exit> {
    let server = Server::new(&options.of)?;
    let path = format!("/v1/image?hidden={0}&blacklisted={0}", options.all);
    match server.ask::<Vec<Value>>(server.request(Method::GET, &path))? {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(all) if options.json => print_json(&all),
        Answer::Good(all) => print(&table(&all)).map(|()| Exit::Good),
    }
}

/// Sets or clears the states of an image.
///
/// # Errors
/// As [`super::run`].
pub fn modify(options: &ModifyImage) -> Result<Exit> {
    let server = Server::new(&options.of)?;
    let mut last = None;
    for (state, asked) in [("hidden", options.hidden), ("blacklisted", options.blacklisted)] {
        let Some(is) = asked else { continue };
        let method = if is { Method::PUT } else { Method::DELETE };
        let path = format!("/v1/image{}/{state}", step(&options.image));
        match server.ask::<Value>(server.request(method, &path))? {
            Answer::Refused(why) => return Ok(refused(&why)),
            Answer::Good(states) => last = Some(states),
        }
    }
    match last {
        Some(states) if options.json => print_json(&states),
        Some(states) => {
            let names = |state: &str| {
                let names = states[state].as_array().into_iter().flatten().filter_map(Value::as_str).map(clean);
                let names = names.collect::<Vec<_>>().join(", ");
                if names.is_empty() { "none".to_owned() } else { names }
            };
            print(&format!("Hidden: {}. Blacklisted: {}.\n", names("hidden"), names("blacklisted")))
                .map(|()| Exit::Good)
        }
        None => Ok(refused("nothing to change: give --hidden or --blacklisted, with true or false")),
    }
}

fn table(all: &[Value]) -> String {
    let mut rows = vec![["id", "name", "from", "state"].map(str::to_owned)];
    let text = |value: &Value| clean(value.as_str().unwrap_or_default());
    rows.extend(all.iter().map(|image| {
        let from = if image["file"].is_string() { text(&image["file"]) } else { without_secrets(&text(&image["url"])) };
        let states = ["hidden", "blacklisted"].into_iter().filter(|state| image[*state] == true);
        let waits = (image["ready"] == false).then_some("no digest yet");
        [text(&image["id"]), text(&image["name"]), from, states.chain(waits).collect::<Vec<_>>().join(", ")]
    }));
    columns(&rows)
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
        let table = table(&all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "debian-12  Debian  d.tar");
        assert!(lines[2].ends_with("hidden, blacklisted, no digest yet") && !lines[2].contains("u:p"), "{}", lines[2]);
    }
}
