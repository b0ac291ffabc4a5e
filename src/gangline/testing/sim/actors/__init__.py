"""The processes and their clients. Imports only: stage, and what stage may import."""
