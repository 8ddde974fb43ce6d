"""The SPANK plugin that sets the driver's memory limits of a job: a C program for each release of Slurm."""
