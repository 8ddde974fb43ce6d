"""A recording double of TensorFlow."""
