"""The right size of a share, from what was used."""
