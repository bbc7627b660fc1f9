//! Graph of named storage items that are stacked on one another, for layouts and for machines.

pub(crate) mod reachability;
pub mod traversal;

use std::collections::{BTreeMap, BTreeSet};

/// A node of a [`LayerGraph`].
#[derive(Debug, Clone)]
pub struct LayerNode<N, T> {
    /// Name of the item in the layout or inventory.
    pub name: N,
    pub item: T,
    /// Indices of the nodes below this node, in the order in which they were linked.
    pub below: Vec<usize>,
    /// Indices of the nodes on top of this node.
    pub above: Vec<usize>,
}

/// A graph of storage items that are stacked on one another. Each link is stored in its lower and its upper node.
#[derive(Debug, Clone)]
pub struct LayerGraph<N, T> {
    pub nodes: Vec<LayerNode<N, T>>,
    named: BTreeMap<N, usize>,
    /// Pairs of lower and upper node, one for each link.
    links: BTreeSet<(usize, usize)>,
}

impl<N, T> Default for LayerGraph<N, T> {
    fn default() -> Self {
        LayerGraph { nodes: Vec::new(), named: BTreeMap::new(), links: BTreeSet::new() }
    }
}

impl<N: Ord + Clone, T> LayerGraph<N, T> {
    /// Adds a node that cannot be found by name.
    pub(crate) fn add_unnamed(&mut self, name: N, item: T) -> usize {
        self.nodes.push(LayerNode { name, item, below: Vec::new(), above: Vec::new() });
        self.nodes.len() - 1
    }

    /// Adds a node that can be found by name. If several nodes have the same name, the first of them is found.
    pub fn add_named(&mut self, name: N, item: T) -> usize {
        let node = self.add_unnamed(name.clone(), item);
        self.named.entry(name).or_insert(node);
        node
    }

    pub fn find(&self, name: &N) -> Option<usize> {
        self.named.get(name).copied()
    }

    /// Records that `upper` is on top of `lower`.
    pub fn link(&mut self, lower: usize, upper: usize) {
        if self.links.insert((lower, upper)) {
            self.nodes[lower].above.push(upper);
            self.nodes[upper].below.push(lower);
        }
    }

    /// Returns these nodes and all nodes below them.
    pub fn reach_below(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        traversal::reach_all(from, |node| self.nodes[*node].below.clone())
    }

    /// Returns the lowest nodes below these nodes: those that are not on top of another node.
    pub fn find_bottoms(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        traversal::find_ends(from, |node| self.nodes[*node].below.clone())
    }

    /// Returns the nodes that are not on top of another node.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].below.is_empty())
    }
}
