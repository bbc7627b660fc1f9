//! Sandboxed workers of test programs.

/// Makes the test program of a crate become a worker when it is started with the name of one as its first argument, as
/// the programs of the product do in `main`. Takes pairs of name and function.
///
/// The functions of `.init_array` run before `main`, which belongs to the test harness; the standard library has stored
/// the arguments by then.
#[macro_export]
macro_rules! workers {
    ($($name:expr => $run:expr),+ $(,)?) => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static BECOME_WORKER: extern "C" fn() = {
            extern "C" fn become_worker() {
                let Some(name) = std::env::args().nth(1) else { return };
                $(if name == $name {
                    if let Err(error) = ($run)() {
                        eprintln!("{error}");
                        std::process::exit(1);
                    }
                    std::process::exit(0);
                })+
            }
            become_worker
        };
    };
}
