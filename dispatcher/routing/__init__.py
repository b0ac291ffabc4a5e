"""Which worker gets a request. Pure. Imports only: schemas."""
