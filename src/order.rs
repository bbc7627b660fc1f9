//! Sorts in little code. Each kind of list that the standard library sorts brings 6 to 8 KB into the agent. Here its algorithm is there
//! once, for places in a list; the things are swapped after it. `collect` sorts what it makes a `BTreeMap` or a `BTreeSet` of, too:
//! `gather` puts one in after the other.

use std::cmp::Ordering;

/// What `collect` does, in little code where that would sort.
pub trait Gather: Iterator + Sized {
    /// Of several with one key the last one stays, as with `collect`.
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> Gather for I {}

/// Equal ones stay in their order.
pub fn sort<T: Ord>(items: &mut [T]) {
    by(items, T::cmp);
}

/// As [`sort`], by what `key` says of each.
pub fn by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    by(items, |one, other| key(one).cmp(&key(other)));
}

/// As [`sort`], by comparing.
pub fn by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let places = places(items.len(), &|one, other| compare(&items[one], &items[other]));
    put(places, &mut |one, other| items.swap(one, other));
}

/// Which item comes first, which second…
fn places(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_by(|one, other| compare(*one, *other));
    places
}

/// Each place gets the item that belongs there: along the circles of which every such list consists.
fn put(mut places: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for start in 0..places.len() {
        let mut at = start;
        while places[at] != start {
            let next = std::mem::replace(&mut places[at], at);
            swap(at, next);
            at = next;
        }
        places[at] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_makes(items in prop::collection::vec((0u8..9, any::<u16>()), 0..60)) {
            let (mut mine, mut expected) = (items.clone(), items.clone());
            sort(&mut mine);
            expected.sort();
            prop_assert_eq!(&mine, &expected);
            let (mut mine, mut expected) = (items.clone(), items.clone());
            by_key(&mut mine, |item| std::cmp::Reverse(item.0));
            expected.sort_by_key(|item| std::cmp::Reverse(item.0));
            prop_assert_eq!(&mine, &expected);
            let (mine, expected): (BTreeMap<u8, u16>, BTreeMap<u8, u16>) =
                (items.iter().copied().gather(), items.into_iter().collect());
            prop_assert_eq!(mine, expected);
        }
    }
}
