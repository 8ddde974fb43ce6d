"""The users' own experiments on a shared GPU: measured, written down, summed up, drawn."""
