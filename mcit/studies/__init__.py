"""Studies: methods at their best strengths and at equal stiffness, from a plan and raw scores."""
