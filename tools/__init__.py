"""Tools for people who change Partage; none of them is installed."""
