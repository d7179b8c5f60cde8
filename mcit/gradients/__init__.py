"""Gradients of single examples and of batch means: how they are formed, and audited."""
