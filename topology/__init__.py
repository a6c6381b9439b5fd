"""What is connected to what, and the ring orders in it. Pure: standard library and numpy."""
