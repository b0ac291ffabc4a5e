"""A plan, played: the processes, what goes wrong, and the way to rest. May import all the other packages."""
