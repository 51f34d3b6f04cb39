"""The options every variant is compiled with."""

OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17", "--ptxas-options=-v", "--no-cache")
"""`-v` makes ptxas report registers, spills and its C75xx warnings in the program log. Where there
is a driver, NVRTC keeps a cache of its own, and of what it takes from there it reports nothing."""
