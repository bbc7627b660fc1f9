//! Graph of named items and the items that lie on them, independent of its source.

pub mod reach;
pub mod walk;

use std::collections::{BTreeMap, BTreeSet};

/// A node of a [`Graph`].
#[derive(Debug, Clone)]
pub struct Node<N, T> {
    /// Name of the item in the source of the graph.
    pub name: N,
    pub item: T,
    /// Nodes below this one, in the order in which they were linked.
    pub below: Vec<usize>,
    /// Nodes on this one.
    pub above: Vec<usize>,
}

/// A directed graph of items that lie on each other. Every link is stored on both nodes.
#[derive(Debug, Clone)]
pub struct Graph<N, T> {
    pub nodes: Vec<Node<N, T>>,
    named: BTreeMap<N, usize>,
    /// Pairs of all linked nodes, lower and upper.
    links: BTreeSet<(usize, usize)>,
}

impl<N, T> Default for Graph<N, T> {
    fn default() -> Self {
        Graph { nodes: Vec::new(), named: BTreeMap::new(), links: BTreeSet::new() }
    }
}

impl<N: Ord + Clone, T> Graph<N, T> {
    /// Adds a node that cannot be found by name.
    pub fn add(&mut self, name: N, item: T) -> usize {
        self.nodes.push(Node { name, item, below: Vec::new(), above: Vec::new() });
        self.nodes.len() - 1
    }

    /// Adds a node that can be found by name. If a name is used repeatedly, its first node is found.
    pub fn provide(&mut self, name: N, item: T) -> usize {
        let node = self.add(name.clone(), item);
        self.named.entry(name).or_insert(node);
        node
    }

    pub fn find(&self, name: &N) -> Option<usize> {
        self.named.get(name).copied()
    }

    /// Links `upper` as lying on `lower`.
    pub fn link(&mut self, lower: usize, upper: usize) {
        if self.links.insert((lower, upper)) {
            self.nodes[lower].above.push(upper);
            self.nodes[upper].below.push(lower);
        }
    }

    /// Returns these nodes and all nodes below them.
    pub fn beneath(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        walk::reach(from, |node| self.nodes[*node].below.clone())
    }

    /// Returns the bottommost nodes below these.
    pub fn bottoms(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        walk::ends(from, |node| self.nodes[*node].below.clone())
    }

    /// Returns the nodes without a node below them.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].below.is_empty())
    }
}
