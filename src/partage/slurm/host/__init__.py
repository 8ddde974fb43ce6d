"""Slurm on this node: the records of its jobs, and what its programs say."""
