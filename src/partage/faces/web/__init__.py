"""The page in the browser: a node, or many nodes at a glance."""
