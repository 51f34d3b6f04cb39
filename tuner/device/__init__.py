"""Devices: where candidates are verified and timed."""
