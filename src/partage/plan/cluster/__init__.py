"""What a cluster is told of a node, and what is asked of it. Pure."""
