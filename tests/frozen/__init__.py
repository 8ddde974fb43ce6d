"""Files that an older release has written: they are read, for ever."""
