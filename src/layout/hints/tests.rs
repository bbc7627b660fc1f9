//! Hints against the behaviour of Ironic, and what is ours.
