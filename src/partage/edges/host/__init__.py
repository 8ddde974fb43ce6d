"""Files, processes and sockets of this machine, below all other edges."""
