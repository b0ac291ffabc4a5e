"""Traces, metrics and logs, over the OpenTelemetry API.

Nothing is exported, and almost nothing is spent, until the application (or the CLI; see `setup`) sets providers. Only
`setup` imports the SDK.
"""
