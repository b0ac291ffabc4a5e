"""What arrives from the stream. Imports only: schemas."""
