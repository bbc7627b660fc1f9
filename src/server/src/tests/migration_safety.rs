//! Properties of migrations that must hold for any order of events. The events include outdated snapshots of the
//! directory, edits of files, delayed requests, and reports of boots that have ended.

mod machine_requests;
mod steps;

use super::*;
use api::migration_requests::MigrationState;
use control::agent_api_types::InstallReport;
use model::install_marker::InstallMarker;
use model::machine_migration::MigrationSide;
use proptest::prelude::*;
use site::allocation_resolution::image_without_location;
use site::migrated_allocations::AllocationOwners;
use site::operator_files::{self, MachineSpec};
use site::site_objects::SiteObjects;
use steps::{Step, any_step, successful_migration_steps};
use store::machine_migration::testing::{carried as has, end, ordered, start};
use store::machine_migration::{Migration, MigrationEvent};
use store::schema;
use store::sql::{self, Connection, Transaction, params};
use store::testing::*;
use store::token_hash::TokenHash;

const A: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";
const B: &str = "4c4c4544-0051-3010-8052-b4c04f4d0002";
/// Id of the migrated allocation.
const MOVED: &str = "a1";
/// Id of the previous allocation of each machine, which still has records in the database.
const OLD: &str = "a0";
/// Id of a new allocation.
const NEW: &str = "a9";

/// One of the two machines.
#[derive(Debug, Clone, Default)]
struct MigrationMachine {
    /// Allocation in the machine file; the outer `None` means that the file does not exist.
    file: Option<Option<String>>,
    /// Machine file as the server last scanned it.
    picture: Option<MachineSpec>,
    boot: Option<TokenHash>,
    before: Option<TokenHash>,
    /// True if the machine was instructed to boot its disks since it last booted the ramdisk.
    runs: bool,
    /// Migration for which the current boot waits.
    stands_for: Option<String>,
}

impl MigrationMachine {
    fn leave(&mut self) {
        self.stands_for = None;
        self.before = self.boot.take().or(self.before);
    }
}

struct MigrationModel {
    database: Connection,
    known: SiteObjects,
    sides: [MigrationMachine; 2],
    boots: u8,
    orders: u32,
    /// True if B has reported its success in the open migration, and the operator has not confirmed since then that B
    /// is off.
    received: bool,
    /// True if B has started to write for a migration, and no installation of B has started since.
    started: bool,
}

fn index(part: MigrationSide) -> usize {
    usize::from(part == MigrationSide::Target)
}

fn id(part: MigrationSide) -> &'static str {
    [A, B][index(part)]
}

fn file(machine: &str, allocation: Option<&str>) -> MachineSpec {
    let given = allocation.map(|allocation| {
        format!("allocation:\n  id: {allocation}\n  hostname: h\n  image: debian-12\n  filesystemlayout: default\n")
    });
    operator_files::parse_machine(&format!("id: {machine}\n{}", given.unwrap_or_default())).unwrap()
}

impl MigrationModel {
    fn new() -> MigrationModel {
        let database = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&database).unwrap();
        let text = "id: default\ndisks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]\n";
        let layout = model::layout::read_yaml(text).unwrap().layout;
        let stored = serde_json::to_string(&layout).unwrap();
        let marker = InstallMarker { machine: A.to_owned(), allocation: MOVED.to_owned(), ..InstallMarker::default() };
        let insert = "INSERT INTO allocations (machine, id, created, succeeded, image, layout, marker) VALUES (?1, ?2, '', 1, 'debian-12', ?3, ?4)";
        for (machine, allocation) in [(A, OLD), (B, OLD), (A, MOVED)] {
            let id = if allocation == OLD { format!("{OLD}-{machine}") } else { allocation.to_owned() };
            database.execute(insert, params![machine, id, stored, to_json_column(&marker).unwrap()]).unwrap();
        }
        let mut known = SiteObjects::default();
        known.layouts.insert("default".to_owned(), layout);
        known.images.insert("debian-12".to_owned(), Some(image_without_location("debian-12".to_owned())));
        let mut world = MigrationModel {
            database,
            known,
            sides: Default::default(),
            boots: 0,
            orders: 0,
            received: false,
            started: false,
        };
        world.sides[0] =
            MigrationMachine { file: Some(Some(MOVED.to_owned())), runs: true, ..MigrationMachine::default() };
        world.sides[1] = MigrationMachine { file: Some(None), ..MigrationMachine::default() };
        world.look();
        world
    }

    fn look(&mut self) {
        let moves = list_live(&self.database).unwrap();
        let files: Vec<Option<MachineSpec>> = [MigrationSide::Source, MigrationSide::Target]
            .map(|part| self.sides[index(part)].file.as_ref().map(|given| file(id(part), given.as_deref())))
            .into();
        let overlay = AllocationOwners::new(&moves, files.clone().into_iter().flatten());
        for (side, file) in self.sides.iter_mut().zip(&files) {
            side.picture = file.as_ref().map(|file| overlay.effective_machine(file).0);
        }
    }

    fn transact<T>(&mut self, work: impl FnOnce(&Transaction) -> sql::Result<T>) -> T {
        let transaction = self.database.transaction().unwrap();
        let value = work(&transaction).unwrap();
        transaction.commit().unwrap();
        value
    }

    fn hears(&mut self, word: &MigrationEvent) -> Option<Result<MigrationUpdate, String>> {
        self.transact(|transaction| {
            find_live(transaction, A)?.map(|migration| apply_event(transaction, &migration, word)).transpose()
        })
    }

    /// Records that the machine was instructed to run the system on its disks, and checks that this instruction is
    /// safe.
    fn may_run(&mut self, part: MigrationSide, why: &str) -> Result<(), TestCaseError> {
        let other = if part == MigrationSide::Source { MigrationSide::Target } else { MigrationSide::Source };
        let holds_a_copy = self.started || self.received;
        match part {
            MigrationSide::Source => {
                prop_assert!(!self.received, "A is instructed to run after B has received everything: {why}")
            }
            MigrationSide::Target => {
                prop_assert!(self.received || !holds_a_copy, "B is instructed to run an incomplete system: {why}")
            }
        }
        // The check does not apply while B runs its own old system, which is not a copy of A's system.
        prop_assert!(!holds_a_copy || !self.sides[index(other)].runs, "both are instructed to run: {why}");
        self.sides[index(part)].runs = true;
        Ok(())
    }

    /// Returns the full id of an allocation. The ids of the old allocations of the two machines differ.
    fn spelled(&self, part: MigrationSide, allocation: String) -> String {
        if allocation == OLD { format!("{OLD}-{}", id(part)) } else { allocation }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Order => {
                let is_free = self.sides[1].picture.as_ref().is_some_and(|machine| machine.allocation.is_none());
                let has_it = self.sides[0].picture.as_ref().and_then(|machine| machine.allocation.as_ref());
                if is_free && has_it.is_some_and(|has| has.id.as_str() == MOVED) {
                    self.orders += 1;
                    let order = format!("o{}", self.orders);
                    let new = Migration { id: order, source: A.to_owned(), target: B.to_owned(), ..ordered() };
                    self.transact(|transaction| insert_migration(transaction, &new));
                }
            }
            Step::Boot(part) => return self.boot(part),
            Step::Ask(part) => return self.read_allocation(part),
            Step::Stand(part) => {
                if let Some(boot) = self.sides[index(part)].boot {
                    let carried = (part == MigrationSide::Source).then(has);
                    if let Some(Ok(MigrationUpdate { migration, .. })) =
                        self.hears(&MigrationEvent::Waiting(part, end(boot), carried.map(Box::new)))
                    {
                        self.sides[index(part)].stands_for = Some(migration.id);
                    }
                }
            }
            Step::Begin => {
                if let Some(boot) = self.sides[1].boot {
                    let now = read_current_boots(&self.database, A, B).unwrap();
                    let started =
                        self.hears(&MigrationEvent::StartRequested { start: start(boot, &ordered().disks), now });
                    if let Some(Ok(_)) = started {
                        prop_assert!(!self.sides[0].runs, "B starts to copy A while A runs");
                        self.started = true;
                    }
                }
            }
            Step::Success(part, late) => {
                let side = &self.sides[index(part)];
                if let Some(boot) = if late { side.before } else { side.boot } {
                    let marker = InstallMarker {
                        machine: id(part).to_owned(),
                        allocation: MOVED.to_owned(),
                        ..InstallMarker::default()
                    };
                    let report = InstallReport {
                        success: true,
                        allocationuuid: MOVED.to_owned(),
                        marker: Some(marker),
                        ..InstallReport::default()
                    };
                    let heard = self.transact(|transaction| handle_report(transaction, id(part), boot, &report, "{}"));
                    if let Some(Ok(MigrationUpdate { migration, .. })) = heard {
                        let is_late = part == MigrationSide::Target
                            && !migration.state.is_open()
                            && migration.state != MigrationState::Done;
                        prop_assert!(!is_late, "a late report of success is accepted");
                        self.received |= part == MigrationSide::Target;
                        if part == MigrationSide::Target {
                            self.sides[1].leave();
                            return self.may_run(part, "its report is acknowledged");
                        }
                        // The report comes from an earlier boot, which has ended, so it has no further effect.
                        if late {
                            return Ok(());
                        }
                        // The machine boots its own system. If a delayed request of the same boot asks to wait for the
                        // migration, the server refuses it.
                        return self.may_run(part, "its success is acknowledged");
                    }
                }
            }
            Step::Failure(part, untouched) => {
                if let Some(boot) = self.sides[index(part)].boot {
                    let allocationuuid = MOVED.to_owned();
                    // Reports are truthful: the target cannot have written before it waits for a migration.
                    let is_told = self.sides[index(part)].stands_for.is_some();
                    let untouched = match part {
                        MigrationSide::Source => untouched,
                        MigrationSide::Target => !self.started && (untouched || !is_told),
                    };
                    let report = InstallReport { allocationuuid, untouched, ..InstallReport::default() };
                    self.transact(|transaction| handle_report(transaction, id(part), boot, &report, "{}"));
                    self.started |= part == MigrationSide::Target && !untouched;
                }
            }
            Step::Phone => {
                if let Some(boot) = self.sides[1].before.or(self.sides[1].boot) {
                    drop(self.hears(&MigrationEvent::PhonedHome(boot)));
                }
            }
            Step::Finish => drop(self.hears(&MigrationEvent::Finished)),
            Step::Cancel { off } => {
                let cancelled = self.hears(&MigrationEvent::Cancelled { off });
                if let Some(Ok(_)) = cancelled
                    && self.received
                {
                    prop_assert!(off, "cancelled without a confirmation that B is off");
                    (self.received, self.sides[1].runs) = (false, false);
                }
            }
            Step::Look => self.look(),
            Step::Settle => self.settle(),
            Step::Edit(part, allocation) => {
                self.sides[index(part)].file = Some(allocation.map(str::to_owned));
            }
            Step::Remove(part) => self.sides[index(part)].file = None,
        }
        Ok(())
    }

    /// Makes one change of a machine file, as `migration_requests::machine_file_update` does.
    fn settle(&mut self) {
        let Some(migration) = find_live(&self.database, A).unwrap().filter(|migration| migration.files) else { return };
        let owner = index(migration.state.owner_role());
        let has = |file: &Option<Option<String>>| file.as_ref().and_then(Option::as_deref) == Some(MOVED);
        let (has_it, other) = (has(&self.sides[owner].file), has(&self.sides[1 - owner].file));
        match (has_it, other) {
            (true, false) => {
                self.transact(|transaction| store_migration(transaction, &Migration { files: false, ..migration }))
            }
            (true, true) => self.sides[1 - owner].file = Some(None),
            (false, true) if self.sides[owner].file == Some(None) => {
                self.sides[owner].file = Some(Some(MOVED.to_owned()));
            }
            (false, _) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn migrated_system_runs_on_at_most_one_machine(
        come in 0..=successful_migration_steps().len(),
        steps in prop::collection::vec(any_step(), 0..24),
    ) {
        let mut world = MigrationModel::new();
        for step in successful_migration_steps().into_iter().take(come).chain(steps) {
            world.step(step)?;
        }
    }
}

#[test]
fn undisturbed_migration_moves_the_allocation_to_the_target() {
    let mut world = MigrationModel::new();
    for step in successful_migration_steps() {
        world.step(step).unwrap();
    }
    let migration: String = world.database.query_row("SELECT state FROM moves", [], |row| row.get(0)).unwrap();
    assert_eq!((migration.as_str(), world.received, world.sides[1].runs), ("done", true, true));
    assert_eq!((&world.sides[0].file, &world.sides[1].file), (&Some(None), &Some(Some(MOVED.to_owned()))));
}
