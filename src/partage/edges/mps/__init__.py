"""MPS control daemons that Partage owns, one for each GPU or MIG device that is shared by MPS."""
