"""A recording double of jaxlib from 0.4.33 on."""
