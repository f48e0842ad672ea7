"""Runs a training in a directory, round by round, and resumes it after a stop."""
