"""The agent in a cluster: what it follows and writes there."""
