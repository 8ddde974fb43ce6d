"""A simulated node behind the same ports, as strict as the hardware."""
