"""Frames to workers, and their answers. Imports only: routing."""
