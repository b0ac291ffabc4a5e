"""Real SDK providers, in memory, for the tests that look at spans and metrics."""

from ..otel import read as read
from ..otel import spans as spans
