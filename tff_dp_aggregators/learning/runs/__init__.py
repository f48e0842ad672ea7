"""A run in a directory: its rounds, what they leave, and how it goes on when stopped.

`plan.Plan` is what is to be done, `run.Run` does it.
"""
