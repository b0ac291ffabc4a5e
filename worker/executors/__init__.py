"""Where tasks run: on the event loop, in threads, in child processes."""

from .base import Executors
from .run import ExecutorSettings

__all__ = ["ExecutorSettings", "Executors"]
