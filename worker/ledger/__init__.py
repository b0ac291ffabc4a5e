"""The core at work, and what it writes down. Imports only: slots."""
