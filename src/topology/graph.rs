//! What lies on what, wherever that was read: things with names, and for each what it is made of and what is made of it.

pub mod reach;
pub mod walk;

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Node<N, T> {
    /// What it is called where the graph was read.
    pub name: N,
    pub item: T,
    /// Nodes that this one is made of, in the order in which they were told.
    pub below: Vec<usize>,
    /// Nodes that are made of this one.
    pub above: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct Graph<N, T> {
    pub nodes: Vec<Node<N, T>>,
    named: BTreeMap<N, usize>,
    /// Every pair of `below` and `above`.
    links: BTreeSet<(usize, usize)>,
}

impl<N, T> Default for Graph<N, T> {
    fn default() -> Self {
        Graph { nodes: Vec::new(), named: BTreeMap::new(), links: BTreeSet::new() }
    }
}

impl<N: Ord + Clone, T> Graph<N, T> {
    /// A node that nothing can be put on by its name.
    pub fn add(&mut self, name: N, item: T) -> usize {
        self.nodes.push(Node { name, item, below: Vec::new(), above: Vec::new() });
        self.nodes.len() - 1
    }

    /// A node that can be found by its name. The first of a name is meant wherever that name is used.
    pub fn provide(&mut self, name: N, item: T) -> usize {
        let node = self.add(name.clone(), item);
        self.named.entry(name).or_insert(node);
        node
    }

    pub fn find(&self, name: &N) -> Option<usize> {
        self.named.get(name).copied()
    }

    /// `upper` is made of `lower`.
    pub fn link(&mut self, lower: usize, upper: usize) {
        if self.links.insert((lower, upper)) {
            self.nodes[lower].above.push(upper);
            self.nodes[upper].below.push(lower);
        }
    }

    /// These and all that they are made of.
    pub fn beneath(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        walk::reach(from, |node| self.nodes[*node].below.clone())
    }

    /// What these are made of in the end.
    pub fn bottoms(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        walk::ends(from, |node| self.nodes[*node].below.clone())
    }

    /// Nodes that stand on nothing.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].below.is_empty())
    }
}
