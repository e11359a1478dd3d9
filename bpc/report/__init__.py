"""Reports: facts that other parts found, as text for people."""
