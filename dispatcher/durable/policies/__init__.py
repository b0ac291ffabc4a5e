"""Order, limits, rates and retries. Pure. Imports only: the settings of routing."""
