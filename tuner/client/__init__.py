"""Tuned configs for programs that ask while they are imported.

    from tuner.client import best_config

    best = best_config(4096, 4096, 4096)
    best.config, best.use, best.tier, best.source

Standard library only, no CUDA, and no exception unless strict mode is chosen: whatever the server
does, an answer is there within a second, and says where it comes from. See docs/client.md.
"""

from __future__ import annotations

from tuner.client.best import BestConfig
from tuner.client.configs import TunedConfigs
from tuner.client.process import best_config, best_configs, load

__all__ = ["BestConfig", "TunedConfigs", "best_config", "best_configs", "load"]
