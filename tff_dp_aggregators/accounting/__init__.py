"""The accounting layer."""
