"""A list of all messages, and its export as AsyncAPI. Imports only the rest of schemas."""
