"""What all layers rest on: checks of arguments, files written whole, what computes."""
