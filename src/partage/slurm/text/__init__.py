"""What Slurm's files and programs say, as values and back. Pure."""
