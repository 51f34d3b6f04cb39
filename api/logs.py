"""The log of a server: one JSON object a line, each with the id of the request it is about."""

import logging
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS

from tuner.api.request_context import current_id


class RequestId(logging.Filter):
    """Adds `request_id` to what is logged while a request is answered."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_id.get() or None
        return True


def log_config(level: str = "INFO") -> dict[str, Any]:
    """For uvicorn and everything of ours; uvicorn's own lines about requests are left out."""
    quiet = {"level": "WARNING", "propagate": True, "handlers": []}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_id": {"()": f"{__name__}.RequestId"}},
        "formatters": {
            "json": {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "format": "%(levelname)s %(name)s %(message)s %(request_id)s",
                "rename_fields": {"levelname": "level", "name": "logger"},
                "timestamp": "time",
                "reserved_attrs": [*RESERVED_ATTRS, "color_message"],
            }
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "json",
                "filters": ["request_id"],
            }
        },
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "tuner": {"level": level},
            "uvicorn": {"level": level, "propagate": True, "handlers": []},
            "uvicorn.access": quiet,
        },
    }
