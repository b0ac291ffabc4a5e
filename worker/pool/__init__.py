"""What the author of a pool declares. Imports only: context, settings."""
