"""The command line: thin commands over `bpc.api`; only here do errors become text."""
