"""What claims keep on the machine."""
