"""Helpers for all layers: argument checks, atomic file writes, version and machine."""
