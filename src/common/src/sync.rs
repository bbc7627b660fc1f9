//! Locks that remain usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, even if a thread has panicked while it held the lock.
pub fn lock_mutex<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_usable_after_a_panic() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock_mutex(&mutex);
                std::panic::resume_unwind(Box::new(()));
            });
            holder.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned());
        assert_eq!(*lock_mutex(&mutex), 1);
    }
}
