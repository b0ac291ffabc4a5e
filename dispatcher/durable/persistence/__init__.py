"""What is stored about tasks. Imports only: core, messages, policies."""
