"""TFF's worker processes and who may use them, without TensorFlow."""
