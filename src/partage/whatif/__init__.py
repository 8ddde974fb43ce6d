"""What becomes of the pods of a trace on a fleet."""
