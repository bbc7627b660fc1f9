//! Sorting with small code size. Each element type that is sorted with the standard library adds 6 to 8 KB to the agent. This module
//! instantiates that algorithm once, for indices, and then swaps the elements. `collect` sorts the items of a `BTreeMap` or `BTreeSet` too;
//! `gather` inserts them one by one.

use std::cmp::Ordering;

/// Replacement for `collect` that avoids instantiating a sort.
pub trait GatherExt: Iterator + Sized {
    /// Collects the items. If several have the same key, the last one is used, as with `collect`.
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> GatherExt for I {}

/// Sorts a slice. The sort is stable.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

/// Sorts a slice by a key. The sort is stable.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |one, other| key(one).cmp(&key(other)));
}

/// Sorts a slice with a comparison function. The sort is stable.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let places = sorted_indices(items.len(), &|one, other| compare(&items[one], &items[other]));
    apply_permutation(places, &mut |one, other| items.swap(one, other));
}

/// Returns the indices of the items in sorted order.
fn sorted_indices(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_by(|one, other| compare(*one, *other));
    places
}

/// Moves each item to its sorted position by following the cycles of the permutation.
fn apply_permutation(mut places: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
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
            sort_by_key(&mut mine, |item| std::cmp::Reverse(item.0));
            expected.sort_by_key(|item| std::cmp::Reverse(item.0));
            prop_assert_eq!(&mine, &expected);
            let (mine, expected): (BTreeMap<u8, u16>, BTreeMap<u8, u16>) =
                (items.iter().copied().gather(), items.into_iter().collect());
            prop_assert_eq!(mine, expected);
        }
    }
}
