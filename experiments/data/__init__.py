"""Reads clients' examples and splits off test data, without TensorFlow."""
