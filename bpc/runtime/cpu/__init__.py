"""Runs a program as compiled C++ on the CPU."""
