"""A plan, played: the processes, what befalls them, and the way to rest. May import every other room."""
