"""What is wrong with a node: what was seen of it, the checks, their findings."""
