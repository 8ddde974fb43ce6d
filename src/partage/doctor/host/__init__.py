"""A node's own files and processes, as the doctor looks at them. Nothing here changes anything."""
