"""Models of the simulations: built-in ones by name, and those of users."""
