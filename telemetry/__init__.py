"""Traces, metrics and logs, over the OpenTelemetry API.

Nothing is exported, at almost no cost, until the application (or the CLI; see `setup`) sets providers. Only `setup`
imports the SDK.
"""
