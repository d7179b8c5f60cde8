"""What stands around the loop of a run: plan, folder, checkpoints, cache, log."""
