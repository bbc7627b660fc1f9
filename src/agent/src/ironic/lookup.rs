//! Lookup of this machine's node, with the same retries as in Ironic's own agent.

use super::api_client::{FoundIronicNode, IronicResult};
use common::error::{Error, Phase, Result};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const MAXIMUM_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Delays before another attempt while the node is locked. Ironic locks a node for some seconds while it switches on
/// the power of the node.
const LOCKED: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(30)];

/// Retry state of a lookup.
pub(crate) struct LookupRetries {
    /// Time after which the lookup fails; `None` if the lookup is retried without limit.
    limit: Option<Duration>,
    pause: Duration,
    locked: usize,
    last_message: String,
}

impl LookupRetries {
    pub(crate) fn new(limit: Option<Duration>) -> LookupRetries {
        LookupRetries { limit, pause: FIRST, locked: 0, last_message: String::new() }
    }

    /// Returns the delay before the next attempt. Calls `say` with the reason for the delay if the reason has changed.
    /// `chance` is a random number between 0 and 1.
    ///
    /// # Errors
    /// Fails if the time limit is exceeded.
    pub(crate) fn next_delay<T>(
        &mut self,
        told: &IronicResult<T>,
        elapsed: Duration,
        chance: f64,
        say: &dyn Fn(&str),
    ) -> Result<Duration> {
        let why = match told {
            IronicResult::Success(_) => String::new(),
            IronicResult::Unknown => {
                "Ironic does not have a node with these MACs that waits for an agent (404)".to_owned()
            }
            IronicResult::Locked => "the node is locked (409)".to_owned(),
            IronicResult::Refused(error) | IronicResult::Unavailable(error) => error.to_string(),
        };
        if why != self.last_message {
            say(&why);
            self.last_message = why;
        }
        let pause = if matches!(told, IronicResult::Locked) {
            self.locked += 1;
            LOCKED[(self.locked - 1).min(LOCKED.len() - 1)]
        } else {
            let pause = self.pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
            self.pause = (self.pause * 2).min(MAXIMUM_RETRY_INTERVAL);
            pause
        };
        match self.limit {
            Some(limit) if elapsed + pause > limit => {
                let message = format!(
                    "Ironic did not accept this machine within {seconds} s: {reply}",
                    seconds = limit.as_secs(),
                    reply = self.last_message
                );
                Err(Error::new(Phase::Control, message))
            }
            _ => Ok(pause),
        }
    }
}

/// Returns the token of the node: the token that was just issued or, if none was issued, the token that was stored in
/// this boot.
///
/// # Errors
/// Fails if the token was issued to another client.
pub(crate) fn choose_token(node: &FoundIronicNode, kept: Option<String>) -> Result<String> {
    node.token.clone().or(kept).ok_or_else(|| {
        let message = format!(
            "Ironic has already issued the token of node {} to another client: the agent was started twice during this boot, or a client \
             outside of this machine has looked up the node. Abort the operation of the node and start it again: Ironic issues a new token \
             after each power cycle",
            node.uuid
        );
        Error::refusal(Phase::Control, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn run(told: &[IronicResult<()>], limit: u64) -> (Vec<f64>, Option<String>, Vec<String>) {
        let (mut patience, mut elapsed) = (LookupRetries::new(Some(Duration::from_secs(limit))), Duration::ZERO);
        let (mut pauses, said) = (Vec::new(), RefCell::new(Vec::new()));
        for told in told.iter().cycle().take(100) {
            match patience.next_delay(told, elapsed, 1.0, &|why| said.borrow_mut().push(why.to_owned())) {
                Ok(pause) => {
                    elapsed += pause;
                    pauses.push(pause.as_secs_f64());
                }
                Err(error) => return (pauses, Some(error.to_string()), said.into_inner()),
            }
        }
        (pauses, None, said.into_inner())
    }

    #[test]
    fn lookup_delays_grow_until_the_timeout() {
        let (pauses, error, said) = run(&[IronicResult::Unknown], 600);
        assert_eq!(pauses[..7], [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        assert!(pauses.iter().sum::<f64>() <= 600.0 && pauses.len() > 20, "{pauses:?}");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(error.unwrap().contains("within 600 s: Ironic does not have a node"));
    }

    #[test]
    fn locked_node_has_separate_delays() {
        let (pauses, error, said) = run(&[IronicResult::Locked], 100);
        assert_eq!(pauses, [5.0, 10.0, 30.0, 30.0]);
        assert!(error.unwrap().contains("locked"));
        assert_eq!(said.len(), 1);
        // A changed reason is logged again.
        let (pauses, _, said) = run(&[IronicResult::Locked, IronicResult::Unknown], 60);
        assert_eq!((pauses, said.len()), (vec![5.0, 1.0, 10.0, 2.0, 30.0, 4.0], 7));
    }

    #[test]
    fn jitter_halves_a_delay_at_most() {
        let mut patience = LookupRetries::new(None);
        for (chance, expected) in [(0.0, 0.5), (0.5, 1.5), (1.0, 4.0)] {
            let pause =
                patience.next_delay(&IronicResult::<()>::Unknown, Duration::from_secs(9999), chance, &|_| ()).unwrap();
            assert_eq!(pause.as_secs_f64(), expected);
        }
    }

    #[test]
    fn stored_token_is_reused_and_missing_token_refused() {
        let node = |token: Option<&str>| FoundIronicNode {
            uuid: "n-1".into(),
            token: token.map(str::to_owned),
            heartbeat: Duration::from_secs(300),
        };
        assert_eq!(choose_token(&node(Some("new")), Some("old".into())).unwrap(), "new");
        assert_eq!(choose_token(&node(None), Some("old".into())).unwrap(), "old");
        let error = choose_token(&node(None), None).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("node n-1 to another client"), "{error}");
    }
}
