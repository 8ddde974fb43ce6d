"""Tries to break what shares guarantee, and writes down what was promised, seen and found."""
