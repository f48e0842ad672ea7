"""Where examples come from, who has them, and what is held out: without TensorFlow."""
