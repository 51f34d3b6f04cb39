"""The command line: one module per command. Commands translate; they never decide."""
