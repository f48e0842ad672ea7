"""Programs that print a ratio for each performance claim; never run as tests."""
