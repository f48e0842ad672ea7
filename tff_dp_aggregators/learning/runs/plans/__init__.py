"""What a run is to do, and whether its parts go together."""
