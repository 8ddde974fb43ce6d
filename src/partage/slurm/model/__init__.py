"""Values of Slurm: releases, devices, jobs."""
