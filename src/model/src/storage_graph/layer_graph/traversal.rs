//! Traversals of a graph. Each traversal visits every reachable node once, and terminates even if the graph has cycles.

use std::collections::BTreeSet;

/// Returns these nodes, and all nodes that can be reached from them.
pub(crate) fn reach_all<N: Ord + Clone>(from: impl IntoIterator<Item = N>, next: impl Fn(&N) -> Vec<N>) -> BTreeSet<N> {
    let (mut seen, mut open) = (BTreeSet::new(), from.into_iter().collect::<Vec<N>>());
    while let Some(node) = open.pop() {
        if !seen.contains(&node) {
            open.extend(next(&node));
            seen.insert(node);
        }
    }
    seen
}

/// Returns the nodes of [`reach_all`] that have no successors.
pub fn find_ends<N: Ord + Clone>(from: impl IntoIterator<Item = N>, next: impl Fn(&N) -> Vec<N>) -> BTreeSet<N> {
    let mut reached = reach_all(from, &next);
    reached.retain(|node| next(node).is_empty());
    reached
}

/// Returns all nodes that can be reached from `from`, including `from` itself, in the order in which stacked devices
/// are stopped: each node follows all nodes that can be reached from it.
pub fn order_farthest_first<N: Ord + Clone>(from: N, next: impl Fn(&N) -> Vec<N>) -> Vec<N> {
    order_farthest_first_except(&BTreeSet::new(), from, next)
}

/// Returns the nodes of [`order_farthest_first`], in the same order. Omits the nodes in `known`, and the nodes that can
/// be reached only through nodes in `known`.
pub(crate) fn order_farthest_first_except<N: Ord + Clone>(
    known: &BTreeSet<N>,
    from: N,
    next: impl Fn(&N) -> Vec<N>,
) -> Vec<N> {
    if known.contains(&from) {
        return Vec::new();
    }
    let (mut seen, mut order) = (BTreeSet::from([from.clone()]), Vec::new());
    // Returns a node with its successors in reverse order, so that `pop` returns the first successor first.
    let open = |node: N| {
        let rest: Vec<N> = next(&node).into_iter().rev().collect();
        (node, rest)
    };
    let mut path = vec![open(from)];
    while let Some((_, rest)) = path.last_mut() {
        match rest.pop() {
            Some(node) if !known.contains(&node) && seen.insert(node.clone()) => path.push(open(node)),
            Some(_) => {}
            None => order.extend(path.pop().map(|(node, _)| node)),
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the nodes on top of a node: 3 is on 1 and 2, 4 is on 2, 5 is on 3 and 4, and 6 is on itself.
    fn above(node: &u32) -> Vec<u32> {
        match node {
            1 => vec![3],
            2 => vec![4, 3],
            3 | 4 => vec![5],
            6 => vec![6],
            _ => vec![],
        }
    }

    #[test]
    fn traversal_visits_each_node_once() {
        assert_eq!(reach_all([1], above), [1, 3, 5].into());
        assert_eq!(reach_all([1, 2], above), [1, 2, 3, 4, 5].into());
        assert_eq!(reach_all([6], above), [6].into());
        assert_eq!(find_ends([1, 2], above), [5].into());
        assert_eq!(find_ends([7], above), [7].into());
        assert_eq!(find_ends([6], above), [].into());
    }

    #[test]
    fn farthest_nodes_come_first() {
        assert_eq!(order_farthest_first(2, above), [5, 4, 3, 2]);
        assert_eq!(order_farthest_first(6, above), [6]);
        assert_eq!(order_farthest_first(7, above), [7]);
    }
}
