"""Which gang gets which slots. Pure. Imports only: model."""
