"""The noise layer."""
