"""The processes and their clients. Imports only: stage and what that may."""
