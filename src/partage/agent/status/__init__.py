"""What the agent says of itself: the last report, readiness, metrics."""
