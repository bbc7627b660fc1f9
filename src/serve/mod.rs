//! `drophammer serve`: the control plane for a desk or a rack.
//!
//! `folder` and `directory` are what the operator wants, `resolve` what an allocation refers to, `promise` what a machine was
//! promised, `state` what has happened,
//! `backup` its copies, `boot`, `api` and `ipxe` what machines ask, `tidy` how their words come in,
//! `files` what they load, `operator` what the operator asks,
//! `watch` what people see, `descriptors` how many may ask at once.

mod api;
pub mod backup;
mod boot;
mod descriptors;
mod digest;
mod directory;
mod files;
mod folder;
pub(crate) mod input;
mod ipxe;
pub mod operator;
mod promise;
mod resolve;
mod state;
mod tidy;
mod token;
mod watch;

use crate::cli::{self, ServeCommand};
use crate::desk::Outcome;
use crate::error::{Context, Error, Phase, Result};
use axum::Router;
use axum::routing::{get, post};
use digest::Digests;
use directory::{Directory, Loader, Seen};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use state::State;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as published;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use watch::Watch;

/// What a person gives on the command line.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory with `machines/`, `layouts/` and `images/`; the state file goes there too.
    pub dir: PathBuf,
    pub listen: SocketAddr,
    /// Base URL for machines; what they used themselves (the Host header) when absent.
    pub url: Option<String>,
    /// Directory with `vmlinuz` and `initrd`; `DIR/boot` when absent.
    pub boot: Option<PathBuf>,
    /// More kernel arguments for the ramdisk.
    pub cmdline: String,
    /// One JSON object a line instead of text.
    pub json: bool,
}

/// What has happened, in the server's directory.
const DATABASE: &str = "drophammer.sqlite";
/// How often the directory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A request's head, and an idle connection, are waited for so long.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Answers that are still on their way when the server is ended may take so long.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// What every request can reach.
pub struct App {
    url: Option<String>,
    boot: PathBuf,
    cmdline: String,
    directory: published::Receiver<Arc<Directory>>,
    closing: published::Receiver<bool>,
    state: State,
    watch: Watch,
    /// Of the operator's token.
    operator: token::Hash,
    wake: mpsc::Sender<Wake>,
}

impl App {
    /// What is in force now.
    fn directory(&self) -> Arc<Directory> {
        self.directory.borrow().clone()
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
pub fn command(serve: cli::Serve) -> Result<Outcome> {
    let done = match (serve.command, serve.options) {
        (Some(ServeCommand::Backup(asked)), _) => backup::backup(&asked.dir, &asked.file),
        (Some(ServeCommand::Restore(asked)), _) => backup::restore(&asked.dir, &asked.file, asked.older),
        (None, Some(options)) => run(options.into()),
        (None, None) => Err(Error::new(Phase::Serve, "name the server's directory: `drophammer serve DIR`")),
    };
    match done {
        Err(error) if error.is_refusal() => {
            eprintln!("drophammer: {error}");
            Ok(Outcome::Refused)
        }
        done => done.map(|()| Outcome::Good),
    }
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
        let server = Server::bind(&options, watch, LOOK_EVERY).await?;
        server.serve(ended, connections).await
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
    listener: TcpListener,
    router: Router,
    watch: Watch,
    closing: published::Sender<bool>,
    wake: mpsc::Sender<Wake>,
    state: State,
    /// Held as long as the server runs.
    _lock: Option<File>,
}

/// What the thread that looks at the directory hears.
enum Wake {
    Digest(digest::Done),
    /// Of an allocation.
    State,
    End,
}

impl Server {
    async fn bind(options: &Options, watch: Watch, look_every: Duration) -> Result<Server> {
        check(options)?;
        let lock = backup::lock(&options.dir)?;
        refuse_lost(&options.dir)?;
        let state = State::open(&options.dir.join(DATABASE))?;
        let operator = token::of_operator(&options.dir)?;
        let what = || format!("listen on {}", options.listen);
        let listener = TcpListener::bind(options.listen).await.context(Phase::Serve, what)?;
        watch.listening(format!("http://{}", listener.local_addr().context(Phase::Serve, what)?));
        let boot = options.boot.clone().unwrap_or_else(|| options.dir.join("boot"));
        for name in ["vmlinuz", "initrd"].map(|name| boot.join(name)).iter().filter(|path| !path.is_file()) {
            watch.problem(format!("{} is not there, so no machine can boot the ramdisk", name.display()));
        }

        let (wake, woken) = mpsc::channel();
        let done = wake.clone();
        let digests = Digests::start(state.clone(), move |digest| drop(done.send(Wake::Digest(digest))));
        let digests = digests.context(Phase::Serve, || "start the digests' thread")?;
        let loader = Loader::new(&options.dir, digests, state.clone());
        let (publish, directory) = published::channel(Arc::default());
        let keeper = Keeper {
            state: state.clone(),
            loader,
            watch: watch.clone(),
            publish,
            said: BTreeSet::new(),
            noted: BTreeSet::new(),
        };
        let (ready, first_look) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("directory".to_owned())
            .spawn(move || keeper.run(&woken, look_every, ready))
            .context(Phase::Serve, || "start the directory's thread")?;
        first_look.await.context(Phase::Serve, || "read the directory")?;

        let (closing, is_closing) = published::channel(false);
        let app = App {
            url: options.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            boot,
            cmdline: options.cmdline.clone(),
            directory,
            closing: is_closing,
            state: state.clone(),
            watch: watch.clone(),
            operator,
            wake: wake.clone(),
        };
        Ok(Server { listener, router: router(app), watch, closing, wake, state, _lock: lock })
    }

    /// Accepts until `ended`, with so many connections at once, then lets running answers go out for a moment.
    ///
    /// # Errors
    /// The database was taken away.
    async fn serve(self, ended: impl Future<Output = ()>, at_once: usize) -> Result<()> {
        let connections = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(at_once));
        let mut ended = std::pin::pin!(ended);
        let mut result = Ok(());
        let mut is_full = false;
        loop {
            tokio::select! {
                () = &mut ended => break,
                why = self.state.gone() => {
                    self.watch.problem(why.clone());
                    result = Err(Error::new(Phase::Serve, why));
                    break;
                }
                (place, accepted) = self.accept(&places, &mut is_full) => match accepted {
                    Ok((stream, _)) => connection(stream, self.router.clone(), &connections, place),
                    Err(error) => {
                        self.watch.problem(format!("accept a connection: {error}"));
                        // Out of descriptors, most likely: asking again at once would only spin.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                },
            }
        }
        drop(self.listener);
        self.closing.send_replace(true);
        let _ = self.wake.send(Wake::End);
        let _ = tokio::time::timeout(END_PATIENCE, connections.shutdown()).await;
        self.state.end().await;
        result
    }

    /// The next connection, when there is a place for it. Others wait with the kernel.
    async fn accept(
        &self,
        places: &Arc<Semaphore>,
        is_full: &mut bool,
    ) -> (Option<OwnedSemaphorePermit>, std::io::Result<(TcpStream, SocketAddr)>) {
        let place = places.clone().try_acquire_owned().ok();
        if place.is_none() && !std::mem::replace(is_full, true) {
            self.watch.problem("as many connections are open as there can be: others wait".to_owned());
        }
        *is_full = place.is_none();
        let place = match place {
            Some(place) => Some(place),
            None => places.clone().acquire_owned().await.ok(),
        };
        (place, self.listener.accept().await)
    }
}

fn router(app: App) -> Router {
    Router::new()
        .route("/start.ipxe", get(boot::start_script))
        .route("/boot.ipxe", get(boot::script))
        .route("/boot.json", get(boot::without_firmware))
        .route("/boot/{name}", get(files::boot))
        .route("/images/{*path}", get(files::image))
        .route("/v1/machine/register", post(api::register))
        .route("/v1/machine/{id}", get(api::machine))
        .route("/v1/machine/{id}/wait", get(api::wait))
        .route("/v1/machine/{id}/event", post(api::event))
        .route("/v1/machine/{id}/point-of-no-return", post(api::point_of_no_return))
        .route("/v1/machine/{id}/report", post(api::report))
        .route("/v1/machine/{id}/reinstall", post(operator::reinstall).delete(operator::cancel))
        .route("/v1/machine/{id}/rename", post(operator::rename))
        .route("/v1/machines", get(operator::machines))
        .fallback(api::no_such_call)
        .method_not_allowed_fallback(api::wrong_method)
        .with_state(Arc::new(app))
}

fn connection(stream: TcpStream, router: Router, connections: &GracefulShutdown, place: Option<OwnedSemaphorePermit>) {
    // Answers are small and whole; a failure to say so costs a few milliseconds.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = connections.watch(connection);
    // Its error is that the client has gone or does not speak HTTP.
    tokio::spawn(async move {
        drop(connection.await);
        drop(place);
    });
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

/// Keeps the published picture of the directory up to date, in a thread of its own.
struct Keeper {
    state: State,
    loader: Loader,
    watch: Watch,
    publish: published::Sender<Arc<Directory>>,
    /// Problems that have been said, and notes.
    said: BTreeSet<String>,
    noted: BTreeSet<String>,
}

impl Keeper {
    fn run(mut self, woken: &mpsc::Receiver<Wake>, look_every: Duration, ready: tokio::sync::oneshot::Sender<()>) {
        self.look();
        let _ = ready.send(());
        loop {
            match woken.recv_timeout(look_every) {
                Ok(Wake::Digest(done)) => self.loader.digest_done(done),
                Ok(Wake::State) => self.loader.refresh(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(Wake::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn look(&mut self) {
        self.state.look();
        let Some(Seen { directory, problems, notes }) = self.loader.look() else { return };
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for new in problems.difference(&self.said) {
            self.watch.problem(new.clone());
        }
        if problems.is_empty() && !self.said.is_empty() {
            self.watch.note("every file is good again".to_owned());
        }
        self.said = problems;
        let notes: BTreeSet<String> = notes.into_iter().collect();
        for new in notes.difference(&self.noted) {
            self.watch.note(new.clone());
        }
        self.noted = notes;
        self.publish.send_replace(Arc::new(directory));
    }
}

#[cfg(test)]
mod tests;
