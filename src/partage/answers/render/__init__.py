"""Tables and pictures that several verbs share."""
