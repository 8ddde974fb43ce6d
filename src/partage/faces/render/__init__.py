"""Tables and pictures for a terminal: values in, rich renderables out. Nothing is decided here."""
