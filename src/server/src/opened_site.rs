//! Records, settings and documents that the server opens before it handles the first request.

use super::options::ServerConfig;
use super::start_checks::{check_options, note_empty_directory, refuse_lost_database};
use api::metrics::Metrics;
use api::site_reload::{ReloadEvent, SiteReloader};
use common::error::{Context, Phase, Result};
use http_server::request_context;
use http_server::server_log::ServerLog;
use oidc::provider::OidcProvider;
use oidc::settings::OidcSettings;
use site::documents::SiteDocuments;
use site::ganeti_os_definitions::{OsDefinitions, VerifyCache};
use site::loader::SiteLoader;
use site::snapshot::SiteSnapshot;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::backup::DirectoryLock;
use store::image_digest_cache::ImageDigests;
use store::store_address::PostgresAddress;
use store::token_hash::TokenHash;
use store::{ServerState, StoreHooks};
use tokio::sync::watch as published;

/// Records and settings of a site, opened and locked.
pub(crate) struct OpenedSite {
    /// Lock on the server's directory.
    pub lock: Option<DirectoryLock>,
    pub state: ServerState,
    pub counters: Arc<Metrics>,
    /// Hash of the operator's token.
    pub operator: TokenHash,
    /// Hash of the token that reads the metrics.
    pub metrics: TokenHash,
    pub oidc: Option<Arc<OidcProvider>>,
    /// Message about an empty directory; `None` if the documents may be in a database that several servers share.
    pub note: Option<String>,
}

impl OpenedSite {
    /// Checks the options, locks the directory, and opens the database. A boot is considered active until the duration
    /// `quiet` has passed since its last request.
    ///
    /// # Errors
    /// Returns an error if the options contradict each other, the directory or the database cannot be used, or the
    /// database of an existing directory was removed.
    pub(crate) fn open(options: &ServerConfig, quiet: Duration) -> Result<OpenedSite> {
        check_options(options)?;
        // The note about an empty directory is determined first, because the following statements create files in the
        // directory.
        let note = note_empty_directory(&options.dir);
        options.pxe.as_ref().map_or(Ok(()), |pxe_options| pxe::check_pxe(pxe_options, &options.boot_server()))?;
        let oidc = OidcSettings::read_file(&options.dir)?.map(OidcProvider::new).transpose()?.map(Arc::new);
        let lock = store::backup::lock_directory(&options.dir)?;
        let store = options.store.read_address()?;
        if store.is_none() {
            refuse_lost_database(&options.dir)?;
        }
        let counters = Arc::<Metrics>::default();
        Ok(OpenedSite {
            lock,
            state: open_state(options, store.as_ref(), quiet, &counters)?,
            counters,
            operator: store::token_hash::operator_token_hash(&options.dir)?,
            metrics: store::token_hash::token_file_hash(&options.dir, store::token_hash::METRICS_FILE)?,
            oidc,
            note: note.filter(|_| store.is_none()),
        })
    }
}

fn open_state(
    options: &ServerConfig,
    store: Option<&PostgresAddress>,
    quiet: Duration,
    counters: &Arc<Metrics>,
) -> Result<ServerState> {
    let observed = counters.clone();
    let hooks = StoreHooks {
        current_client: request_context::current_client,
        current_audit_entry: api::access::current_audit_entry,
        current_user: api::access::current_user,
        observe_job: Arc::new(move |duration| observed.observe_store_job(duration)),
    };
    let state = ServerState::open_store(store, &options.dir, quiet)?;
    let state = state.with_unknown_machines_limit(options.limits.unknown_machines as usize);
    Ok(state.with_same_address_timeout(options.restart_timeout).with_hooks(hooks))
}

/// Opens the source of the documents: the directory or, once it contains documents, the database that several servers
/// share.
pub(crate) async fn open_documents(options: &ServerConfig, state: &ServerState) -> Result<SiteDocuments> {
    if !state.is_shared() {
        return Ok(SiteDocuments::of_directory(&options.dir));
    }
    let (dir, state) = (options.dir.clone(), state.clone());
    let open = tokio::task::spawn_blocking(move || SiteDocuments::open_shared(&dir, state));
    open.await.context(Phase::Serve, || "read the documents")?
}

/// Starts the threads that read the directory, and waits until it has been read once. Returns a channel that wakes
/// these threads, and a channel on which they publish snapshots.
pub(crate) async fn start_reloader(
    options: &ServerConfig,
    (state, documents): (&ServerState, &SiteDocuments),
    watch: &ServerLog,
    scan_interval: Duration,
) -> Result<(mpsc::Sender<ReloadEvent>, published::Receiver<Arc<SiteSnapshot>>)> {
    let (wake, woken) = mpsc::channel();
    let done = wake.clone();
    let digests = ImageDigests::start(state.clone(), move |digest| drop(done.send(ReloadEvent::Digest(digest))));
    let digests = digests.context(Phase::Serve, || "start the thread that computes digests")?;
    let done = wake.clone();
    let verified = VerifyCache::start(move |verdict| drop(done.send(ReloadEvent::Verified(verdict))));
    let verified = verified.context(Phase::Serve, || "start the thread that runs `verify` programs")?;
    let definitions = OsDefinitions::new(options.dir.join("os"), verified);
    let loader = SiteLoader::new(&options.dir, digests, definitions, state.clone());
    let loader = loader.with_approved_only(options.approved_only).with_documents(documents);
    let (publish, directory) = published::channel(Arc::default());
    let keeper = SiteReloader::new(state.clone(), loader, watch.clone(), publish);
    let (ready, first_look) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("directory".to_owned())
        .spawn(move || keeper.run(&woken, scan_interval, ready))
        .context(Phase::Serve, || "start the thread that reads the server's directory")?;
    first_look.await.context(Phase::Serve, || "read the server's directory")?;
    Ok((wake, directory))
}
