"""The queries layer."""
