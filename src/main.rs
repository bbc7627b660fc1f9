//! One line per subcommand.

fn main() {}
