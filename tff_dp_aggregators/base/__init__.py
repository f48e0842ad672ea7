"""What all layers rest on: checks of arguments, files written whole or not at all."""
