"""Factories of means whose noise clients make, or which stand for such."""
