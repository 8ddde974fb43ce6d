"""What becomes of the pods of a trace on a fleet of nodes under a policy. Pure."""
