"""Compiling: a variant becomes a cubin, once for every machine and shape that needs it."""
