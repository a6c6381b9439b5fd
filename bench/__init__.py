"""The command line: bench, launch, doctor and the readers of plans and topologies."""
