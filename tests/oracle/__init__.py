"""Answers found another way, to check ours against."""
