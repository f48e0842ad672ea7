"""The strategies layer."""
