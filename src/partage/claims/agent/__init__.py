"""The DRA driver in the agent of a node."""
