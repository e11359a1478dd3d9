"""Sources that lie in files: found, measured and opened, each record checked."""
