"""Values and rules. Pure: no I/O, no clock, no log; nothing here can fail for the world's reasons."""
