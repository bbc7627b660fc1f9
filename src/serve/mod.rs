//! `drophammer serve`: the control plane for a bench or a rack.
//!
//! * Operator's directory: `folder`, `directory` and `definitions` read it, `keeper` watches it, `one_file` reads a single file, `input`
//!   parses, `resolve` follows the references of an allocation, `wanted` determines its steps, `templates` the deploy templates, `sizes`
//!   the sizes, `states` hidden and blacklisted images, `approved` approved plans, `inspect` checks everything.
//! * State: `state` is the database, `backup` copies it, `restored` handles a restored one, `digest` the digests of images.
//! * Machines: `boot` and `ipxe` boot them, `boot_token` signs their tokens, `caller` and `proof` authenticate them, `identity` and
//!   `neighbours` identify them, `api` is their API, `log` their console logs, `files` their downloads, `moves` migrates them, `pxe` runs
//!   DHCP and TFTP.
//! * Operators: `operator` is their API, `v1` that of metal-api, `page` the web page, `calls` the table of all endpoints and `openapi` its
//!   description, `adding` creates machine files, `power` and `freeing` switch machines, `preview` and `boot_digest` serve commands,
//!   `watch` prints the log.
//! * Connections: `fronts` binds sockets, `tls` encrypts, `connections` accepts, `host_names` and `request_guard` check requests,
//!   `requests` gives them ids, `base` determines URLs, `peers`, `turns`, `descriptors`, `alarm` and `anonymous_events` limit clients,
//!   `tidy` sanitizes texts, `metrics` counts, `notify` reports to systemd.

pub mod adding;
mod alarm;
mod anonymous_events;
mod api;
mod api_error;
mod approved;
pub mod backup;
mod base;
mod boot;
pub mod boot_digest;
mod boot_token;
mod caller;
mod calls;
mod connections;
mod definitions;
mod descriptors;
mod digest;
mod directory;
mod files;
mod folder;
mod freeing;
mod fronts;
mod host_names;
mod identity;
pub(crate) mod input;
mod inspect;
pub(crate) mod ipxe;
mod keeper;
mod log;
mod metrics;
pub mod moves;
mod neighbours;
mod notify;
mod one_file;
pub mod openapi;
pub mod operator;
mod options;
mod page;
mod patient;
mod peers;
pub mod planner;
pub mod power;
pub mod preview;
mod promise;
mod proof;
mod pxe;
pub mod rack;
mod registries;
mod request_guard;
mod requests;
mod resolve;
mod restored;
mod sizes;
mod state;
mod states;
mod surroundings;
mod survive;
mod templates;
mod tidy;
mod tls;
mod token;
mod turns;
pub mod v1;
mod wanted;
mod watch;

pub use options::{Options, Serve, ServeCommand, ServeOptions};

use crate::error::{Context, Error, Phase, Result};
use crate::exit::{Exit, or_refused};
use alarm::Alarms;
use anonymous_events::AnonymousEvents;
use boot_token::BootTokenKey;
use connections::Door;
use definitions::{Definitions, Verified};
use digest::Digests;
use directory::{Directory, Loader};
use fronts::{Fronts, Https, Listeners};
use host_names::HostNames;
use hyper_util::server::graceful::GracefulShutdown;
use keeper::{Keeper, Wake};
use neighbours::Neighbours;
use notify::{HeartbeatSource, ServiceManager};
use peers::Peers;
use planner::Planner;
use proof::SourcePorts;
use pxe::{Pxe, PxeOptions};
use state::State;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use surroundings::Surroundings;
use templates::Writing;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as published;
use watch::Watch;

/// Database in the server's directory.
const DATABASE: &str = "drophammer.sqlite";
/// Acceptable for a bench. For a rack, the systemd unit runs the server as a separate user.
const AS_ROOT: &str = "this server runs as root, which only --pxe requires: use the systemd unit to run it as a separate user, see \
     docs/serve.md";
/// Time limit for pending responses at shutdown.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// State shared by all request handlers.
pub struct App {
    url: Option<String>,
    hosts: HostNames,
    boot: PathBuf,
    /// Directory of iPXE's binaries, with `--pxe`.
    ipxe: Option<PathBuf>,
    images: PathBuf,
    layouts: PathBuf,
    dir: PathBuf,
    machines: PathBuf,
    cmdline: String,
    directory: published::Receiver<Arc<Directory>>,
    closing: published::Receiver<bool>,
    state: State,
    watch: Watch,
    /// Hash of the operator's token.
    operator: token::Hash,
    /// Hash of the token for metrics.
    metrics: token::Hash,
    wake: mpsc::Sender<Wake>,
    boot_tokens: BootTokenKey,
    source_ports: SourcePorts,
    peers: Peers,
    neighbours: Neighbours,
    alarms: Alarms,
    anonymous_events: AnonymousEvents,
    https: Option<Https>,
    templates: Writing,
    page: page::Page,
    planner: Planner,
    looks: moves::looks::Looks,
}

impl App {
    /// Returns the current state of the directory.
    fn directory(&self) -> Arc<Directory> {
        self.directory.borrow().clone()
    }

    /// Logs a message for the operator that any client on the network can cause, with a rate limit.
    fn alarm(&self, text: String) {
        self.alarms.say(text);
    }

    /// Requests a reload of the directory, which wakes waiting machines and logs problems.
    fn state_has_changed(&self) {
        // Fails only if the keeper's thread has ended, at shutdown.
        let _ = self.wake.send(Wake::State);
    }
}

/// Runs `drophammer serve`: serves, checks the directory, or copies the database.
///
/// # Errors
/// As [`run`], or a file cannot be read or written.
pub fn command(serve: Serve) -> Result<Exit> {
    if let (None, Some(ServeOptions { check: true, .. })) = (&serve.command, &serve.options) {
        return or_refused(serve.options.map_or(Ok(Exit::Good), |options| inspect::inspect(&options.into())));
    }
    let done = match (serve.command, serve.options) {
        (Some(ServeCommand::Backup(asked)), _) => backup::backup(&asked.dir, &asked.file),
        (Some(ServeCommand::Restore(asked)), _) => backup::restore(&asked.dir, &asked.file, asked.older),
        (None, Some(options)) => run(options.into()),
        (None, None) => Err(Error::new(Phase::Serve, "the server's directory is missing: `drophammer serve DIR`")),
    };
    or_refused(done.map(|()| Exit::Good))
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// The directory, the address or an option is invalid.
pub fn run(options: Options) -> Result<()> {
    let (watch, writer) = Watch::start(options.json).context(Phase::Serve, || "start the output")?;
    let connections = descriptors::connections(&watch);
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(32).enable_all().build();
    let runtime = runtime.context(Phase::Serve, || "start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let ended = ended().context(Phase::Serve, || "listen for signals")?;
        let server = Server::bind(&options, watch.clone(), &Surroundings::default(), connections).await?;
        // The parent process may read the first line for the address.
        if nix::unistd::geteuid().is_root() {
            watch.note(AS_ROOT.to_owned());
        }
        drop(watch);
        server.serve(ended, &ServiceManager::of_environment()?).await
    });
    runtime.shutdown_timeout(Duration::from_millis(200));
    writer.finish();
    result
}

/// Returns a future that resolves at SIGINT or SIGTERM.
fn ended() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A server whose sockets are bound.
struct Server {
    fronts: Fronts,
    places: usize,
    peers: Peers,
    alarms: Alarms,
    planner: Planner,
    watch: Watch,
    closing: published::Sender<bool>,
    wake: mpsc::Sender<Wake>,
    state: State,
    pxe: Option<Pxe>,
    /// Task that updates machine files after migrations.
    files: tokio::task::JoinHandle<()>,
    /// Held as long as the server runs.
    _lock: Option<backup::Lock>,
}

impl Server {
    /// Binds the sockets and starts the threads. `places` is the maximum number of connections.
    async fn bind(options: &Options, watch: Watch, around: &Surroundings, places: usize) -> Result<Server> {
        check(options)?;
        options.pxe.as_ref().map_or(Ok(()), |asked| pxe::check(asked, options))?;
        let lock = backup::lock(&options.dir)?;
        refuse_lost(&options.dir)?;
        let state = State::open(&options.dir.join(DATABASE), around.quiet)?;
        let operator = token::of_operator(&options.dir)?;
        let metrics = token::of_file(&options.dir, token::METRICS_FILE)?;
        let listeners = Listeners::bind(options, &watch).await?;
        let boot = boot_folder(options);
        start_problems(options).into_iter().for_each(|problem| watch.problem(problem));

        let (wake, woken) = mpsc::channel();
        let done = wake.clone();
        let digests = Digests::start(state.clone(), move |digest| drop(done.send(Wake::Digest(digest))));
        let digests = digests.context(Phase::Serve, || "start the digest thread")?;
        let done = wake.clone();
        let verified = Verified::start(move |verdict| drop(done.send(Wake::Verified(verdict))));
        let verified = verified.context(Phase::Serve, || "start the verify thread")?;
        let definitions = Definitions::new(options.dir.join("os"), verified);
        let loader = Loader::new(&options.dir, digests, definitions, state.clone());
        let loader = loader.approved_only(options.approved_only);
        let (publish, directory) = published::channel(Arc::default());
        let keeper = Keeper::new(state.clone(), loader, watch.clone(), publish);
        let (ready, first_look) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("directory".to_owned())
            .spawn({
                let look_every = around.look_every;
                move || keeper.run(&woken, look_every, ready)
            })
            .context(Phase::Serve, || "start the directory thread")?;
        first_look.await.context(Phase::Serve, || "read the directory")?;

        let pxe = match options.pxe.clone() {
            Some(asked) => Some(start_pxe(asked, options.clone(), listeners.port()?, watch.clone()).await?),
            None => None,
        };

        let (closing, is_closing) = published::channel(false);
        let app = App {
            url: options.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            hosts: HostNames::new(options, listeners.certificate()),
            boot,
            ipxe: pxe.as_ref().map(|pxe| pxe.ipxe.clone()),
            images: options.dir.join("images"),
            layouts: options.dir.join("layouts"),
            dir: options.dir.clone(),
            machines: options.dir.join("machines"),
            cmdline: options.cmdline.clone(),
            directory,
            closing: is_closing,
            state: state.clone(),
            watch: watch.clone(),
            operator,
            metrics,
            wake: wake.clone(),
            boot_tokens: BootTokenKey::of_operator(&operator),
            source_ports: SourcePorts::new(options, around),
            peers: Peers::new(places, &options.proxies),
            neighbours: around.neighbours.clone(),
            alarms: Alarms::new(watch.clone()),
            anonymous_events: AnonymousEvents::default(),
            https: listeners.https()?,
            templates: Writing::new(&options.dir),
            page: page::Page::default(),
            planner: Planner::start().context(Phase::Serve, || "start the planner threads")?,
            looks: moves::looks::Looks::default(),
        };
        let (peers, alarms, planner) = (app.peers.clone(), app.alarms.clone(), app.planner.clone());
        let app = Arc::new(app);
        let fronts = listeners.open(&app);
        let files = tokio::spawn(moves::files::keep_right(app));
        Ok(Server { fronts, places, peers, alarms, planner, watch, closing, wake, state, pxe, files, _lock: lock })
    }

    /// Accepts connections until `ended`, then gives pending responses a short time to complete.
    ///
    /// # Errors
    /// The database was removed.
    async fn serve(self, ended: impl Future<Output = ()>, manager: &ServiceManager) -> Result<()> {
        let running = GracefulShutdown::new();
        let door = Door::new(self.places, self.peers.clone(), self.watch.clone(), self.alarms.clone());
        let fronts = self.fronts.all();
        let mut ended = std::pin::pin!(ended);
        let sources = [HeartbeatSource::database(&self.state), HeartbeatSource::planner(&self.planner)];
        let mut heartbeat = std::pin::pin!(manager.beat(&sources, &self.watch));
        manager.ready();
        let mut result = Ok(());
        loop {
            tokio::select! {
                () = &mut ended => break,
                () = &mut heartbeat => {}
                why = self.state.gone() => {
                    self.watch.problem(why.clone());
                    result = Err(Error::new(Phase::Serve, why));
                    break;
                }
                (front, place, accepted) = door.next(&fronts) => match accepted {
                    Ok((stream, address)) => door.enter(stream, address, front, &running, place),
                    Err(error) => {
                        self.watch.problem(format!("accept a connection: {error}"));
                        // Most likely out of file descriptors: an immediate retry would only spin.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                },
            }
        }
        manager.stopping();
        drop(self.fronts);
        let pxe = tokio::task::spawn_blocking(move || drop(self.pxe));
        self.closing.send_replace(true);
        self.files.abort();
        let _ = self.wake.send(Wake::End);
        let _ = tokio::time::timeout(END_PATIENCE, running.shutdown()).await;
        self.state.end().await;
        let _ = pxe.await;
        result
    }
}

fn boot_folder(options: &Options) -> PathBuf {
    options.boot.clone().unwrap_or_else(|| options.dir.join("boot"))
}

/// Returns problems that are only checked at the start.
fn start_problems(options: &Options) -> Vec<String> {
    let boot = ["vmlinuz", "initrd"].map(|name| boot_folder(options).join(name)).into_iter();
    let boot = boot.filter(|path| !path.is_file());
    let boot = boot.map(|path| format!("{} is missing: machines cannot boot the ramdisk", path.display()));
    let secrets = ["machines", "images"].map(|name| folder::readable_secrets(&options.dir.join(name)));
    let registries = Some(options.dir.join("registries.json")).filter(|path| folder::is_readable(path));
    let what = "contains secrets and is readable by all users of this host";
    let secrets = secrets.into_iter().flatten().chain(registries);
    boot.chain(secrets.map(|path| format!("{} {what}: run chmod o-r {0}", path.display()))).collect()
}

/// Starts dnsmasq, and waits until it is ready or has failed.
async fn start_pxe(asked: PxeOptions, options: Options, port: u16, watch: Watch) -> Result<Pxe> {
    let started = tokio::task::spawn_blocking(move || Pxe::start(&asked, &options, port, &watch));
    started.await.context(Phase::Serve, || "start dnsmasq")?
}

fn check(options: &Options) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Phase::Serve, what));
    if !options.dir.is_dir() {
        return refuse(format!(
            "{} is not a directory; it should contain machines/, layouts/ and images/",
            options.dir.display()
        ));
    }
    if let Some(url) = &options.url {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]".contains(&byte);
        if host.is_none_or(|host| ipxe::host(host).is_err()) || !url.bytes().all(plain) {
            return refuse(format!("--url {url}: must be a URL such as http://10.0.0.1:8080"));
        }
    }
    ipxe::cmdline(&options.cmdline).or_else(|why| refuse(format!("--cmdline: {why}")))
}

/// Refuses to start if the database was lost: only the database records that a machine is in the middle of a reinstall and has no install
/// marker, and without it all of its disks would be wiped. The operator's token, which is created after the database, proves that it
/// existed.
fn refuse_lost(dir: &Path) -> Result<()> {
    let database = dir.join(DATABASE);
    let has_token = dir.join(token::OPERATOR_FILE).exists();
    if !has_token || !folder::has_machines(dir) || !state::store::is_new(&database)? {
        return Ok(());
    }
    let message = format!(
        "{} is missing or empty, although {} shows that it existed. Without it, a machine in the middle of a reinstall is taken for a \
         new one, and its preserved disks are wiped. Restore a backup with `drophammer serve restore`. If no \
         machine is in the middle of a reinstall, remove {1} and start again: both are recreated",
        database.display(),
        token::OPERATOR_FILE
    );
    Err(Error::new(Phase::Serve, message))
}

#[cfg(test)]
mod tests;
