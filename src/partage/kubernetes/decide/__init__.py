"""What a cluster is told of a node, and whom it is asked to evict. Pure."""
