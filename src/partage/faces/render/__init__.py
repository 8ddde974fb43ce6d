"""Tables and pictures: values in, text and drawings out. Nothing is decided here."""
