//! Ends that each node of a graph can reach, computed once for all nodes. An end is a node without successors.
//!
//! In contrast, [`super::traversal`] computes the ends for a single node, and visits all nodes below this node for each
//! computation. All nodes of a cycle reach the same ends, so the ends are computed once for each strongly connected
//! component (Tarjan).

use std::rc::Rc;

/// Terminals that each node reaches. A terminal is a strongly connected component without successors: a single node or
/// a cycle.
#[derive(Debug)]
pub(crate) struct Reachability {
    next: Vec<Vec<usize>>,
    /// Number of the component of each node. If a component leads to another component, its number is the larger one.
    component: Vec<usize>,
    /// Nodes sorted by the numbers of their components.
    order: Vec<usize>,
    /// Set of the terminals that each component reaches.
    sets: Vec<Rc<BitSet>>,
    /// For each terminal: its only node; `None` if the terminal is a cycle.
    ends: Vec<Option<usize>>,
    /// For each component, the number of its terminal; `None` if the component is not a terminal.
    terminal: Vec<Option<usize>>,
}

/// Set of numbers, stored as bits. `first` is the index of the first stored word; all words before it are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BitSet {
    first: usize,
    words: Vec<u64>,
}

impl BitSet {
    fn insert_all(&mut self, other: &BitSet) {
        if other.words.is_empty() {
            return;
        }
        if self.words.is_empty() {
            self.first = other.first;
        }
        let end = (self.first + self.words.len()).max(other.first + other.words.len());
        let missing = self.first.saturating_sub(other.first);
        self.words.splice(0..0, std::iter::repeat_n(0, missing));
        self.first -= missing;
        self.words.resize(end - self.first, 0);
        for (index, word) in other.words.iter().enumerate() {
            self.words[other.first - self.first + index] |= word;
        }
    }

    fn insert(&mut self, number: usize) {
        self.insert_all(&BitSet { first: number / 64, words: vec![1 << (number % 64)] });
    }

    fn contains(&self, number: usize) -> bool {
        let word = (number / 64).checked_sub(self.first).and_then(|index| self.words.get(index));
        word.is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    fn is_disjoint(&self, other: &BitSet) -> bool {
        let first = self.first.max(other.first);
        let of = |bits: &'_ BitSet| first - bits.first;
        let (one, two) = (self.words.iter().skip(of(self)), other.words.iter().skip(of(other)));
        one.zip(two).all(|(one, two)| one & two == 0)
    }

    fn iter_numbers(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, word)| {
            let start = (self.first + index) * 64;
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| start + bit)
        })
    }
}

const UNVISITED_INDEX: usize = usize::MAX;

/// State of Tarjan's algorithm, which uses an explicit path instead of recursion.
struct ComponentSearch<'a> {
    next: &'a [Vec<usize>],
    index: Vec<usize>,
    low: Vec<usize>,
    open: Vec<usize>,
    is_open: Vec<bool>,
    count: usize,
    component: Vec<usize>,
    order: Vec<usize>,
    components: usize,
}

impl ComponentSearch<'_> {
    fn enter_node(&mut self, node: usize) -> (usize, usize) {
        (self.index[node], self.low[node]) = (self.count, self.count);
        self.count += 1;
        self.open.push(node);
        self.is_open[node] = true;
        (node, 0)
    }

    fn visit_from(&mut self, root: usize) {
        let mut path = vec![self.enter_node(root)];
        while let Some((node, at)) = path.last_mut() {
            let node = *node;
            if let Some(&successor) = self.next[node].get(*at) {
                *at += 1;
                if self.index[successor] == UNVISITED_INDEX {
                    path.push(self.enter_node(successor));
                } else if self.is_open[successor] {
                    self.low[node] = self.low[node].min(self.index[successor]);
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                self.low[*parent] = self.low[*parent].min(self.low[node]);
            }
            if self.low[node] == self.index[node] {
                self.close_component(node);
            }
        }
    }

    /// Closes the component that consists of `node` and all open nodes that were opened after `node`.
    fn close_component(&mut self, node: usize) {
        while let Some(member) = self.open.pop() {
            self.is_open[member] = false;
            self.component[member] = self.components;
            self.order.push(member);
            if member == node {
                break;
            }
        }
        self.components += 1;
    }
}

impl Reachability {
    /// Computes components and terminals. `next` contains the successors of each node.
    pub fn new(next: Vec<Vec<usize>>) -> Reachability {
        let nodes = next.len();
        let mut found = ComponentSearch {
            next: &next,
            index: vec![UNVISITED_INDEX; nodes],
            low: vec![0; nodes],
            open: Vec::new(),
            is_open: vec![false; nodes],
            count: 0,
            component: vec![0; nodes],
            order: Vec::with_capacity(nodes),
            components: 0,
        };
        for node in 0..nodes {
            if found.index[node] == UNVISITED_INDEX {
                found.visit_from(node);
            }
        }
        let ComponentSearch { component, order, .. } = found;
        let mut reach =
            Reachability { next, component, order, sets: Vec::new(), ends: Vec::new(), terminal: Vec::new() };
        reach.find_terminals();
        reach
    }

    fn find_terminals(&mut self) {
        let mut at = 0;
        while at < self.order.len() {
            let component = self.component[self.order[at]];
            let end = at + self.order[at..].iter().take_while(|node| self.component[**node] == component).count();
            let members = &self.order[at..end];
            let successors = members.iter().flat_map(|node| &self.next[*node]).map(|node| self.component[*node]);
            let mut below: Option<(usize, Rc<BitSet>)> = None;
            for successor in successors.filter(|successor| *successor != component) {
                below = Some(match below {
                    None => (successor, self.sets[successor].clone()),
                    Some((first, set)) if first == successor || Rc::ptr_eq(&set, &self.sets[successor]) => (first, set),
                    Some((first, mut set)) => {
                        Rc::make_mut(&mut set).insert_all(&self.sets[successor]);
                        (first, set)
                    }
                });
            }
            let is_end = members.len() == 1 && self.next[members[0]].is_empty();
            let own = below.is_none().then_some(self.ends.len());
            let set = match below {
                Some((_, set)) => set,
                None => {
                    let mut set = BitSet::default();
                    set.insert(self.ends.len());
                    self.ends.push(is_end.then_some(self.order[at]));
                    Rc::new(set)
                }
            };
            self.terminal.push(own);
            self.sets.push(set);
            at = end;
        }
    }

    fn terminals_of(&self, node: usize) -> &BitSet {
        &self.sets[self.component[node]]
    }

    /// Returns the ends that any of these nodes reaches, each once. An end is a node without successors.
    pub(crate) fn ends_of(&self, nodes: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut set = BitSet::default();
        nodes.into_iter().for_each(|node| set.insert_all(self.terminals_of(node)));
        set.iter_numbers().filter_map(|terminal| self.ends[terminal]).collect()
    }

    /// Returns whether `node` reaches `end`, which must be a node without successors.
    pub(crate) fn leads_to(&self, node: usize, end: usize) -> bool {
        let terminal = self.terminal[self.component[end]].filter(|terminal| self.ends[*terminal] == Some(end));
        terminal.is_some_and(|terminal| self.terminals_of(node).contains(terminal))
    }

    /// Returns whether there is a node that can be reached from both nodes.
    pub(crate) fn lead_to_common(&self, one: usize, other: usize) -> bool {
        !self.terminals_of(one).is_disjoint(self.terminals_of(other))
    }

    /// Computes a value for each node: the result of `value` if it returns `Some`; otherwise the bitwise OR of the
    /// values of the node's successors, or 0 if the node has none. All nodes of a cycle get the same value: the bitwise
    /// OR of the values that were computed for the individual nodes.
    pub fn combine_values(&self, value: impl Fn(usize) -> Option<u8>) -> Vec<u8> {
        let mut values = vec![0; self.sets.len()];
        for &node in &self.order {
            let component = self.component[node];
            if let Some(own) = value(node) {
                values[component] |= own;
                continue;
            }
            for &successor in &self.next[node] {
                values[component] |= values[self.component[successor]];
            }
        }
        self.component.iter().map(|component| values[*component]).collect()
    }
}

/// Nodes that were added so far. Any two of them are distinct, as defined by [`DistinctNodes::add_if_distinct`].
#[derive(Debug, Default)]
pub(crate) struct DistinctNodes {
    above: BitSet,
    below: BitSet,
    seen: BitSet,
}

impl DistinctNodes {
    /// Adds the node if it is distinct from all previously added nodes. Returns whether the node was added. Two nodes
    /// are distinct if they have no common holder and neither of them is on top of the other.
    pub(crate) fn add_if_distinct(&mut self, below: &Reachability, above: &Reachability, node: usize) -> bool {
        let of_below = &below.sets[below.component[node]];
        let own = below.terminal[below.component[node]].filter(|terminal| below.ends[*terminal] == Some(node));
        let is_met = !self.above.is_disjoint(above.terminals_of(node))
            || own.is_some_and(|own| self.below.contains(own))
            || !self.seen.is_disjoint(of_below);
        if !is_met {
            self.above.insert_all(above.terminals_of(node));
            self.below.insert_all(of_below);
            own.into_iter().for_each(|own| self.seen.insert(own));
        }
        !is_met
    }
}

#[cfg(test)]
mod tests {
    use super::super::traversal;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn graph() -> impl Strategy<Value = Vec<Vec<usize>>> {
        (1_usize..12)
            .prop_flat_map(|nodes| proptest::collection::vec(proptest::collection::vec(0..nodes, 0..4), nodes..=nodes))
    }

    proptest! {
        /// Reachability and traversal return the same results, even for graphs with cycles.
        #[test]
        fn reachable_ends_match_those_of_a_traversal(next in graph()) {
            let reach = Reachability::new(next.clone());
            let step = |node: &usize| next[*node].clone();
            for one in 0..next.len() {
                let ends = traversal::find_ends([one], step);
                prop_assert_eq!(&reach.ends_of([one]).into_iter().collect::<BTreeSet<_>>(), &ends);
                let values = reach.combine_values(|node| next[node].is_empty().then(|| 1 << (node % 8)));
                prop_assert_eq!(values[one], ends.iter().fold(0, |all, end| all | 1 << (end % 8)));
                for other in 0..next.len() {
                    let shared = !traversal::reach_all([one], step).is_disjoint(&traversal::reach_all([other], step));
                    prop_assert_eq!(reach.lead_to_common(one, other), shared);
                    prop_assert_eq!(reach.leads_to(one, other), ends.contains(&other));
                    let both: BTreeSet<usize> = reach.ends_of([one, other]).into_iter().collect();
                    prop_assert_eq!(both, traversal::find_ends([one, other], step));
                }
            }
        }

        /// Adding nodes one after the other gives the same result as comparing each pair.
        #[test]
        fn incremental_distinctness_matches_pairwise_comparison(next in graph(), up in graph()) {
            let nodes = next.len().min(up.len());
            let within = |all: &[Vec<usize>]| -> Vec<Vec<usize>> {
                all[..nodes].iter().map(|next| next.iter().copied().filter(|node| *node < nodes).collect()).collect()
            };
            let (below, above) = (Reachability::new(within(&next)), Reachability::new(within(&up)));
            let is_one = |one: usize, other: usize| {
                below.leads_to(one, other) || below.leads_to(other, one) || above.lead_to_common(one, other)
            };
            let (mut apart, mut met) = (Vec::new(), DistinctNodes::default());
            for node in 0..nodes {
                let is_apart = !apart.iter().any(|seen| is_one(*seen, node));
                prop_assert_eq!(met.add_if_distinct(&below, &above, node), is_apart);
                apart.extend(is_apart.then_some(node));
            }
        }
    }

    /// A long chain causes no recursion, and all its nodes share one set.
    #[test]
    fn long_chain_is_processed_without_recursion() {
        let next: Vec<Vec<usize>> = (0..300_000).map(|node| if node == 0 { vec![] } else { vec![node - 1] }).collect();
        let reach = Reachability::new(next);
        assert_eq!(reach.ends_of([299_999]), [0]);
        assert!(reach.sets.iter().all(|set| Rc::ptr_eq(set, &reach.sets[0])));
    }
}
