"""The directory that is mounted into containers. There it is a path of Python's, and this file has no
effect."""
