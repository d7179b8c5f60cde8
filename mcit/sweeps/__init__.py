"""Many runs: as processes side by side, over a grid, and what they say together."""
