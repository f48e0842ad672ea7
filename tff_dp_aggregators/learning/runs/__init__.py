"""Runs a training in a directory, round by round, and resumes it after a stop.

`plan.Plan` describes a run, and `run.Run` carries it out.
"""
