"""Slurm on a compute node: what Partage does around its jobs (prolog and epilog), and the agent that keeps
Slurm and the GPUs of the node the same."""
