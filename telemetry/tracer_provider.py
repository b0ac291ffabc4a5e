"""Whether a real OpenTelemetry provider is there, asked on every call and so answered in tens of nanoseconds.

`get_tracer_provider()` looks into the process environment each time (0.8 us), which is too much for a hot path. The
module variable behind it is read instead, with the public function as the fallback for an API that has no such
variable.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


class ProviderProbe:
    """Answers whether the global provider is a real one, and notices when one is set later."""

    __slots__ = ("_get", "_noop", "_real", "_seen", "_variable", "_variables")

    def __init__(self, module: ModuleType, variable: str, get: Callable[[], object], noop: type) -> None:
        """
        Args:
            module: the API module that keeps the provider.
            variable: the module variable that is None until one is set.
            get: the public function that returns the provider.
            noop: the API's own provider that does nothing.
        """
        get()  # makes the provider that OTEL_PYTHON_*_PROVIDER names, if it names one
        self._variables = vars(module)
        self._variable = variable
        self._get = get
        self._noop = noop
        self._seen: object = None
        self._real = False

    def real(self) -> bool:
        """For hot paths, since calling a method costs half of what calling an object does."""
        try:
            provider = self._variables[self._variable]
        except KeyError:
            provider = self._get()
        if provider is not self._seen:
            self._seen = provider
            self._real = self._is_real(provider)
        return self._real

    __call__ = real

    def _is_real(self, provider: object) -> bool:
        # The proxies that stand in until a provider is set are private classes of the API, of several names.
        return provider is not None and not isinstance(provider, self._noop) and "Proxy" not in type(provider).__name__
