"""Where the servers are and who we are to them. Imports only: schemas."""
