"""Detects whether a real OpenTelemetry provider is set. This is checked on every call, so it takes tens of nanoseconds.

`get_tracer_provider()` reads the process environment each time (0.8 us), which is too slow for a hot path. So the
module variable behind it is read instead, with the public function as a fallback if the API has no such variable.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


class ProviderProbe:
    """Tells whether the global provider is a real one, also when it is set later."""

    __slots__ = ("_get", "_noop", "_real", "_seen", "_variable", "_variables")

    def __init__(self, module: ModuleType, variable: str, get: Callable[[], object], noop: type) -> None:
        """
        Args:
            module: the API module with the provider.
            variable: the module's variable, which is None until a provider is set.
            get: the public function that returns the provider.
            noop: the API's own provider that does nothing.
        """
        get()  # creates the provider named by OTEL_PYTHON_*_PROVIDER, if any
        self._variables = vars(module)
        self._variable = variable
        self._get = get
        self._noop = noop
        self._seen: object = None
        self._real = False

    def real(self) -> bool:
        """For hot paths: calling a method costs half as much as calling an object."""
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
        # The proxies used until a provider is set are private classes of the API, with several names.
        return provider is not None and not isinstance(provider, self._noop) and "Proxy" not in type(provider).__name__
