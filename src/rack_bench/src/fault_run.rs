//! Run with faults (`rack-bench faults`). Two servers that share one PostgreSQL database install and reinstall
//! simulated machines. Meanwhile servers are killed, paused and cut off, PostgreSQL crashes, and clocks are wrong.
//!
//! `fault_plan` determines the faults, and `fault_injector` injects them into the processes of `server_process` and
//! `postgres_process`. The machines (`machine_lifecycle`) and the operator (`reinstall_operator`) reach the servers
//! through `load_balancer`, and `link_switch` cuts links. `history` records all observations, and `history_checker`
//! checks them. `takeover_times` measures how long machines waited, and `fault_report` prints the result.
//! `planted_bug` and `planted_false_acknowledgements` create the defects that the checker must find.

mod fault_injector;
mod fault_plan;
mod fault_report;
mod history;
mod history_checker;
mod link_switch;
mod load_balancer;
mod machine_lifecycle;
mod planted_bug;
mod planted_false_acknowledgements;
mod postgres_process;
mod reinstall_operator;
mod server_process;
mod stored_records;
mod takeover_times;

use clap::Parser;
use common::error::{Context, Error, Phase, Result};
use common::output::{print_note, print_text, to_json};
use fault_injector::{FaultTarget, InjectedFault};
use fault_report::FaultReport;
use history::{HistoryEvent, HistoryRecorder};
use load_balancer::LoadBalancer;
use machine_lifecycle::{LifecycleContext, MachineLifecycle, waits_for_file};
use planted_bug::PlantedBug;
use postgres_process::PostgresProcess;
use reinstall_operator::ReinstallOperator;
use server_process::{ServerProcess, ServerSettings};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Maximum permitted takeover time, in seconds.
const LONGEST_TAKEOVER: f64 = 5.0;

#[derive(Debug, Parser)]
#[command(name = "rack-bench faults")]
pub struct FaultOptions {
    /// Number of machines. Each is installed and reinstalled.
    #[arg(long, default_value_t = 1000)]
    machines: u32,
    #[arg(long, default_value_t = 200)]
    faults: usize,
    /// Seed of the random numbers that determine the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Duration in seconds of the first fault that pauses a server. All other pauses last for 2 to 3.5 s.
    #[arg(long, default_value_t = 60)]
    pause: u64,
    /// Maximum number of machines that run at the same time.
    #[arg(long, default_value_t = 40)]
    at_once: usize,
    /// Seconds between the starts of two machines.
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Seconds after which no further fault is injected.
    #[arg(long, default_value_t = 3600)]
    limit: u64,
    /// Seconds after which a machine that is not installed counts as lost.
    #[arg(long, default_value_t = 600)]
    patience: u64,
    /// Plant this defect, which the checker must find. With a planted defect, the servers use plain HTTP.
    #[arg(long, value_enum)]
    plant: Option<PlantedBug>,
    /// Empty directory for the files of the servers and of PostgreSQL.
    #[arg(long)]
    work: PathBuf,
    /// Path of the program that is run with the command `serve`.
    #[arg(long)]
    server: PathBuf,
    /// Path of faketime's library, which shifts the clocks of the servers.
    #[arg(long)]
    clock_library: PathBuf,
    #[arg(long)]
    tls_cert: PathBuf,
    #[arg(long)]
    tls_key: PathBuf,
    /// File to which the measured figures are written, as JSON.
    #[arg(long)]
    figures: PathBuf,
}

/// Runs the machines and the faults. Succeeds if no invariant is violated. With a planted bug, succeeds if the
/// checker has found the bug.
pub fn run(options: &FaultOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let result = runtime.context(Phase::Control, || "start the simulation");
    match result.and_then(|runtime| runtime.block_on(simulate(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_note(&format!("rack-bench faults: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn simulate(options: &FaultOptions) -> Result<()> {
    let (target, run) = prepare(options).await?;
    if let Some(trigger) = options.plant.and_then(PlantedBug::trigger) {
        target.postgres.query(&trigger)?;
    }
    let (injected, failures) = run_machines(options, &target, &run).await?;
    let records = run.history.records();
    let database = stored_records::read_records(&target.postgres)?;
    let violations = history_checker::check_history(&records, &database, options.machines);
    let calls = run.history.calls();
    let count = |wanted: &dyn Fn(&HistoryEvent) -> bool| records.iter().filter(|record| wanted(&record.event)).count();
    let acknowledged = |is_first: bool| move |event: &HistoryEvent| matches!(event, HistoryEvent::SuccessAcknowledged { order, .. } if order.is_empty() == is_first);
    let mut clock_shifts = BTreeMap::new();
    injected
        .iter()
        .filter(|fault| fault.clock_shift != 0)
        .for_each(|fault| *clock_shifts.entry(fault.clock_shift).or_default() += 1);
    let report = FaultReport {
        machines: options.machines,
        finished: count(&|event| *event == HistoryEvent::Finished),
        installations: count(&acknowledged(true)),
        reinstalls: count(&acknowledged(false)),
        calls: calls.len(),
        seed: options.seed,
        seconds: run.history.elapsed(),
        faults: fault_report::summarize_faults(&injected, &calls),
        clock_shifts,
        invariants: fault_report::count_violations(&violations),
        violations,
        failures,
    };
    print_text(&report.to_text())?;
    let written = std::fs::write(&options.figures, to_json(&report)? + "\n");
    written.context(Phase::Control, || format!("write {}", options.figures.display()))?;
    check_invariants(options, &report)
}

/// Returns an error if an invariant is violated. With a planted bug, returns an error if the bug's invariant is not
/// violated.
fn check_invariants(options: &FaultOptions, report: &FaultReport) -> Result<()> {
    let failed = |why: String| Err(Error::new(Phase::Control, why));
    if let Some(bug) = options.plant {
        let invariant = bug.violated_invariant();
        return match report.invariants.get(&invariant) {
            Some(1..) => Ok(()),
            _ => failed(format!("the checker has not found {bug:?}: expected {}", invariant.describe_violation())),
        };
    }
    if !report.violations.is_empty() {
        return failed(format!("{} violations", report.violations.len()));
    }
    let longest = report.longest_takeover();
    if longest >= LONGEST_TAKEOVER {
        return failed(format!("a takeover took {longest:.2} s, but at most {LONGEST_TAKEOVER} s are permitted"));
    }
    Ok(())
}

/// Starts PostgreSQL, both servers and the load balancer.
async fn prepare(options: &FaultOptions) -> Result<(FaultTarget, Arc<LifecycleContext>)> {
    let postgres = PostgresProcess::start(&options.work.join("postgres")).await?;
    let directories = ["a", "b"].map(|name| options.work.join(name));
    let token = format!("{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
    let client = linux::http::new_async_client(None)?;
    let prepare = |dir: &PathBuf| {
        let machines = (0..options.machines).filter(|number| !waits_for_file(*number));
        reinstall_operator::create_directory(dir, &token, machines)?;
        let tls = options.plant.is_none().then(|| (options.tls_cert.clone(), options.tls_key.clone()));
        let (program, clock_library) = (options.server.clone(), options.clock_library.clone());
        ServerProcess::prepare(
            dir,
            &postgres.socket(),
            ServerSettings { program, client: client.clone(), clock_library, tls },
        )
    };
    let servers = [prepare(&directories[0])?, prepare(&directories[1])?];
    for server in &servers {
        server.start().await?;
    }
    let tampered = options.plant.and_then(PlantedBug::tampered_request);
    let balancer = LoadBalancer::new([servers[0].addresses, servers[1].addresses], tampered, client);
    let (boot, api) = balancer.listen().await.context(Phase::Control, || "start the load balancer")?;
    let scheme = if options.plant.is_none() { "https" } else { "http" };
    let api_url = format!("{scheme}://{api}");
    let run = LifecycleContext {
        boot,
        transfer: Duration::from_secs(2),
        patience: Duration::from_secs(options.patience),
        history: HistoryRecorder::new(),
        operator: ReinstallOperator::new(&api_url, directories.to_vec())?,
        api_url,
    };
    Ok((FaultTarget { servers, postgres, balancer }, Arc::new(run)))
}

/// Runs all machines and all faults. Returns the injected faults, and the failures of machines.
async fn run_machines(
    options: &FaultOptions,
    target: &FaultTarget,
    run: &Arc<LifecycleContext>,
) -> Result<(Vec<InjectedFault>, Vec<String>)> {
    let (places, began) = (Arc::new(Semaphore::new(options.at_once)), tokio::time::Instant::now());
    let mut machines = JoinSet::new();
    for number in 0..options.machines {
        let (run, places) = (run.clone(), places.clone());
        let powered_on = began + Duration::from_secs_f64(f64::from(number) * options.interval);
        machines.spawn(async move {
            tokio::time::sleep_until(powered_on).await;
            // Waiting for a permit cannot fail, because the semaphore is never closed.
            let _place = places.acquire_owned().await;
            MachineLifecycle::new(number, run).live().await
        });
    }
    let mut injected = Vec::new();
    for fault in fault_plan::plan_faults(options.faults, options.seed, Duration::from_secs(options.pause)) {
        if began.elapsed() > Duration::from_secs(options.limit) {
            break;
        }
        injected.push(target.inject(fault, &run.history).await?);
        if injected.len() % 20 == 0 {
            let is_finished = |record: &&history::HistoryRecord| record.event == HistoryEvent::Finished;
            let finished = run.history.records().iter().filter(is_finished).count();
            let (done, all, seconds) = (injected.len(), options.machines, run.history.elapsed());
            print_note(&format!("{done} faults, {finished} of {all} machines after {seconds:.0} s"));
        }
    }
    let mut failures = Vec::new();
    while let Some(done) = machines.join_next().await {
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(error),
            Err(error) => failures.push(error.to_string()),
        }
    }
    Ok((injected, failures))
}
