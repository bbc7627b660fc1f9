//! Redfish (DSP0266): a system, what it can be reset to, and its boot override.

use super::{Action, Bmc, failed};
use crate::error::{Context, Phase, Result};
use crate::http;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{ETAG, IF_MATCH};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(60);
/// Of a system with all of its sensors.
const ANSWER_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
struct Link {
    #[serde(rename = "@odata.id")]
    id: String,
}

#[derive(Deserialize)]
struct Systems {
    #[serde(rename = "Members")]
    members: Vec<Link>,
}

#[derive(Deserialize)]
struct System {
    #[serde(default, rename = "UUID")]
    uuid: Option<String>,
    #[serde(default, rename = "PowerState")]
    power: Option<String>,
    #[serde(default, rename = "Actions")]
    actions: Value,
}

/// One that is asked.
struct Asked<'a> {
    client: Client,
    bmc: &'a Bmc,
    url: &'a str,
}

pub fn act(bmc: &Bmc, url: &str, system: Option<&str>, action: Action, machine: Option<&str>) -> Result<()> {
    let asked = Asked { client: http::client_for_device(bmc.insecure)?, bmc, url };
    let path = match system {
        Some(path) => path.to_owned(),
        None => asked.find(machine)?,
    };
    let (system, etag): (System, _) = asked.get(&path)?;
    match action {
        Action::Pxe => asked.boot_pxe(&path, etag),
        _ => asked.reset(&path, &system, action),
    }
}

impl Asked<'_> {
    /// The one that there is; of several the one with the machine's id.
    fn find(&self, machine: Option<&str>) -> Result<String> {
        let (Systems { members }, _) = self.get("/redfish/v1/Systems")?;
        if let [one] = &members[..] {
            return self.path(&one.id);
        }
        for Link { id } in &members {
            let path = self.path(id)?;
            let (System { uuid, .. }, _) = self.get(&path)?;
            if let (Some(uuid), Some(machine)) = (uuid, machine)
                && uuid.eq_ignore_ascii_case(machine)
            {
                return Ok(path);
            }
        }
        let all: Vec<&str> = members.iter().map(|link| link.id.as_str()).collect();
        let which = machine.map_or("is meant".to_owned(), |id| format!("has the id {id}"));
        Err(failed(format!(
            "{} has {} systems, and none of them is known to be the one that {which}: put its path behind the address. There is {}",
            self.url,
            members.len(),
            all.join(", ")
        )))
    }

    /// A link of the controller, which must not lead to another one.
    fn path(&self, link: &str) -> Result<String> {
        match link.starts_with('/') && !link.starts_with("//") {
            true => Ok(link.to_owned()),
            false => Err(failed(format!("{} names {link:?}, which is no path", self.url))),
        }
    }

    fn reset(&self, path: &str, system: &System, action: Action) -> Result<()> {
        let reset = &system.actions["#ComputerSystem.Reset"];
        let Some(target) = reset["target"].as_str() else {
            return Err(failed(format!("{}{path} cannot be switched: it has no ComputerSystem.Reset", self.url)));
        };
        let is_off = system.power.as_deref() == Some("Off");
        let wanted: &[&str] = match action {
            Action::Off => &["ForceOff"],
            Action::Cycle if !is_off => &["ForceRestart", "PowerCycle"],
            _ => &["On", "ForceOn"],
        };
        let allowed = reset["ResetType@Redfish.AllowableValues"].as_array();
        let fits = |kind: &&&str| allowed.is_none_or(|all| all.iter().any(|one| one.as_str() == Some(**kind)));
        let Some(kind) = wanted.iter().find(fits) else {
            return Err(failed(format!("{}{path} can do none of {}", self.url, wanted.join(", "))));
        };
        self.send(self.request(Method::POST, &self.path(target)?).json(&json!({ "ResetType": kind }))).map(drop)
    }

    fn boot_pxe(&self, path: &str, etag: Option<String>) -> Result<()> {
        let boot = json!({ "Boot": { "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe" } });
        let request = self.request(Method::PATCH, path).json(&boot);
        // Some take no change without it.
        let request = etag.into_iter().fold(request, |request, etag| request.header(IF_MATCH, etag));
        self.send(request).map(drop)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let Bmc { username, password, .. } = self.bmc;
        let request = self.client.request(method, format!("{}{path}", self.url)).timeout(ANSWER);
        request.header("OData-Version", "4.0").basic_auth(username, Some(password.reveal()))
    }

    fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<(T, Option<String>)> {
        let response = self.send(self.request(Method::GET, path))?;
        let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let what = || format!("the answer of {}{path} is not understood", self.url);
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(response, ANSWER_BYTES), &mut text)
            .context(Phase::Control, what)?;
        Ok((serde_json::from_slice(&text).context(Phase::Control, what)?, etag))
    }

    fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().map_err(reqwest::Error::without_url);
        let response =
            response.context(Phase::Control, || format!("no answer from the management controller {}", self.url))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "it does not take this username and password".to_owned()
            }
            status if status.is_redirection() => {
                "it sends on to another place, to which no password is sent".to_owned()
            }
            _ => message(response),
        };
        Err(failed(format!("the management controller {} answered {status}: {said}", self.url)))
    }
}

/// Redfish's own words, in a few.
fn message(response: Response) -> String {
    let mut text = Vec::new();
    let _ = std::io::Read::read_to_end(&mut std::io::Read::take(response, 64 << 10), &mut text);
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let error = &value["error"];
    let extended = error["@Message.ExtendedInfo"][0]["Message"].as_str();
    let said = extended.or(error["message"].as_str()).map(str::to_owned);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
    crate::text::clean(&said.chars().take(300).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmc::Address;
    use crate::pull::Secret;
    use crate::testing::http::{Act, Request, Server};

    const ONE: &str = "/redfish/v1/Systems/1";
    const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

    /// A controller with so many systems, of which the last is the machine, with this power.
    fn controller(systems: usize, power: &'static str) -> Server {
        let system = move |number: usize| {
            let uuid = if number == systems { ID.to_uppercase() } else { "other".to_owned() };
            json!({ "UUID": uuid, "PowerState": power, "Actions": { "#ComputerSystem.Reset": {
                "target": format!("/redfish/v1/Systems/{number}/Actions/ComputerSystem.Reset"),
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"] } } })
        };
        Server::start(Vec::new(), move |request: &Request| {
            let links: Vec<_> =
                (1..=systems).map(|number| json!({ "@odata.id": format!("/redfish/v1/Systems/{number}") })).collect();
            match (request.method.as_str(), request.path.strip_prefix("/redfish/v1/Systems")) {
                _ if request.authorization.as_deref() != Some("Basic YWRtaW46aHVudGVyMg==") => Act::says(401, "{}"),
                ("GET", Some("")) => Act::says(200, &json!({ "Members": links }).to_string()),
                ("GET", Some(number)) => {
                    let body = system(number[1..].parse().unwrap()).to_string();
                    Act { headers: vec![("ETag", "W/\"7\"".to_owned())], ..Act::says(200, &body) }
                }
                ("PATCH" | "POST", Some(_)) => Act::says(204, ""),
                _ => Act::says(404, "{}"),
            }
        })
    }

    fn bmc(server: &Server, system: Option<&str>) -> Bmc {
        let url = server.url("").trim_end_matches('/').to_owned();
        let at = Address::Redfish { url, system: system.map(str::to_owned) };
        Bmc { at, username: "admin".to_owned(), password: Secret::new("hunter2"), insecure: false }
    }

    fn last(server: &Server) -> (String, Value) {
        let request = server.requests().pop().unwrap();
        (request.line(), serde_json::from_str(&request.body).unwrap())
    }

    #[test]
    fn each_action_is_what_the_system_can_do() {
        for (power, action, kind) in [
            ("Off", Action::On, "On"),
            ("On", Action::Off, "ForceOff"),
            ("On", Action::Cycle, "ForceRestart"),
            ("Off", Action::Cycle, "On"),
        ] {
            let server = controller(1, power);
            bmc(&server, None).act(action, Some(ID)).unwrap();
            let expected = (format!("POST {ONE}/Actions/ComputerSystem.Reset"), json!({ "ResetType": kind }));
            assert_eq!(last(&server), expected);
        }
        let server = controller(1, "On");
        bmc(&server, Some(ONE)).act(Action::Pxe, None).unwrap();
        let (line, body) = last(&server);
        assert_eq!(line, format!("PATCH {ONE}"));
        let once = json!({ "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe" });
        assert_eq!(body, json!({ "Boot": once }));
        assert_eq!(server.requests().pop().unwrap().header("if-match"), Some("W/\"7\""));
    }

    #[test]
    fn of_several_systems_the_one_with_the_machines_id_is_meant() {
        let server = controller(3, "On");
        bmc(&server, None).act(Action::Off, Some(ID)).unwrap();
        assert_eq!(last(&server).0, "POST /redfish/v1/Systems/3/Actions/ComputerSystem.Reset");
        let why = bmc(&server, None).act(Action::Off, Some("x")).unwrap_err().to_string();
        assert!(why.contains("has 3 systems") && why.contains("/redfish/v1/Systems/2"), "{why}");
        assert!(server.requests().iter().filter(|request| request.method == "POST").count() == 1);
    }

    #[test]
    fn what_goes_wrong_is_said_without_the_password() {
        let server = controller(1, "On");
        let wrong = Bmc { password: Secret::new("hunter3"), ..bmc(&server, None) };
        let why = wrong.act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("does not take this username and password") && !why.contains("hunter"), "{why}");

        let error =
            r#"{"error": {"message": "general", "@Message.ExtendedInfo": [{"Message": "the fan is on fire"}]}}"#;
        let server = Server::start(Vec::new(), move |_| Act::says(500, error));
        let why = bmc(&server, Some(ONE)).act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("the fan is on fire"), "{why}");

        let other = controller(1, "On");
        let place = other.url("redfish/v1/Systems/1");
        let server = Server::start(Vec::new(), move |_| Act {
            headers: vec![("Location", place.clone())],
            ..Act::says(307, "")
        });
        let why = bmc(&server, Some(ONE)).act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("to which no password is sent"), "{why}");
        assert!(other.requests().is_empty());

        let server = Server::start(Vec::new(), |_| Act::says(200, r#"{"Actions": {}}"#));
        let why = bmc(&server, Some(ONE)).act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("has no ComputerSystem.Reset"), "{why}");
    }

    #[test]
    fn a_certificate_that_nobody_knows_is_taken_only_when_that_is_said() {
        let server = Server::start_tls(Vec::new(), |_| Act::says(401, ""));
        let strict = bmc(&server, Some(ONE));
        let why = strict.act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("no answer from the management controller"), "{why}");
        assert!(server.requests().is_empty());
        let lax = Bmc { insecure: true, ..strict };
        let why = lax.act(Action::On, None).unwrap_err().to_string();
        assert!(why.contains("does not take this username"), "{why}");
    }
}
