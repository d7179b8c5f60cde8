"""Readers of the official file formats: annotations, images, answers, boxes, and the scores computed from them."""
