"""Slurm: what a policy means in its configuration, and what its files and requests mean to it."""
