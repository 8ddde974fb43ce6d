"""What such a pod asks for, what it becomes, and why not. Pure."""
