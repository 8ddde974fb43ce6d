"""The directory that is mounted into containers, where it is an entry of Python's path; this file has no
effect there.
"""
