"""The command ``partage``: one file per verb."""
