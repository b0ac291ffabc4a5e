"""The surroundings of simulated processes, and the checks. Imports only what is below `actors`."""
