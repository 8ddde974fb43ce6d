"""CDI: the files that tell a container runtime what a device is."""
