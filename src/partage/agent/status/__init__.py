"""The agent's status: the last report, readiness, metrics."""
