"""What people and machines read: command line, HTTP."""
