//! Measurement of takeovers: the time until the machines of a failed server are served again.

use super::history::CallRecord;

/// Time after the fault within which a machine must start a call to count as affected, in seconds.
const WINDOW: f64 = 60.0;

/// Returns the durations of the takeovers, in seconds: for each affected machine, the time until its first acknowledged
/// call. The takeover starts with the fault at `fault` or, if the machine was idle at that time, with the machine's
/// next call. `calls` must be sorted by their end.
pub fn measure_takeovers(calls: &[CallRecord], affected: &[u32], fault: f64) -> Vec<f64> {
    let first = calls.partition_point(|call| call.ended <= fault);
    let later = calls.get(first..).unwrap_or_default();
    let takeover = |machine: &u32| {
        let mut own = later.iter().filter(|call| call.machine == *machine && call.began < fault + WINDOW);
        let next = own.next()?;
        let acknowledged = if next.is_acknowledged { next } else { own.find(|call| call.is_acknowledged)? };
        Some(acknowledged.ended - next.began.max(fault))
    };
    let mut takeovers: Vec<f64> = affected.iter().filter_map(takeover).collect();
    takeovers.sort_by(f64::total_cmp);
    takeovers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(machine: u32, began: f64, ended: f64, is_acknowledged: bool) -> CallRecord {
        CallRecord { machine, began, ended, is_acknowledged }
    }

    #[test]
    fn takeover_time_ends_with_first_acknowledgement() {
        let mut calls = vec![
            call(1, 9.0, 9.5, true),
            // The fault interrupts this call, which is then repeated.
            call(1, 9.9, 12.5, true),
            call(2, 9.9, 10.5, false),
            call(2, 11.0, 11.5, true),
            // This call starts later, and is acknowledged immediately.
            call(3, 15.0, 15.25, true),
            call(4, 9.9, 10.5, false),
            call(5, 9.9, 10.5, true),
            call(6, 80.0, 99.0, true),
        ];
        calls.sort_by(|one, other| one.ended.total_cmp(&other.ended));
        assert_eq!(measure_takeovers(&calls, &[1], 10.0), [2.5]);
        assert_eq!(measure_takeovers(&calls, &[2], 10.0), [1.5]);
        assert_eq!(measure_takeovers(&calls, &[1, 2, 3, 4, 6], 10.0), [0.25, 1.5, 2.5]);
        assert_eq!(measure_takeovers(&calls, &[7], 10.0), [0.0; 0]);
    }
}
