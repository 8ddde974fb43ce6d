"""What the extender decides. Pure."""
