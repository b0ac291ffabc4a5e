"""All messages in one list, as AsyncAPI. Imports only: the rest of schemas."""
