//! `drophammer machine`: the operator's side of `drophammer serve`.

use crate::cli::{self, MachineCommand};
use crate::control::wire::ErrorBody;
use crate::desk::Outcome;
use crate::error::{Context, Error, Phase, Result};
use crate::http;
use crate::serve::operator::{Listed, Reinstall};
use crate::text;
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(30);

/// Does what was asked for, and prints it.
///
/// # Errors
/// The server cannot be reached, does not know the token, or has trouble of its own.
pub fn run(options: &cli::Machine) -> Result<Outcome> {
    let server = Server::new(options)?;
    let all: Vec<Listed> = match server.ask(server.request(Method::GET, "/v1/machines"))? {
        Answer::Good(all) => all,
        Answer::Refused(why) => return Ok(refused(&why)),
    };
    match &options.command {
        MachineCommand::List if options.json => print_json(&all),
        MachineCommand::List => {
            print!("{}", table(&all));
            Ok(Outcome::Good)
        }
        MachineCommand::Reinstall(asked) => {
            let machine = match find(&all, &asked.machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(refused(&why)),
            };
            let path = format!("/v1/machine/{}/reinstall", machine.id);
            let request = match &asked.image {
                None => server.request(Method::DELETE, &path),
                Some(image) => server.request(Method::POST, &path).json(&Reinstall {
                    id: machine.id.clone(),
                    imageid: image.clone(),
                    without_marker: asked.without_marker,
                }),
            };
            match server.ask::<Listed>(request)? {
                Answer::Refused(why) => Ok(refused(&why)),
                Answer::Good(listed) if options.json => print_json(&listed),
                Answer::Good(listed) => {
                    print!("{}", ordered(machine, &listed));
                    Ok(Outcome::Good)
                }
            }
        }
    }
}

struct Server {
    client: Client,
    url: String,
    token: String,
    token_file: PathBuf,
}

enum Answer<T> {
    Good(T),
    /// The server's own words.
    Refused(String),
}

impl Server {
    fn new(options: &cli::Machine) -> Result<Server> {
        let url = options.server.clone().or_else(|| env::var("DROPHAMMER_SERVER").ok());
        let url = url.unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
        let file = options.token_file.clone().or_else(|| env::var_os("DROPHAMMER_TOKEN_FILE").map(PathBuf::from));
        let token_file = file.unwrap_or_else(|| PathBuf::from("operator.token"));
        let token = read_token(&token_file)?;
        Ok(Server { client: http::client()?, url: url.trim_end_matches('/').to_owned(), token, token_file })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token).timeout(ANSWER)
    }

    fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Answer<T>> {
        let reach = || format!("no answer from {}; is it `drophammer serve`? --server URL names another", self.url);
        let response = request.send().map_err(reqwest::Error::without_url).context(Phase::Control, reach)?;
        let status = response.status();
        let body = response.text().map_err(reqwest::Error::without_url).context(Phase::Control, reach)?;
        if status.is_success() {
            let what = || format!("the answer of {} is not understood", self.url);
            return serde_json::from_str(&body).map(Answer::Good).context(Phase::Control, what);
        }
        let said = serde_json::from_str::<ErrorBody>(&body).map(|body| body.message).unwrap_or(body);
        match status.as_u16() {
            401 => Err(Error::new(
                Phase::Control,
                format!("{} does not take the token of {}: {said}", self.url, self.token_file.display()),
            )),
            400 | 404 | 409 => Ok(Answer::Refused(said)),
            _ => Err(Error::new(Phase::Control, format!("{} answered {status}: {said}", self.url))),
        }
    }
}

fn read_token(file: &Path) -> Result<String> {
    let what = || {
        let where_from = "it is operator.token in the directory of `drophammer serve`; --token-file FILE names a copy";
        format!("read the operator's token {}: {where_from}", file.display())
    };
    let text = std::fs::read_to_string(file).context(Phase::Control, what)?;
    match text.trim() {
        "" => Err(Error::new(Phase::Control, format!("the operator's token {} is empty", file.display()))),
        token => Ok(token.to_owned()),
    }
}

fn refused(why: &str) -> Outcome {
    eprintln!("drophammer: {why}");
    Outcome::Refused
}

fn print_json(value: &impl Serialize) -> Result<Outcome> {
    println!("{}", serde_json::to_string_pretty(value).context(Phase::Control, || "write JSON")?);
    Ok(Outcome::Good)
}

/// The machine with that id or that name.
fn find<'a>(all: &'a [Listed], wanted: &str) -> Result<&'a Listed, String> {
    let by_id = all.iter().find(|machine| machine.id.eq_ignore_ascii_case(wanted));
    let by_name: Vec<&Listed> = all.iter().filter(|machine| machine.name == wanted && !wanted.is_empty()).collect();
    match (by_id, &by_name[..]) {
        (Some(machine), _) => Ok(machine),
        (None, [machine]) => Ok(machine),
        (None, []) => {
            Err(format!("the server has no machine {wanted:?}; `drophammer machine list` shows those it has"))
        }
        (None, several) => {
            let ids: Vec<&str> = several.iter().map(|machine| machine.id.as_str()).collect();
            Err(format!("{} machines are called {wanted:?}: say which by its id, {}", several.len(), ids.join(" or ")))
        }
    }
}

fn table(all: &[Listed]) -> String {
    let mut rows = vec![["name", "id", "image", "reinstall", "last event", "last reinstall"].map(str::to_owned)];
    let or_none = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    rows.extend(all.iter().map(|machine| {
        let event = machine.last_event.as_ref().map(|event| match &event.step {
            Some(step) => format!("{} {step}", event.event),
            None => event.event.to_string(),
        });
        [
            or_none(Some(&machine.name)),
            machine.id.clone(),
            or_none(machine.image.as_deref()),
            or_none(Some(&what_is_ordered(machine))),
            or_none(event.as_deref()),
            or_none(machine.outcome.as_ref().map(how_it_ended).as_deref()),
        ]
    }));
    text::columns(&rows)
}

fn what_is_ordered(machine: &Listed) -> String {
    match (&machine.order, &machine.locked) {
        (Some(order), _) if order.given_up => format!("{} given up", order.image),
        (Some(order), _) => {
            let begun = if order.begun { ", begun" } else { "" };
            format!("{} attempt {} of {}{begun}", order.image, order.attempts, machine.attempts)
        }
        (None, Some(_)) => "locked".to_owned(),
        (None, None) if machine.allocation.is_some() && !machine.installed => "not installed".to_owned(),
        (None, None) => String::new(),
    }
}

/// One line of it: the rest is in the server's output.
fn how_it_ended(outcome: &crate::serve::operator::Outcome) -> String {
    let how = if outcome.success { "done" } else { "FAILED" };
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let message: String = outcome.message.lines().next().unwrap_or_default().chars().take(60).map(plain).collect();
    format!("{how} {}: {message}", outcome.image)
}

/// What happens next, for people.
fn ordered(before: &Listed, now: &Listed) -> String {
    let name = if now.name.is_empty() { &now.id } else { &now.name };
    let Some(order) = &now.order else {
        return format!("The reinstall of {name} is taken back. It keeps what it has.\n");
    };
    let from = before.image.as_deref().map(|image| format!(" in place of {image}")).unwrap_or_default();
    let layout = now.layout.as_deref().unwrap_or("LAYOUT");
    format!(
        "{name} is reinstalled with {}{from} when it next boots over PXE; order {}.\n\
         Now either of:\n  \
         power-cycle it into PXE\n  \
         drophammer reinstall                  on the machine: the same without the firmware's minutes\n\
         What it will do, disk by disk:\n  \
         drophammer plan --reinstall --layout FILE      on the machine; FILE has the layout {layout:?}\n\
         Take it back, as long as it has not begun:\n  \
         drophammer machine reinstall {name} --cancel\n",
        order.image, order.id
    )
}
