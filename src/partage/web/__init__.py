"""Many nodes in a browser."""
