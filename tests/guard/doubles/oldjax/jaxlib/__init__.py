"""A recording double of jaxlib before 0.4.14 or so."""
