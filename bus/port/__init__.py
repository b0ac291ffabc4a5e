"""The bus that the rest of Gangline sees. Imports only: runtime, schemas."""
