"""The hardware of a node: one port, three implementations (NVML in process, a socket, the simulation)."""
