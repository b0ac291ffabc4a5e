"""Order, limits, rates and retries. Pure. Imports only: schemas."""
