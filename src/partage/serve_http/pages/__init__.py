"""The page of a node for a browser."""
