"""Checks of generated code, and of what training does."""
