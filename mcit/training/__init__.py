"""Training and scoring of one task: batches, optimizer, and the loop over steps."""
