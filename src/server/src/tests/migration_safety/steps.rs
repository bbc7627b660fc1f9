//! Steps of the operator, the server and the two machines, in the usual order or in random order.

use super::*;
use model::machine_migration::MigrationSide;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Order,
    /// The machine boots over PXE.
    Boot(MigrationSide),
    /// The agent requests its allocation.
    Ask(MigrationSide),
    Stand(MigrationSide),
    Begin,
    /// Report of success: of the previous boot if the flag is true, otherwise of the current boot.
    Success(MigrationSide, bool),
    Failure(MigrationSide, bool),
    Phone,
    Finish,
    Cancel {
        off: bool,
    },
    /// The server scans the directory. This is also the first step of a server after its start.
    Look,
    /// The server makes one pending change of a machine file.
    Settle,
    /// The operator writes an allocation into a machine file, or removes it.
    Edit(MigrationSide, Option<&'static str>),
    /// The operator deletes a machine file.
    Remove(MigrationSide),
}

pub(super) fn successful_migration_steps() -> Vec<Step> {
    use Step::*;
    let (a, b) = (MigrationSide::Source, MigrationSide::Target);
    vec![
        Order,
        Boot(a),
        Ask(a),
        Stand(a),
        Boot(b),
        Ask(b),
        Stand(b),
        Begin,
        Ask(a),
        Success(b, false),
        Ask(a),
        Settle,
        Look,
        Settle,
        Settle,
        Boot(b),
        Look,
        Phone,
        Ask(a),
        Boot(a),
        Ask(a),
    ]
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    use Step::*;
    let part = || prop_oneof![Just(MigrationSide::Source), Just(MigrationSide::Target)];
    let allocation = prop_oneof![Just(None), Just(Some(MOVED)), Just(Some(OLD)), Just(Some(NEW))];
    prop_oneof![
        1 => Just(Order),
        6 => part().prop_map(Boot),
        6 => part().prop_map(Ask),
        4 => part().prop_map(Stand),
        3 => Just(Begin),
        3 => (part(), any::<bool>()).prop_map(|(part, late)| Success(part, late)),
        2 => (part(), any::<bool>()).prop_map(|(part, untouched)| Failure(part, untouched)),
        1 => Just(Phone),
        1 => Just(Finish),
        2 => any::<bool>().prop_map(|off| Cancel { off }),
        3 => Just(Look),
        3 => Just(Settle),
        2 => (part(), allocation).prop_map(|(part, allocation)| Edit(part, allocation)),
        1 => part().prop_map(Remove),
    ]
}
