//! Simulated machines that install themselves from a running server, to measure the server (`scripts/bench rack`).
//!
//! Each machine has its own UUID, MAC and address in 127.0.0.0/8, and runs the agent's control-plane client.
//! `simulated_machine` contains the life of a machine from the boot script to the final report, `machine_file_operator`
//! creates machine files and lists the machines, and `run_figures` collects durations. The program connects only to the
//! loopback interface, and ends after `--limit` seconds. `rack-bench faults` (`fault_run`) tests two servers instead.

mod fault_run;
mod machine_file_operator;
mod run_figures;
mod simulated_machine;

use clap::{Parser, ValueEnum};
use common::error::{Context, Error, Phase, Result};
use common::output::{print_note, print_text, to_json};
use run_figures::{RackReport, RunFigures};
use simulated_machine::{MachineRun, SimulatedMachine};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Maximum number of machines that run at the same time. Each machine needs up to two file descriptors. Further
/// machines are powered on later.
const MAXIMUM_RUNNING_MACHINES: usize = 17_000;
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// `--per-second` machines are powered on per second.
    Ramp,
    /// All machines are powered on within one second.
    Storm,
    /// Like `storm`, but all machines lose power once during their installation, and return within one second.
    PowerFailure,
    /// Like `ramp`, while a thousand other machines boot, register and restart in a loop.
    BootLoop,
}

#[derive(Debug, Parser)]
struct Options {
    /// Number of machines.
    machines: u32,
    #[arg(long, value_enum, default_value = "ramp")]
    scenario: Scenario,
    /// Number of machines that are powered on per second, unless the scenario requires another number.
    #[arg(long, default_value_t = 35.0)]
    per_second: f64,
    /// Address of the server's boot files, over plain HTTP.
    #[arg(long)]
    boot: SocketAddr,
    /// Address of the server's API, over TLS.
    #[arg(long)]
    api: SocketAddr,
    /// File with the operator's token.
    #[arg(long)]
    token: PathBuf,
    /// Distance between two machines without a machine file, for which the operator creates the files. With 10, these
    /// are machine 9, 19 and so on. With 0, all machines have a file.
    #[arg(long, default_value_t = 0)]
    without_file_every: u32,
    /// Duration of the transfer of an image, in seconds.
    #[arg(long, default_value_t = 10)]
    transfer: u64,
    /// Seconds after which the program ends, even if machines are not installed.
    #[arg(long, default_value_t = 1500)]
    limit: u64,
}

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|argument| argument == "faults") {
        arguments.remove(1);
        return fault_run::run(&fault_run::FaultOptions::parse_from(arguments));
    }
    match run(&Options::parse()) {
        Ok(report) => match to_json(&report).and_then(|text| print_text(&(text + "\n"))) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    print_note(&format!("rack-bench: {error}"));
    ExitCode::FAILURE
}

fn run(options: &Options) -> Result<RackReport> {
    if !options.boot.ip().is_loopback() || !options.api.ip().is_loopback() {
        return Err(Error::new(Phase::Control, "the server must listen on the loopback interface"));
    }
    let what = || "start the simulation";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context(Phase::Control, what)?.block_on(simulate(options))
}

async fn simulate(options: &Options) -> Result<RackReport> {
    let figures = Arc::new(RunFigures::default());
    let run = Arc::new(MachineRun {
        boot: options.boot,
        api: options.api,
        transfer: Duration::from_secs(options.transfer),
        loses_power: options.scenario == Scenario::PowerFailure,
        figures: figures.clone(),
    });
    let operator = machine_file_operator::Operator::new(options.api, &options.token, figures.clone())?;
    let began = Instant::now();
    let background = start_background(options, &operator, &run);
    let places = Arc::new(Semaphore::new(MAXIMUM_RUNNING_MACHINES));
    let interval = match options.scenario {
        Scenario::Ramp | Scenario::BootLoop => 1.0 / options.per_second.clamp(0.1, 1e6),
        Scenario::Storm | Scenario::PowerFailure => 1.0 / f64::from(options.machines),
    };
    let end = tokio::time::Instant::now() + Duration::from_secs(options.limit);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..options.machines {
        let lacks_file = options.without_file_every > 0 && (number + 1).is_multiple_of(options.without_file_every);
        let machine = SimulatedMachine::new(number, lacks_file);
        let (run, operator, places) = (run.clone(), operator.clone(), places.clone());
        let powered_on = tokio::time::Instant::from_std(began) + Duration::from_secs_f64(f64::from(number) * interval);
        tasks.spawn(async move {
            tokio::time::sleep_until(powered_on).await;
            // Waiting for a permit cannot fail, because the semaphore is never closed.
            let _place = places.acquire_owned().await;
            machine.install(&run, &operator).await
        });
    }
    let mut failures = Vec::new();
    let mut installed = 0;
    while let Ok(Some(done)) = tokio::time::timeout_at(end, tasks.join_next()).await {
        match done {
            Ok(Ok(())) => installed += 1,
            Ok(Err(error)) => failures.push(error),
            Err(error) => failures.push(error.to_string()),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    background.abort();
    Ok(figures.report(options.machines, installed, seconds, failures))
}

/// Starts the operator's regular requests for lists, and the machines in a boot loop.
fn start_background(
    options: &Options,
    operator: &machine_file_operator::Operator,
    run: &Arc<MachineRun>,
) -> tokio::task::AbortHandle {
    let (operator, run) = (operator.clone(), run.clone());
    let loops = if options.scenario == Scenario::BootLoop { simulated_machine::LOOPING } else { 0 };
    let first = options.machines;
    let task = tokio::spawn(async move {
        let mut all = tokio::task::JoinSet::new();
        for number in first..first + loops {
            let run = run.clone();
            all.spawn(async move { SimulatedMachine::new(number, false).boot_forever(&run).await });
        }
        operator.list_forever().await;
    });
    task.abort_handle()
}
