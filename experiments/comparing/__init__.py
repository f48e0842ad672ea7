"""Many runs of a grid, in a few processes, and what they come to in one table.

Only `worker` loads TensorFlow, in processes of its own.
"""
