"""Names of the release before, see cli/hardware."""
