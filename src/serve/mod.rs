//! `drophammer serve`: the control plane for a desk or a rack.
//!
//! `folder`, `directory` and `definitions` are what the operator wants, `keeper` looks at them, `resolve` what an allocation refers to,
//! `approved` which plans the operator has approved, `wanted` its steps, `templates` those that change them, and the calls for these,
//! `v1` metal-api's calls for the directory, `promise` what a machine was promised, `states` which images are hidden or blacklisted, `one_file` how such a file is looked at,
//! `state` what has happened, `backup` its copies, `boot`, `api` and `ipxe` what machines ask, `boot_token` signs their tokens, `proof` requires privileged processes, `boot_digest` the digest of what they boot, `caller` who may, `neighbours` whose
//! card that is, `tidy` how their words come in, `log` what they say on their consoles, `files` what they load, `operator` what the operator asks, `adding` how a machine
//! becomes a file, `moves` how it goes to other hardware, `sizes` what it is called, `power` how it is switched, `freeing` how the system of a previous tenant ends, `preview` what a plan on a desk needs, `metrics` what is
//! counted, `calls` all that are answered in JSON, `openapi` what is written of them, `fronts` where all this is answered, `host_names` the names of the server, `request_guard` what is checked of every request, `base` under which URLs, `tls` over what, `connections` how they come and go, `requests` what each is called, `alarm`
//! what anybody can make the server say, `watch` what people see, `page` what a browser shows, `inspect` all that is wrong with the directory, `pxe` how firmware
//! finds this server, `descriptors` how many may ask at once, `peers` how much each of them may take, `turns` in which order,
//! `anonymous_events` how many events are kept of those that have not registered, `notify` how systemd learns that the server lives.

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

/// What has happened, in the server's directory.
const DATABASE: &str = "drophammer.sqlite";
/// It is for a desk. A rack has the unit, under which it is a user of its own.
const AS_ROOT: &str = "this server runs as root, which it needs for --pxe alone and keeps all the time: a unit gives it a user of its own, \
     docs/serve.md";
/// Answers that are still on their way when the server is ended may take so long.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// What every request can reach.
pub struct App {
    url: Option<String>,
    hosts: HostNames,
    boot: PathBuf,
    /// iPXE's binaries, with `--pxe`.
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
    /// Hash of the token that opens the metrics.
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
    /// What is in force now.
    fn directory(&self) -> Arc<Directory> {
        self.directory.borrow().clone()
    }

    /// Something that anybody on the network can bring about, and the operator should know.
    fn alarm(&self, text: String) {
        self.alarms.say(text);
    }

    /// Has a new picture made, which wakes machines that wait and says what is wrong now.
    fn state_has_changed(&self) {
        // Without the thread that hears it, the server is ending.
        let _ = self.wake.send(Wake::State);
    }
}

/// Serves, or copies the database of a server.
///
/// # Errors
/// As [`run`]; a file cannot be read or written.
pub fn command(serve: Serve) -> Result<Exit> {
    if let (None, Some(ServeOptions { check: true, .. })) = (&serve.command, &serve.options) {
        return or_refused(serve.options.map_or(Ok(Exit::Good), |options| inspect::inspect(&options.into())));
    }
    let done = match (serve.command, serve.options) {
        (Some(ServeCommand::Backup(asked)), _) => backup::backup(&asked.dir, &asked.file),
        (Some(ServeCommand::Restore(asked)), _) => backup::restore(&asked.dir, &asked.file, asked.older),
        (None, Some(options)) => run(options.into()),
        (None, None) => Err(Error::new(Phase::Serve, "name the server's directory: `drophammer serve DIR`")),
    };
    or_refused(done.map(|()| Exit::Good))
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// The directory, the address or an option cannot be used.
pub fn run(options: Options) -> Result<()> {
    let (watch, writer) = Watch::start(options.json).context(Phase::Serve, || "start the output")?;
    let connections = descriptors::connections(&watch);
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(32).enable_all().build();
    let runtime = runtime.context(Phase::Serve, || "start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let ended = ended().context(Phase::Serve, || "listen for signals")?;
        let server = Server::bind(&options, watch.clone(), &Surroundings::default(), connections).await?;
        // Who has started it reads the first line for the address.
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

/// Ready at SIGINT or SIGTERM.
fn ended() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A server that listens already.
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
    /// Brings the files to say what moves have come to.
    files: tokio::task::JoinHandle<()>,
    /// Held as long as the server runs.
    _lock: Option<backup::Lock>,
}

impl Server {
    /// With so many connections at once.
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
        let digests = digests.context(Phase::Serve, || "start the digests' thread")?;
        let done = wake.clone();
        let verified = Verified::start(move |verdict| drop(done.send(Wake::Verified(verdict))));
        let verified = verified.context(Phase::Serve, || "start the thread that verifies")?;
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
            .context(Phase::Serve, || "start the directory's thread")?;
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
            planner: Planner::start().context(Phase::Serve, || "start the planner's threads")?,
            looks: moves::looks::Looks::default(),
        };
        let (peers, alarms, planner) = (app.peers.clone(), app.alarms.clone(), app.planner.clone());
        let app = Arc::new(app);
        let fronts = listeners.open(&app);
        let files = tokio::spawn(moves::files::keep_right(app));
        Ok(Server { fronts, places, peers, alarms, planner, watch, closing, wake, state, pxe, files, _lock: lock })
    }

    /// Accepts until `ended`, then lets running answers go out for a moment.
    ///
    /// # Errors
    /// The database was taken away.
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
                        // Out of descriptors, most likely: asking again at once would only spin.
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

/// What is wrong with what is looked at once, at the start.
fn start_problems(options: &Options) -> Vec<String> {
    let boot = ["vmlinuz", "initrd"].map(|name| boot_folder(options).join(name)).into_iter();
    let boot = boot.filter(|path| !path.is_file());
    let boot = boot.map(|path| format!("{} is not there, so no machine can boot the ramdisk", path.display()));
    let secrets = ["machines", "images"].map(|name| folder::readable_secrets(&options.dir.join(name)));
    let registries = Some(options.dir.join("registries.json")).filter(|path| folder::is_readable(path));
    let what = "holds secrets, and everybody on this host can read it";
    let secrets = secrets.into_iter().flatten().chain(registries);
    boot.chain(secrets.map(|path| format!("{} {what}: chmod o-r {0}", path.display()))).collect()
}

/// It waits for dnsmasq's first words.
async fn start_pxe(asked: PxeOptions, options: Options, port: u16, watch: Watch) -> Result<Pxe> {
    let started = tokio::task::spawn_blocking(move || Pxe::start(&asked, &options, port, &watch));
    started.await.context(Phase::Serve, || "start dnsmasq")?
}

fn check(options: &Options) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Phase::Serve, what));
    if !options.dir.is_dir() {
        return refuse(format!(
            "{} is not a directory; it should hold machines/, layouts/ and images/",
            options.dir.display()
        ));
    }
    if let Some(url) = &options.url {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]".contains(&byte);
        if host.is_none_or(|host| ipxe::host(host).is_err()) || !url.bytes().all(plain) {
            return refuse(format!("--url {url}: give something like http://10.0.0.1:8080"));
        }
    }
    ipxe::cmdline(&options.cmdline).or_else(|why| refuse(format!("--cmdline: {why}")))
}

/// A machine in the middle of a reinstall has no marker, and only the database knows that it is no new one: without it all of
/// its disks would be wiped. The operator's token is made after the database, and so tells that there was one.
fn refuse_lost(dir: &Path) -> Result<()> {
    let database = dir.join(DATABASE);
    let has_token = dir.join(token::OPERATOR_FILE).exists();
    if !has_token || !folder::has_machines(dir) || !state::store::is_new(&database)? {
        return Ok(());
    }
    let message = format!(
        "{} is gone or empty, but {} says that there was one. Without it, a machine in the middle of a reinstall is taken for a \
         new one, and the disks that it keeps are wiped. Put a backup in its place with `drophammer serve restore`; or, when no \
         machine is in the middle of a reinstall, remove {1} and start again: both are made anew",
        database.display(),
        token::OPERATOR_FILE
    );
    Err(Error::new(Phase::Serve, message))
}

#[cfg(test)]
mod tests;
