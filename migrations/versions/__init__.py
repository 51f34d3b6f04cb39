"""One file per revision, numbered in the order in which they run."""
