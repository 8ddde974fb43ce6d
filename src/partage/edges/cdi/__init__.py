"""CDI: files that tell a container runtime which device files, mounts and hooks a device needs."""
