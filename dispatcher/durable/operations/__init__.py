"""What operators ask of a dispatcher. Imports only: queue, workers."""
