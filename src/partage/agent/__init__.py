"""The service of a node: observes, turns, owns time and tasks."""
