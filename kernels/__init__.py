"""What one processor does to bytes: casts, reductions, copies, and the interpreter of step tables.

A leaf: nothing here knows about ranks' processes, topologies or schedules.
"""
