"""What each command needs: options, output, a session."""
