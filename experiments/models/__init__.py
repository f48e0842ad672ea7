"""What can be trained: models by name, and those of users."""
