"""Capture of a live slot to files of payloads, with every committed change once. Needs `pgdecode[capture]`."""

from pgdecode.capture.capture import Capture, CaptureResult
from pgdecode.capture.errors import CaptureError, GapError, RequestError, StoppedError
from pgdecode.capture.options import PluginOptions
from pgdecode.capture.recorder import FileRules
from pgdecode.capture.retention import Retention
from pgdecode.capture.server import drop_slot

__all__ = [
    "Capture",
    "CaptureError",
    "CaptureResult",
    "FileRules",
    "GapError",
    "PluginOptions",
    "RequestError",
    "Retention",
    "StoppedError",
    "drop_slot",
]
