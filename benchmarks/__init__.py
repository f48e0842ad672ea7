"""Programs that print the ratio behind each performance claim; not run as tests."""
