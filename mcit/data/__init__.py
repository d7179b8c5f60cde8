"""Readers of the official file formats, caches of what was read, and the metrics of tasks."""
