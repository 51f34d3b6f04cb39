"""The HTTP service: reads the store, never the GPU. Import it as `tuner.api`."""
