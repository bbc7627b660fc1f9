//! Sandboxed workers of test programs.

/// Makes the test program of a crate run as a worker if its first argument is the name of a worker. In the product's
/// programs, `main` does the same. The arguments of the macro are pairs of a worker's name and its function.
///
/// The test harness provides `main`, so a function in `.init_array` starts the worker, before `main` runs. By then, the
/// standard library has already stored the arguments.
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
