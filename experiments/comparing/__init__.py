"""Many runs of a grid, in a few processes, and what they come to in one table."""
