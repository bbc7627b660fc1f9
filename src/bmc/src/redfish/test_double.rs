//! Test double of a Redfish controller with one system. It can simulate each quirk of real controllers.

mod quirk;

pub use quirk::Quirk::{self, *};

use model::bmc::{Bmc, BmcAddress};
use model::secret_text::SecretText;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testing::http::{Request, ResponseBehavior, Server};

pub const SYSTEM: &str = "/redfish/v1/Systems/1";
pub const UUID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";
const SETTINGS: &str = "/redfish/v1/Systems/1/SD";
const BASIC: &str = "Basic YWRtaW46aHVudGVyMg==";
const MODE: &str = "BootSourceOverrideMode";

#[derive(Debug, Clone)]
pub struct DoubleState {
    pub uuid: String,
    pub power: &'static str,
    /// Boot override, by the three properties of Redfish: `BootSourceOverrideEnabled`, target and mode.
    pub boot: [String; 3],
    /// Power state and boot override before the last change, and the number of further reads that still report them.
    former: Option<(&'static str, [String; 3], u32)>,
    unavailable: u32,
    busy: u32,
    /// Number of changes of the power state, from which the reported time of the last reset is computed.
    resets: u32,
    /// Number of requests after which the session ends.
    session: Option<u32>,
}

impl DoubleState {
    pub fn session_has_ended(&self) -> bool {
        self.session.is_none()
    }
}

pub struct RedfishDouble {
    http: Server,
    state: Arc<Mutex<DoubleState>>,
}

impl RedfishDouble {
    /// Starts a controller whose machine has this power state and boots in UEFI mode.
    pub fn start(power: &'static str, quirks: &[Quirk]) -> RedfishDouble {
        let boot = ["Disabled", "None", "UEFI"].map(str::to_owned);
        let state = DoubleState {
            uuid: UUID.to_owned(),
            power,
            boot,
            former: None,
            unavailable: 0,
            busy: 0,
            resets: 0,
            session: None,
        };
        let state = Arc::new(Mutex::new(state));
        let (shared, quirks) = (state.clone(), quirks.to_vec());
        let http = Server::start(Vec::new(), move |request: &Request| {
            let response = Exchange { quirks: &quirks, request, state: &mut shared.lock().unwrap() }.respond();
            quirks.iter().fold(
                response,
                |response, quirk| if let Closes(ms) = quirk { to_late_close(&response, *ms) } else { response },
            )
        });
        RedfishDouble { http, state }
    }

    /// Sets the UUID of the system.
    pub fn with_uuid(self, uuid: &str) -> RedfishDouble {
        uuid.clone_into(&mut self.state().uuid);
        self
    }

    pub fn state(&self) -> MutexGuard<'_, DoubleState> {
        self.state.lock().unwrap()
    }

    pub fn url(&self) -> String {
        self.http.url("").trim_end_matches('/').to_owned()
    }

    pub fn bmc(&self) -> Bmc {
        let at = BmcAddress::Redfish { url: self.url(), system: None };
        Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.http.requests()
    }

    /// Returns the requests that have changed the system, as strings: `POST` and the reset type (`POST ForceOff`), or
    /// `PATCH`, the last segment of the path, and the boot mode.
    pub fn changes(&self) -> Vec<String> {
        let changes = self.requests().into_iter().filter_map(|request| {
            let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
            let mode = body["Boot"][MODE].as_str().unwrap_or("-").to_owned();
            match (request.method.as_str(), body["ResetType"].as_str()) {
                ("POST", Some(kind)) => Some(format!("POST {kind}")),
                ("PATCH", _) => {
                    Some(format!("PATCH {} {mode}", request.path.trim_end_matches('/').rsplit('/').next()?))
                }
                _ => None,
            }
        });
        changes.collect()
    }
}

/// Modifies a response so that the connection is closed without notice, this number of milliseconds after the response
/// was sent.
fn to_late_close(response: &ResponseBehavior, milliseconds: u64) -> ResponseBehavior {
    let body = String::from_utf8_lossy(response.body.as_deref().unwrap_or_default()).into_owned();
    let status = response.status.unwrap_or(200);
    let wire = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    ResponseBehavior { linger: Duration::from_millis(milliseconds), ..ResponseBehavior::wire(wire) }
}

fn refuse(status: u16, message: &str) -> ResponseBehavior {
    ResponseBehavior::respond(
        status,
        &json!({"error": {"code": "Base.1.0.GeneralError", "message": "See @Message.ExtendedInfo.",
        "@Message.ExtendedInfo": [{"MessageId": "Base.1.0.X", "Message": message}]}})
        .to_string(),
    )
}

struct Exchange<'a> {
    quirks: &'a [Quirk],
    request: &'a Request,
    state: &'a mut DoubleState,
}

impl Exchange<'_> {
    fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }

    fn find<T>(&self, select: impl Fn(&Quirk) -> Option<T>) -> Option<T> {
        self.quirks.iter().find_map(select)
    }

    fn respond(&mut self) -> ResponseBehavior {
        let path = self.request.path.trim_end_matches('/').to_owned();
        self.redirect().or_else(|| self.reject_credentials(&path)).unwrap_or_else(|| {
            match self.request.method.as_str() {
                "GET" => self.read(&path),
                "PATCH" => self.change_boot(&path),
                "POST" if path.ends_with("ComputerSystem.Reset") => self.reset(),
                "DELETE" if path == "/redfish/v1/Sessions/7" => {
                    self.state.session = None;
                    ResponseBehavior::respond(204, "")
                }
                _ => ResponseBehavior::respond(404, "{}"),
            }
        })
    }

    fn redirect(&self) -> Option<ResponseBehavior> {
        let Request { path, .. } = self.request;
        let host = self.request.header("host").unwrap_or_default();
        let to = |status, location| ResponseBehavior {
            headers: vec![("Location", location)],
            ..ResponseBehavior::respond(status, "")
        };
        match self.find(|quirk| if let Slash(status) = quirk { Some(*status) } else { None }) {
            _ if self.has(RedirectsForever) => Some(to(308, path.clone())),
            _ if path.ends_with('/') => None,
            Some(status) => Some(to(status, format!("{path}/"))),
            None => self.has(SlashAbsolute).then(|| to(308, format!("http://{host}{path}/"))),
        }
    }

    fn reject_credentials(&mut self, path: &str) -> Option<ResponseBehavior> {
        if path == "/redfish/v1" {
            return None;
        }
        let expires = self.find(|quirk| if let SessionExpires(after) = quirk { Some(*after) } else { None });
        let is_session_only = self.has(SessionOnly) || self.has(BasicOffered) || expires.is_some();
        if is_session_only && (self.request.method.as_str(), path) == ("POST", "/redfish/v1/Sessions") {
            let is_valid =
                self.request.authorization.is_none() && self.request.body.contains("\"Password\":\"hunter2\"");
            self.state.session = is_valid.then_some(expires.unwrap_or(u32::MAX));
            let headers = vec![("X-Auth-Token", "token".to_owned()), ("Location", "/redfish/v1/Sessions/7".to_owned())];
            return Some(if is_valid {
                ResponseBehavior { headers, ..ResponseBehavior::respond(201, "{}") }
            } else {
                refuse(401, "no such user: hunter3")
            });
        }
        let is_authorized = if is_session_only || self.has(NoSession) {
            let remaining = self.state.session.filter(|remaining| *remaining > 0);
            self.state.session = remaining.map(|remaining| remaining - 1);
            remaining.is_some() && self.request.header("x-auth-token") == Some("token")
        } else {
            self.request.authorization.as_deref() == Some(BASIC)
        };
        let is_change = ["PATCH", "POST"].contains(&self.request.method.as_str());
        let offer = vec![("WWW-Authenticate", "Basic realm=\"x\"".to_owned())];
        match () {
            () if !is_authorized && self.has(BasicOffered) => {
                Some(ResponseBehavior { headers: offer, ..refuse(401, "session required") })
            }
            () if !is_authorized && (is_session_only || self.has(NoSession)) => Some(refuse(401, "session required")),
            () if !is_authorized => Some(ResponseBehavior { headers: offer, ..ResponseBehavior::respond(401, "{}") }),
            () if self.has(PasswordChange) => Some(refuse(403, "The password must be changed first.")),
            () if self.has(Forbidden) && is_change => Some(refuse(403, "The role lacks privileges for this.")),
            () => None,
        }
    }

    fn read(&mut self, path: &str) -> ResponseBehavior {
        let types = json!({"Name": "ResetType", "AllowableValues": self.list_types()});
        let document = match path {
            "/redfish/v1" => json!({"Links": {"Sessions": {"@odata.id": "/redfish/v1/Sessions"}}}),
            "/redfish/v1/Systems" if self.has(Paged) => {
                json!({"Members": [], "Members@odata.nextLink": "/redfish/v1/Systems?$skip=1"})
            }
            "/redfish/v1/Systems" | "/redfish/v1/Systems?$skip=1" => json!({"Members": [{"@odata.id": SYSTEM}]}),
            "/redfish/v1/Systems/1/ResetActionInfo" => json!({"Parameters": [{"Name": "Other"}, types]}),
            SYSTEM if self.state.unavailable > 0 => {
                self.state.unavailable -= 1;
                return ResponseBehavior::respond(503, "");
            }
            SYSTEM => self.describe_system(),
            SETTINGS if self.has(SettingsOther) => json!({"Boot": {"BootOrder": []}}),
            SETTINGS => json!({"Boot": self.describe_boot(&self.state.boot)}),
            _ => return ResponseBehavior::respond(404, "{}"),
        };
        let etag = match () {
            () if self.has(EtagWeak) => "W/\"7\"",
            () if self.has(EtagDoubled) => "\"\"7\"\"",
            () if self.has(EtagCompressed) => "\"7-gzip\"",
            () if self.has(EtagUnknown) || self.has(EtagInDocument) => "",
            () => "\"7\"",
        };
        let headers = if etag.is_empty() { Vec::new() } else { vec![("ETag", etag.to_owned())] };
        ResponseBehavior { headers, ..ResponseBehavior::respond(200, &document.to_string()) }
    }

    fn list_types(&self) -> Value {
        let types = self.find(|quirk| if let Types(types) = quirk { Some(*types) } else { None });
        json!(types.unwrap_or(&["On", "ForceOff", "ForceRestart"]))
    }

    fn describe_boot(&self, [enabled, target, mode]: &[String; 3]) -> Value {
        let targets: &[&str] = if self.has(PxeMissing) { &["None", "Hdd"] } else { &["None", "Pxe", "Hdd"] };
        let enabled = if self.has(AlwaysContinuous) { "Continuous" } else { enabled };
        let mut boot = json!({"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target,
            "BootSourceOverrideTarget@Redfish.AllowableValues": targets});
        if !self.has(ModeMissing) {
            boot[MODE] = json!(mode);
        }
        boot
    }

    fn describe_system(&mut self) -> Value {
        let former = self.state.former.take();
        let (power, boot) = match &former {
            Some((power, boot, _)) => (*power, boot.clone()),
            None => (self.state.power, self.state.boot.clone()),
        };
        self.state.former =
            former.filter(|(.., reads)| *reads > 1).map(|(power, boot, reads)| (power, boot, reads - 1));
        let mut reset = json!({"target": format!("{SYSTEM}/Actions/ComputerSystem.Reset")});
        match () {
            () if self.has(TypesUnlisted) => {}
            () if self.has(DeadLinks) => reset["@Redfish.ActionInfo"] = json!("/dead"),
            () if self.has(ActionInfo) => reset["@Redfish.ActionInfo"] = json!(format!("{SYSTEM}/ResetActionInfo")),
            () => reset["ResetType@Redfish.AllowableValues"] = self.list_types(),
        }
        let mut system =
            json!({"UUID": self.state.uuid, "PowerState": power, "Actions": {"#ComputerSystem.Reset": reset}});
        if self.has(ResetTime) {
            system["LastResetTime"] = json!(format!("2026-11-05T08:00:{:02}Z", self.state.resets));
        }
        if self.has(PowerUnknown) {
            system["PowerState"] = Value::Null;
        }
        let has_settings = self.has(SettingsOnly) || self.has(SettingsSilent);
        if has_settings || self.has(SettingsOther) {
            system["@Redfish.Settings"] =
                json!({"SettingsObject": {"@odata.id": SETTINGS}, "SupportedApplyTimes": ["OnReset"]});
        }
        if self.has(DeadLinks) {
            system["@Redfish.Settings"] = json!({"SettingsObject": {"@odata.id": "/dead"}});
        }
        match () {
            () if self.has(BootMissing) => {}
            () if has_settings => system["Boot"] = self.describe_boot(&["Disabled", "None", "UEFI"].map(str::to_owned)),
            () => system["Boot"] = self.describe_boot(&boot),
        }
        if self.has(EtagInDocument) {
            system["@odata.etag"] = json!("\"7\"");
        }
        system
    }

    /// Records the state before a change. Sets how many of the next reads report this state, and how many reads fail.
    fn begin_change(&mut self) {
        let lag = self.find(|quirk| if let Lag(reads) = quirk { Some(*reads) } else { None });
        self.state.former = lag.map(|reads| (self.state.power, self.state.boot.clone(), reads));
        self.state.unavailable =
            self.find(|quirk| if let Unavailable(reads) = quirk { Some(*reads) } else { None }).unwrap_or(0);
    }

    fn reject_etag(&self) -> Option<ResponseBehavior> {
        let sent = self.request.header("if-match");
        let is_rejected = match () {
            () if self.has(EtagRejected) => sent.is_some(),
            () if self.has(EtagUnknown) => sent != Some("*"),
            () if [EtagInDocument, EtagWeak, EtagDoubled, EtagCompressed].iter().any(|quirk| self.has(*quirk)) => {
                sent != Some("\"7\"")
            }
            () => false,
        };
        is_rejected.then(|| refuse(if sent.is_none() { 428 } else { 412 }, "precondition"))
    }

    fn change_boot(&mut self, path: &str) -> ResponseBehavior {
        let body: Value = serde_json::from_str(&self.request.body).unwrap();
        let boot = &body["Boot"];
        let text = |name: &str| boot[name].as_str().unwrap_or_default().to_owned();
        let mode = text(MODE);
        match path {
            _ if self.reject_etag().is_some() => return self.reject_etag().unwrap(),
            SETTINGS if body["@Redfish.SettingsApplyTime"]["ApplyTime"] != "OnReset" => {
                return refuse(400, "apply time");
            }
            SYSTEM if self.has(SettingsOnly) => return refuse(400, "moved to the settings"),
            SYSTEM if self.has(SettingsSilent) => return ResponseBehavior::respond(204, ""),
            _ if self.has(Ignores) || self.has(BootMissing) => return ResponseBehavior::respond(204, ""),
            _ if self.has(ModeRequired) && mode.is_empty() => {
                return refuse(400, "BootSourceOverrideMode is required.");
            }
            _ if self.has(ModeReadOnly) && !mode.is_empty() => {
                let info = json!([{"MessageId": "Base.1.4.PropertyNotWritable", "MessageArgs": [MODE]}]);
                return ResponseBehavior::respond(400, &json!({"error": {"@Message.ExtendedInfo": info}}).to_string());
            }
            _ => {}
        }
        self.begin_change();
        let former_mode = if self.has(ModeLost) { "Legacy" } else { &self.state.boot[2] };
        let mode = if mode.is_empty() { former_mode.to_owned() } else { mode };
        let mode = if self.has(ModeIgnored) { "Legacy".to_owned() } else { mode };
        self.state.boot = [text("BootSourceOverrideEnabled"), text("BootSourceOverrideTarget"), mode];
        if self.has(ErrorDespiteChange) {
            refuse(400, "depends on another attribute")
        } else {
            ResponseBehavior::respond(204, "")
        }
    }

    fn reset(&mut self) -> ResponseBehavior {
        let body: Value = serde_json::from_str(&self.request.body).unwrap();
        let kind = body["ResetType"].as_str().unwrap();
        let next = if kind == "ForceOff" { "Off" } else { "On" };
        let is_restart = !["On", "ForceOn", "ForceOff"].contains(&kind);
        let types = self.list_types();
        let types = types.as_array().unwrap();
        if !types.is_empty() && !types.iter().any(|one| one == kind) {
            return refuse(400, &format!("{kind} is not in the list of acceptable values"));
        }
        let is_conflict =
            self.has(Conflict) && if is_restart { self.state.power == "Off" } else { self.state.power == next };
        if is_conflict || next == "On" && self.state.busy > 0 {
            self.state.busy = self.state.busy.saturating_sub(1);
            return refuse(409, &format!("the system is already {}", self.state.power));
        }
        if !self.has(Ignores) {
            self.begin_change();
            self.state.power = next;
            self.state.resets += 1;
            self.state.busy =
                self.find(|quirk| if let BusyAfterOff(times) = quirk { Some(*times) } else { None }).unwrap_or(0);
        }
        ResponseBehavior::respond(204, "")
    }
}
