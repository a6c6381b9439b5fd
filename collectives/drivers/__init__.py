"""Ways to move slices between ranks, one module for each class of link."""
