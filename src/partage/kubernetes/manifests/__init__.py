"""What manifests ask for, and what is wrong with them."""
