"""What becomes of gangs. Pure. Imports only: scheduling, model."""
