"""How the ranks of a job find each other before they share any memory: bytes only."""
