"""Where training data comes from, what it looks like, and in which order it is read."""
