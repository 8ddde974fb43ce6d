"""The command: the table of verbs, the verbs of the node, and what combines rooms."""
