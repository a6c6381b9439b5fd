"""Schedules, and everything that reads them: verify, price, choose, draw, lower, execute."""
