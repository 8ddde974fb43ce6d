"""A simulated node behind the hardware port: machines, faults, steps."""
