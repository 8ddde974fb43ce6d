"""Everything of Slurm: its files, its jobs, the agent of a compute node, the verb."""
