"""The hook that sets the driver's memory limits of a container: a C program, and where it is on a node."""
