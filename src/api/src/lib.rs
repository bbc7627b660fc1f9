//! Endpoints of the provisioning server: the JSON APIs of agents and operators, and the files that firmware loads.
//!
//! Requests are authenticated and limited before they are parsed, and nothing is acknowledged before it is stored.
//! Start with [`routes`], the table of all endpoints. All handlers share [`AppState`].
//!
//! * Operator's directory: the crate `site` reads the directory. [`site_reload`] watches the directory and publishes
//!   snapshots, `install_state_enrichment` and `plan_approval_check` combine snapshots with the database, and
//!   [`deploy_templates`] changes templates. [`site_documents`] stores and returns all documents at once.
//! * State: the crate `store` contains the database.
//! * Machines: [`netboot`] boots machines with the scripts of the crate `pxe`, `boot_messages` describes these boots,
//!   `machine_auth` and [`source_port_check`] authenticate machines, `machine_identification` identifies them,
//!   `abandoned_reinstall_messages` reports reinstalls that failed too often, and [`migration_requests`] migrates
//!   machines. [`agent_api`] is the API of the agents, [`console_log`] stores console logs, [`downloads`] serves files,
//!   and [`out_of_band`] runs the Redfish steps that precede an installation.
//! * Operators: [`operator_api`] is the operator's API, and [`metal_api`] is compatible with metal-api. [`openapi`] and
//!   `json_schemas` describe the endpoints. [`machine_file_creation`] creates machine files, [`machine_details`] and
//!   [`install_timeline`] describe one machine, and [`display_phase`] summarizes its state in a few words.
//!   [`power`] and [`freed_machine_shutdown`] switch machines on and off, and `controller_identity` refuses wrong
//!   controllers. [`plan_input`], [`rack_plan`] and [`boot_digest`] answer requests of `drophammer` commands.
//! * Rollouts: [`rollouts`] reinstalls many machines in waves.
//! * Users: [`access`] authorizes users, [`audit_log`] records their requests, [`user_management`] manages users and
//!   tokens, and [`oidc_login`] logs in the users of an identity provider.
//! * Requests: [`accepted_host_names`] checks the host of a request, [`base_url`] determines URLs, [`request_body`]
//!   reads bodies, [`metrics`] counts events, and [`planner_pool`] runs plans.

pub mod abandoned_bmc_actions;
mod abandoned_reinstall_messages;
pub mod accepted_host_names;
pub mod access;
mod added_image_wait;
pub mod agent_api;
pub mod audit_log;
pub mod base_url;
mod bearer_token;
mod bmc_lease;
pub mod boot_digest;
mod boot_messages;
pub mod console_log;
mod controller_identity;
pub mod deploy_templates;
pub mod display_phase;
pub mod downloads;
pub mod freed_machine_shutdown;
pub mod install_state_enrichment;
pub mod install_timeline;
mod json_schemas;
pub mod machine_adoption;
mod machine_auth;
pub mod machine_details;
pub mod machine_file_creation;
mod machine_identification;
pub mod metal_api;
pub mod metrics;
pub mod migration_requests;
pub mod netboot;
pub mod oidc_login;
pub mod openapi;
pub mod operator_api;
pub mod out_of_band;
mod page_query;
mod plan_approval_check;
pub mod plan_input;
pub mod planner_pool;
pub mod power;
pub mod rack_plan;
pub mod request_body;
pub mod rollouts;
pub mod routes;
pub mod server_problems;
pub mod site_documents;
pub mod site_reload;
pub mod source_port_check;
pub mod user_management;

use accepted_host_names::HostNames;
use deploy_templates::TemplateWriter;
use http_server::anonymous_event_limit::AnonymousEvents;
use http_server::client_quotas::ClientQuotas;
use http_server::rate_limited_log::RateLimitedLog;
use http_server::server_log::ServerLog;
use http_server::tls::ServerTls;
use linux::neighbor_table::MacLookup;
use planner_pool::PlannerPool;
use site::documents::SiteDocuments;
use site::machine_refresh::ChangedMachine;
use site::snapshot::SiteSnapshot;
use site_reload::ReloadEvent;
use source_port_check::SourcePorts;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::ServerState;
use store::boot_token::BootTokenKey;
use tokio::sync::watch as published;

/// TLS configuration, and the port on which TLS is served.
pub struct HttpsPort {
    pub tls: ServerTls,
    pub port: u16,
}

/// State shared by all request handlers.
pub struct AppState {
    pub url: Option<String>,
    pub hosts: HostNames,
    pub boot: PathBuf,
    /// Directory of iPXE's binaries; `None` without `--pxe`.
    pub ipxe: Option<PathBuf>,
    pub images: PathBuf,
    pub layouts: PathBuf,
    pub dir: PathBuf,
    /// Source of the operator's documents: the directory, or the database.
    pub documents: SiteDocuments,
    pub machines: PathBuf,
    pub cmdline: String,
    pub directory: published::Receiver<Arc<SiteSnapshot>>,
    pub closing: published::Receiver<bool>,
    pub state: ServerState,
    pub counters: Arc<metrics::Metrics>,
    pub watch: ServerLog,
    /// Hash of the operator's token.
    pub operator: store::token_hash::TokenHash,
    /// Hash of the token for metrics.
    pub metrics: store::token_hash::TokenHash,
    pub wake: mpsc::Sender<ReloadEvent>,
    pub boot_tokens: BootTokenKey,
    pub source_ports: SourcePorts,
    pub client_quotas: ClientQuotas,
    pub neighbors: MacLookup,
    pub rate_limited_log: RateLimitedLog,
    pub anonymous_events: AnonymousEvents,
    pub https: Option<HttpsPort>,
    pub templates: TemplateWriter,
    pub planner: PlannerPool,
    /// Login sessions of the web page.
    pub sessions: access::login_sessions::LoginSessions,
    /// Identity provider whose users can log in.
    pub oidc: Option<Arc<oidc::provider::OidcProvider>>,
    /// Interval at which the session of an open stream of live updates is verified.
    pub session_interval: Duration,
    /// Summaries of machines for lists.
    pub summaries: operator_api::summary_cache::SummaryCache,
    /// Snapshots for users with projects.
    pub project_snapshots: access::project_snapshots::ProjectSnapshots,
    pub audit: audit_log::AuditLog,
    pub certificate_checks: migration_requests::certificate_check_record::CertificateChecks,
    /// Wakes the task that continues the Redfish steps.
    pub runs: tokio::sync::Notify,
    /// Interval at which the tasks for Redfish steps and for rollouts continue unfinished work.
    pub run_interval: Duration,
    /// Wakes the task that continues rollouts.
    pub rollouts: tokio::sync::Notify,
}

impl AppState {
    /// Returns the current snapshot of the directory. In a request of a user with projects, it contains only the
    /// machines of these projects.
    pub fn directory(&self) -> Arc<SiteSnapshot> {
        let all = self.directory.borrow().clone();
        match access::current_projects() {
            Some(projects) => self.project_snapshots.restrict(all, &projects),
            None => all,
        }
    }

    /// Returns the current snapshot with the machines of all projects, even in a request of a user with projects. The
    /// caller must not copy its contents into a response.
    pub fn whole_directory(&self) -> Arc<SiteSnapshot> {
        self.directory.borrow().clone()
    }

    /// Returns whether the current user may see both machines of a migration.
    pub fn may_see_migration(&self, migration: &store::machine_migration::Migration) -> bool {
        let directory = self.directory();
        access::current_projects().is_none()
            || [&migration.source, &migration.target].iter().all(|id| directory.find_machine(id).is_some())
    }

    /// Returns the snapshot that this user may see. Used by code that does not run within a request of the user.
    pub fn directory_for(&self, identity: &access::Identity) -> Arc<SiteSnapshot> {
        let all = self.directory.borrow().clone();
        match identity.is_restricted() {
            true => self.project_snapshots.restrict(all, &identity.projects),
            false => all,
        }
    }

    /// Logs a problem for the operator. The log line is subject to a rate limit, because any client on the network can
    /// trigger it.
    pub fn log_rate_limited(&self, text: String) {
        self.rate_limited_log.log_problem(text);
    }

    /// Requests a reload of the directory. The new snapshot wakes waiting machines, and problems are logged.
    pub fn request_reload(&self) {
        // Sending fails only at shutdown, when the directory thread has exited.
        let _ = self.wake.send(ReloadEvent::State);
    }

    /// Requests an update of one machine in the current snapshot: its state has changed in the database, or `file` is
    /// its new machine file.
    pub fn request_machine_reload(&self, id: &str, file: Option<PathBuf>) {
        let _ = self.wake.send(ReloadEvent::Machine(ChangedMachine { id: id.to_owned(), file }));
    }
}
