"""What models are made of; unlike the folder above, these may need TensorFlow."""
