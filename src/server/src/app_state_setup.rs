//! State of the request handlers, which is built from the options and the started services.

use super::host_environment::HostEnvironment;
use super::listeners::BoundListeners;
use super::opened_site::OpenedSite;
use super::options::ServerConfig;
use super::start_checks::boot_directory;
use api::accepted_host_names::HostNames;
use api::access::login_sessions::{LoginSessions, VERIFY_INTERVAL};
use api::access::project_snapshots::ProjectSnapshots;
use api::audit_log::AuditLog;
use api::deploy_templates::TemplateWriter;
use api::operator_api::summary_cache::SummaryCache;
use api::planner_pool::PlannerPool;
use api::site_reload::ReloadEvent;
use api::source_port_check::SourcePorts;
use api::{AppState, migration_requests, out_of_band};
use common::error::{Context, Phase, Result};
use http_server::anonymous_event_limit::AnonymousEvents;
use http_server::client_quotas::ClientQuotas;
use http_server::rate_limited_log::RateLimitedLog;
use http_server::server_log::ServerLog;
use site::documents::SiteDocuments;
use site::snapshot::SiteSnapshot;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use store::boot_token::BootTokenKey;
use tokio::sync::watch as published;

/// Services that are started before the first request is handled.
pub(crate) struct StartedServices {
    pub site: OpenedSite,
    /// Directory of iPXE's binaries; `None` without `--pxe`.
    pub ipxe: Option<PathBuf>,
    pub directory: published::Receiver<Arc<SiteSnapshot>>,
    pub documents: SiteDocuments,
    pub closing: published::Receiver<bool>,
    pub watch: ServerLog,
    pub wake: mpsc::Sender<ReloadEvent>,
}

/// Builds the state.
///
/// # Errors
/// Returns an error if the audit log or a thread cannot be started, or the certificate cannot be used.
pub(crate) fn build_app_state(
    options: &ServerConfig,
    environment: &HostEnvironment,
    connection_limit: usize,
    listeners: &BoundListeners,
    services: StartedServices,
) -> Result<AppState> {
    let StartedServices { site, ipxe, directory, documents, closing, watch, wake } = services;
    let rate_limited_log = RateLimitedLog::new(watch.clone());
    Ok(AppState {
        url: options.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
        hosts: HostNames::new(&options.hosts, options.url.as_deref(), listeners.certificate()),
        boot: boot_directory(options),
        ipxe,
        images: options.dir.join("images"),
        layouts: options.dir.join("layouts"),
        dir: options.dir.clone(),
        documents,
        machines: options.dir.join("machines"),
        cmdline: options.cmdline.clone(),
        directory,
        closing,
        sessions: LoginSessions::new(&site.state),
        state: site.state,
        counters: site.counters,
        audit: AuditLog::new(options.audit_retention, options.audit_log.clone(), rate_limited_log.clone())?,
        rate_limited_log,
        watch,
        operator: site.operator,
        metrics: site.metrics,
        wake,
        boot_tokens: BootTokenKey::of_operator(&site.operator),
        source_ports: select_source_ports(options, environment),
        client_quotas: build_quotas(options, connection_limit),
        neighbors: environment.neighbors.clone(),
        anonymous_events: AnonymousEvents::default(),
        https: listeners.https()?,
        templates: TemplateWriter::new(&options.dir),
        planner: PlannerPool::start_threads().context(Phase::Serve, || "start the planner threads")?,
        oidc: site.oidc,
        session_interval: VERIFY_INTERVAL.min(environment.scan_interval * 30),
        summaries: SummaryCache::default(),
        project_snapshots: ProjectSnapshots::default(),
        certificate_checks: migration_requests::certificate_check_record::CertificateChecks::default(),
        runs: tokio::sync::Notify::new(),
        rollouts: tokio::sync::Notify::new(),
        run_interval: environment.scan_interval.min(out_of_band::RUN_INTERVAL),
    })
}

fn select_source_ports(options: &ServerConfig, environment: &HostEnvironment) -> SourcePorts {
    match options.any_source_port {
        true => SourcePorts::Any,
        false => SourcePorts::Below(environment.first_unprivileged_port),
    }
}

fn build_quotas(options: &ServerConfig, connection_limit: usize) -> ClientQuotas {
    let quotas = ClientQuotas::new(connection_limit, &options.proxies);
    quotas.with_requests_per_address(options.limits.requests_per_address as usize)
}
