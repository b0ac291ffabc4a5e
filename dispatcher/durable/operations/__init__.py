"""What operators ask of a dispatcher. Imports only: queue and what is below."""
