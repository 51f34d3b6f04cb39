"""gemm-tuner: tuned configurations for a Hopper bf16 GEMM kernel. Importing this starts nothing."""

__version__ = "0.1.0.dev0"
