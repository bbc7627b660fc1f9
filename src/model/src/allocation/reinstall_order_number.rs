//! Numbers of reinstall orders. They identify the orders of control planes that do not assign ids to orders:
//! metal-stack, and machine files that the agent reads without a server.
//!
//! Order numbers are also read from install markers and firmware variables, which the root user of the installed
//! system can write. The numbers are therefore bounded, and arithmetic on them is checked for overflow.

use std::fmt;

/// Number of a reinstall order, from 1 to [`OrderNumber::LARGEST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderNumber(u64);

impl OrderNumber {
    pub const FIRST: OrderNumber = OrderNumber(1);

    /// Largest number: 2^53 - 1. Every JSON parser represents all integers up to this number exactly.
    pub const LARGEST: OrderNumber = OrderNumber((1 << 53) - 1);

    /// Parses the id of a reinstall order. Returns `None` if the id is not a decimal number from 1 to
    /// [`OrderNumber::LARGEST`].
    pub fn parse(id: &str) -> Option<OrderNumber> {
        let is_decimal = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let number = id.parse().ok().filter(|_| is_decimal).map(OrderNumber)?;
        (OrderNumber::FIRST..=OrderNumber::LARGEST).contains(&number).then_some(number)
    }

    /// Returns the next number. After [`OrderNumber::LARGEST`], which occurs only in forged markers, the next number is
    /// [`OrderNumber::FIRST`].
    pub fn successor(self) -> OrderNumber {
        if self < OrderNumber::LARGEST { OrderNumber(self.0 + 1) } else { OrderNumber::FIRST }
    }
}

impl fmt::Display for OrderNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_numbers_are_limited_and_never_wrap_to_zero() {
        for (text, number) in [
            ("1", Some(1)),
            ("02", Some(2)),
            ("9007199254740991", Some(9_007_199_254_740_991)),
            ("9007199254740992", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("99999999999999999999999999", None),
            ("0", None),
            ("-1", None),
            ("+1", None),
            (" 1", None),
            ("1e3", None),
            ("5f0c-of-a-server", None),
            ("", None),
        ] {
            assert_eq!(OrderNumber::parse(text), number.map(OrderNumber), "{text}");
        }
        assert_eq!(OrderNumber(4).successor(), OrderNumber(5));
        assert_eq!(OrderNumber::LARGEST.successor(), OrderNumber::FIRST);
    }
}
